package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// journal is the append-only log of one sandbox: segments of at most about
// segBytes in one directory, maxBytes together. One goroutine appends, any
// number read and sync.
type journal struct {
	dir      *os.File
	own      owner
	segBytes int64
	maxBytes int64
	// beforeDrop is called with the journal locked before segments are
	// deleted: what must outlive them is put away there.
	beforeDrop func() error

	mu      sync.Mutex
	segs    []segment // oldest first; the last one is written to
	active  *os.File  // nil until the first append
	head    int64     // last position given out
	written int64     // last position in a file
	synced  int64     // last position known to be on disk
	pending wireRecord
	changed chan struct{} // closed and replaced at each append
}

type segment struct {
	first int64
	last  int64 // first-1 while it is empty
	size  int64
}

// openJournal opens or makes the journal in dir. visit is called for each
// entry that tells of a turn, oldest first. A torn end is cut off.
func openJournal(dir *os.File, own owner, segBytes, maxBytes int64, visit func([]byte)) (*journal, error) {
	j := &journal{
		dir: dir, own: own, segBytes: segBytes, maxBytes: maxBytes,
		beforeDrop: func() error { return nil },
		changed:    make(chan struct{}),
	}
	firsts, err := listSegments(dir)
	if err != nil {
		return nil, err
	}
	for i, first := range firsts {
		f, err := openAt(dir, segmentName(first), unix.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("opening the journal: %w", err)
		}
		seg := segment{first: first, last: first - 1}
		if first <= j.head {
			// Two segments claim the same positions: the older one was first.
			_ = f.Close()
			continue
		}
		r := newSegmentReader(f, 0)
		for {
			h, body, ok := r.next()
			if !ok || h.first() != seg.last+1 {
				break
			}
			seg.last, seg.size = h.pos, r.off
			if h.flag == flagTurn {
				visit(body)
			}
		}
		if i == len(firsts)-1 {
			err = f.Truncate(seg.size)
			j.active = f
		} else {
			err = f.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("opening the journal: %w", err)
		}
		j.segs = append(j.segs, seg)
		j.head = max(j.head, seg.last)
	}
	if j.active != nil {
		if _, err := j.active.Seek(0, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("opening the journal: %w", err)
		}
	}
	j.written = j.head
	return j, nil
}

// append writes r at the next position and returns it. When it fails nothing
// was appended, and it may be tried again.
func (j *journal) append(r Record) (int64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.flush(); err != nil {
		return 0, err
	}
	r.Pos = j.head + 1
	body, err := encodeRecord(wireRecord{Record: r})
	if err != nil {
		return 0, fmt.Errorf("appending to the journal: %w", err)
	}
	flag := byte(flagPlain)
	if r.Kind == KindTurn {
		flag = flagTurn
	}
	if err := j.write(encodeEntry(r.Pos, 1, flag, body), r.Pos); err != nil {
		return 0, err
	}
	j.head = r.Pos
	j.wake()
	return r.Pos, nil
}

// skip gives a position to a line that said nothing worth keeping. It is
// written together with its neighbours, at the latest before anyone is told
// of the position.
func (j *journal) skip(r Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &j.pending
	if p.Run > 0 && (p.TurnID != r.TurnID || p.Run == maxRun) && j.flush() != nil && p.Run == maxRun {
		// The disk is full and the run cannot grow: the line stays without a
		// position. Nobody misses it, for there is nothing in it.
		return
	}
	j.head++
	if p.Run == 0 {
		*p = wireRecord{Record: r}
	}
	p.Pos, p.TS = j.head, r.TS
	p.Run++
}

// flush writes the pending run. The journal is locked.
func (j *journal) flush() error {
	p := j.pending
	if p.Run == 0 {
		return nil
	}
	body, err := encodeJSON(p)
	if err != nil {
		return fmt.Errorf("appending to the journal: %w", err)
	}
	if err := j.write(encodeEntry(p.Pos, p.Run, flagRun, body), p.Pos); err != nil {
		return err
	}
	j.pending = wireRecord{}
	j.wake()
	return nil
}

// flushed returns the last position, after everything up to it is in a file.
func (j *journal) flushed() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.flush() // fails on a full disk only: then the head told is older
	return j.written
}

