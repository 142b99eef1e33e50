package bridge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	segmentSuffix = ".seg"
	// maxSegments bounds how many files of a journal are looked at.
	maxSegments = 4096
)

// segmentName is the file of the segment whose first record is at pos.
func segmentName(pos int64) string { return fmt.Sprintf("%020d%s", pos, segmentSuffix) }

func parseSegmentName(name string) (int64, bool) {
	digits, found := strings.CutSuffix(name, segmentSuffix)
	if !found || len(digits) != 20 {
		return 0, false
	}
	pos, err := strconv.ParseInt(digits, 10, 64)
	return pos, err == nil && pos > 0 && pos <= maxPos
}

// openDir opens a directory that may have been tampered with: it must be one
// itself, not a link to one.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openAt opens a regular file of dir. It follows no link and waits for no
// pipe's other end.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), name, flags, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = f.Close()
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.Join(err, errNotRegular)}
	}
	return f, nil
}

var errNotRegular = errors.New("not a regular file")

// listSegments returns the first positions of dir's segments in order.
func listSegments(dir *os.File) ([]int64, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var firsts []int64
	for seen := 0; ; {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if pos, ok := parseSegmentName(name); ok {
				firsts = append(firsts, pos)
			}
		}
		seen += len(names)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("listing the journal: %w", err)
		}
		if len(firsts) > maxSegments || seen > 16*maxSegments {
			return nil, fmt.Errorf("listing the journal: too many files: %w", ErrProtocol)
		}
	}
	sort.Slice(firsts, func(i, k int) bool { return firsts[i] < firsts[k] })
	return firsts, nil
}

// segmentReader reads the entries of one segment in order. What follows the
// first entry that is not whole and intact is never looked at.
type segmentReader struct {
	r   *bufio.Reader
	off int64 // behind the last good entry
	hdr [headerLen]byte
}

func newSegmentReader(r io.Reader, off int64) *segmentReader {
	return &segmentReader{r: bufio.NewReaderSize(r, 64<<10), off: off}
}

// next returns the next entry, or false at the end of what can be trusted.
func (s *segmentReader) next() (entryHeader, []byte, bool) {
	if _, err := io.ReadFull(s.r, s.hdr[:]); err != nil {
		return entryHeader{}, nil, false
	}
	h, ok := parseHeader(s.hdr[:])
	if !ok {
		return entryHeader{}, nil, false
	}
	// The size is not believed before that many bytes were really there: a
	// forged header must not have memory set aside for it.
	body, err := readExactly(s.r, h.size+1)
	if err != nil || body[h.size] != '\n' {
		return entryHeader{}, nil, false
	}
	body = body[:h.size]
	if !h.intact(s.hdr[:], body) {
		return entryHeader{}, nil, false
	}
	s.off += headerLen + h.size + 1
	return h, body, true
}

// readExactly reads n bytes, growing with what arrives.
func readExactly(r io.Reader, n int64) ([]byte, error) {
	const step = 64 << 10
	buf := make([]byte, 0, min(n, step))
	for int64(len(buf)) < n {
		have := len(buf)
		if have == cap(buf) {
			buf = append(buf, 0)[:have]
		}
		buf = buf[:min(int64(cap(buf)), n)]
		got, err := io.ReadFull(r, buf[have:])
		if err != nil {
			return buf[:have+got], err
		}
	}
	return buf, nil
}
