package archive

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// findSegments finds where a file has data. A file without holes, or on a file
// system that does not tell, is one segment and not sparse.
func findSegments(fd int, st *unix.Stat_t) (segs []segment, sparse bool, err error) {
	size := st.Size
	dense := []segment{{0, size}}
	// A file with all its blocks has no holes: that spares two calls for
	// nearly every file.
	if size == 0 || st.Blocks*blockSize >= size {
		return dense, false, nil
	}
	for pos := int64(0); pos < size; {
		from, err := unix.Seek(fd, pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
			return dense, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) {
			break // cut short meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		// Readers expect segments to begin and end at whole blocks.
		from &^= blockSize - 1
		to = min((to+blockSize-1)&^(blockSize-1), size)
		if from >= size {
			break
		}
		switch last := len(segs) - 1; {
		case last >= 0 && from <= segs[last].off+segs[last].n:
			segs[last].n = to - segs[last].off
		case len(segs) == maxSegments-2:
			// So scattered that the map would outgrow its bound: the rest is
			// stored with its holes.
			segs = append(segs, segment{from, size - from})
			to = size
		default:
			segs = append(segs, segment{from, to - from})
		}
		pos = to
	}
	if len(segs) == 1 && segs[0] == dense[0] {
		return dense, false, nil
	}
	if n := len(segs); n == 0 || segs[n-1].off+segs[n-1].n < size {
		// GNU tar takes the file's length from the end of the last segment.
		segs = append(segs, segment{size, 0})
	}
	return segs, true, nil
}

// encodeMap writes the map that stands before a sparse file's data, filled up
// to a whole block, and returns the number of bytes of data.
func encodeMap(segs []segment) (b []byte, total int64) {
	line := func(n int64) { b = append(strconv.AppendInt(b, n, 10), '\n') }
	line(int64(len(segs)))
	for _, s := range segs {
		line(s.off)
		line(s.n)
		total += s.n
	}
	return append(b, zeros[:padding(int64(len(b)))]...), total
}