// write adds one line to the active segment, beginning a new one where it is
// full. The journal is locked.
func (j *journal) write(line []byte, pos int64) error {
	if j.active == nil || j.segs[len(j.segs)-1].size >= j.segBytes {
		if err := j.roll(); err != nil {
			return fmt.Errorf("beginning a segment of the journal: %w", err)
		}
	}
	j.makeRoom(int64(len(line)))
	seg := &j.segs[len(j.segs)-1]
	if _, err := j.active.WriteAt(line, seg.size); err != nil {
		// Half a line may be there. It is overwritten by the next one, and cut
		// here so that a reader of the files does not stop at it.
		err = errors.Join(err, j.active.Truncate(seg.size))
		return fmt.Errorf("appending to the journal: %w", err)
	}
	seg.size += int64(len(line))
	seg.last = pos
	j.written = pos
	return nil
}

// roll seals the active segment and begins the next. The journal is locked.
func (j *journal) roll() error {
	if j.active != nil {
		if err := unix.Fdatasync(int(j.active.Fd())); err != nil {
			return err
		}
		j.synced = j.written
	}
	first := j.written + 1
	f, err := openAt(j.dir, segmentName(first), unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(j.own.give(f, 0o600), j.dir.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	if j.active != nil {
		_ = j.active.Close() // synced above
	}
	j.active = f
	j.segs = append(j.segs, segment{first: first, last: first - 1})
	return nil
}

// makeRoom deletes the oldest segments until n more bytes keep the bound. A
// daemon that had not read them is told how many records are gone: see read.
func (j *journal) makeRoom(n int64) {
	total := n
	for _, s := range j.segs {
		total += s.size
	}
	drop := 0
	for drop < len(j.segs)-1 && total > j.maxBytes {
		total -= j.segs[drop].size
		drop++
	}
	_ = j.drop(drop) // tried again with the next line
}

// ack deletes the segments whose records are all at or before pos.
func (j *journal) ack(pos int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for n < len(j.segs)-1 && j.segs[n].last <= pos {
		n++
	}
	return j.drop(n)
}

// drop deletes the n oldest segments. The journal is locked.
func (j *journal) drop(n int) error {
	if n == 0 {
		return nil
	}
	if err := j.beforeDrop(); err != nil {
		return fmt.Errorf("dropping segments of the journal: %w", err)
	}
	for range n {
		name := segmentName(j.segs[0].first)
		if err := unix.Unlinkat(int(j.dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("dropping a segment of the journal: %w", err)
		}
		j.segs = j.segs[1:]
	}
	return nil
}

// sync puts everything appended up to pos on disk.
func (j *journal) sync(pos int64) error {
	j.mu.Lock()
	if j.synced >= pos || j.active == nil {
		j.mu.Unlock()
		return nil
	}
	// The file is synced unlocked: the harness's next lines need not wait. A
	// duplicate keeps it open should the segment be sealed meanwhile.
	fd, err := unix.FcntlInt(j.active.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	upTo := j.written
	j.mu.Unlock()
	if err == nil {
		err = errors.Join(unix.Fdatasync(fd), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("syncing the journal: %w", err)
	}
	j.mu.Lock()
	j.synced = max(j.synced, upTo)
	j.mu.Unlock()
	return nil
}

// bounds returns the oldest position held and the last one written; oldest is
// one more than the last in an empty journal.
func (j *journal) bounds() (oldest, written int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.segs) == 0 {
		return j.written + 1, j.written
	}
	return j.segs[0].first, j.written
}

func (j *journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// wait returns once something behind pos was written.
func (j *journal) wait(ctx context.Context, pos int64) error {
	for {
		j.mu.Lock()
		written, changed := j.written, j.changed
		j.mu.Unlock()
		if written > pos {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.flush()
	if j.active != nil {
		err = errors.Join(err, j.active.Sync(), j.active.Close())
		j.active = nil
	}
	return err
}

// segmentAt returns the segment that holds the first record behind pos, or
// false where there is none yet.
func (j *journal) segmentAt(pos int64) (segment, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.segs {
		if s.last > pos {
			return s, true
		}
	}
	return segment{}, false
}
