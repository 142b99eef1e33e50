package bridge

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// cursor reads a journal that is being written, from the files: however far
// its reader is behind, it holds one batch in memory.
type cursor struct {
	j    *journal
	pos  int64 // last position read
	file *os.File
	seg  int64 // first position of the open segment
	off  int64 // where its next entry begins
}

const (
	batchRecords = 256
	batchBytes   = 1 << 20
)

func (c *cursor) close() {
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// lose moves the cursor to upTo and returns the record that says so.
func (c *cursor) lose(upTo int64) ([]byte, error) {
	lost := Record{Pos: upTo, Kind: KindDropped, Dropped: upTo - c.pos}
	c.pos = upTo
	return encodeJSON(lost)
}

// read returns the JSON of the next entries, at most about a batch; none when
// the journal ends here. Where positions are no longer held it says so with a record
// of kind dropped that stands for them.
func (c *cursor) read() ([][]byte, error) {
	var out [][]byte
	records, size := int64(0), 0
	for records < batchRecords && size < batchBytes {
		seg, found := c.j.segmentAt(c.pos)
		if !found {
			break
		}
		if seg.first > c.pos+1 {
			lost, err := c.lose(seg.first - 1)
			if err != nil {
				return nil, err
			}
			out = append(out, lost)
		}
		if c.file == nil || c.seg != seg.first {
			c.close()
			f, err := openAt(c.j.dir, segmentName(seg.first), unix.O_RDONLY, 0)
			if errors.Is(err, fs.ErrNotExist) {
				// Dropped this very moment, or deleted by someone else.
				lost, err := c.lose(seg.last)
				if err != nil {
					return nil, err
				}
				out = append(out, lost)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("reading the journal: %w", err)
			}
			c.file, c.seg, c.off = f, seg.first, 0
		}
		r := newSegmentReader(io.NewSectionReader(c.file, c.off, seg.size-c.off), c.off)
		for records < batchRecords && size < batchBytes {
			h, body, ok := r.next()
			if !ok {
				break
			}
			c.off = r.off
			if h.pos <= c.pos {
				continue
			}
			out = append(out, body)
			records += h.run
			size += len(body)
			c.pos = h.pos
		}
		if records < batchRecords && size < batchBytes && c.pos < seg.last {
			// An entry that was good when written is not any more: the rest of
			// its segment is lost, and the reader is told.
			lost, err := c.lose(seg.last)
			if err != nil {
				return nil, err
			}
			out = append(out, lost)
			c.off = seg.size
		}
	}
	return out, nil
}
