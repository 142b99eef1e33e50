package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxReadBytes bounds what one ReadJournal returns, in bytes of JSON.
const maxReadBytes = 16 << 20

// ReadJournal returns at most max records behind position after from the
// journal in dir, without a bridge and without changing anything: it is for
// what a dead sandbox had still written. dir is the journal's directory or the
// one that holds it (ServerConfig.Dir).
//
// What stands there was in the hands of the sandbox. Links are not followed,
// only whole and intact records are returned, their positions rise, and memory
// stays bounded whatever the files claim. Fewer records than max does not mean
// the end; none does. Positions that are not held any more come as one record
// of kind dropped, as in a subscription. A journal that is not there is empty.
func ReadJournal(dir string, after int64, max int) ([]Record, error) {
	d, err := openJournalDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	defer d.Close()
	firsts, err := listSegments(d)
	if err != nil {
		return nil, err
	}
	// Begin with the newest segment that starts at or before the first record
	// wanted: the ones before it have nothing for this reader.
	begin := 0
	for i, first := range firsts {
		if first <= after+1 {
			begin = i
		}
	}
	var out []Record
	last, budget := after, int64(maxReadBytes)
	for _, first := range firsts[min(begin, len(firsts)):] {
		if len(out) >= max || budget <= 0 {
			break
		}
		out, budget = readSegment(d, first, out, &last, max, budget)
	}
	return out[:min(len(out), max)], nil
}

// openJournalDir opens dir, or the directory "journal" in it where there is
// one.
func openJournalDir(dir string) (*os.File, error) {
	d, err := openDir(filepath.Join(dir, journalDir))
	if err == nil {
		return d, nil
	}
	return openDir(dir)
}

// readSegment appends the good records of one segment.
func readSegment(d *os.File, first int64, out []Record, last *int64, max int, budget int64) ([]Record, int64) {
	f, err := openAt(d, segmentName(first), unix.O_RDONLY, 0)
	if err != nil {
		return out, budget // a link, a pipe, gone: no segment
	}
	defer f.Close()
	r := newSegmentReader(f, 0)
	for expect := first; len(out) < max && budget > 0; {
		h, body, ok := r.next()
		if !ok || h.first() != expect {
			break
		}
		expect = h.pos + 1
		if h.pos <= *last {
			continue
		}
		w, err := decodeRecord(body)
		if err != nil || w.Pos != h.pos || w.Kind == KindDropped {
			break
		}
		if gap := h.first() - 1 - *last; gap > 0 {
			out = append(out, Record{Pos: h.first() - 1, Kind: KindDropped, Dropped: gap})
			*last = h.first() - 1
		}
		if out, err = expand(out, last, w); err != nil {
			break
		}
		budget -= int64(len(body))
	}
	return out, budget
}
