package bridge

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// output is one line of a harness. Of a line that was too long only the
// beginning is there.
type output struct {
	from *child
	line []byte
	cut  bool
}

// scanLines calls each with every line of r until its end or until each
// returns false. Lines end with LF only. Of one longer than most, each gets
// the beginning at once, and the rest is thrown away.
func scanLines(r *bufio.Reader, most int, each func(line []byte, cut bool) bool) {
	const keep = 4096
	var line []byte
	skipping := false
	for {
		part, err := r.ReadSlice('\n')
		ended := err == nil
		if ended {
			part = part[:len(part)-1]
		}
		switch {
		case skipping:
			skipping = !ended
		case len(line)+len(part) > most:
			line = append(line, part...)
			if !each(line[:min(keep, most, len(line))], true) {
				return
			}
			line, skipping = nil, !ended
		case ended || err != nil && !errors.Is(err, bufio.ErrBufferFull):
			line = append(line, part...)
			// What stands behind the last LF is half a line: the process died
			// in the middle of it. It is passed on, to be reported.
			if (ended || len(line) > 0) && !each(line, false) {
				return
			}
			line = nil
		default:
			line = append(line, part...)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// pipe is the reading end of a process's output. The process's own children
// may hold the other end long after it died, so the end of the pipe says
// nothing: after finish it ends behind what had been written by then.
type pipe struct {
	f        *os.File
	draining bool
	left     int
}

// finish is called when the process is dead.
func (p *pipe) finish() { _ = p.f.SetReadDeadline(time.Unix(1, 0)) }

func (p *pipe) Read(b []byte) (int, error) {
	if !p.draining {
		n, err := p.f.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		p.draining = true
		if err := p.f.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
		raw, err := p.f.SyscallConn()
		if err != nil {
			return 0, err
		}
		var countErr error
		if err := raw.Control(func(fd uintptr) { p.left, countErr = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
			return 0, err
		}
		if countErr != nil {
			return 0, countErr
		}
	}
	if p.left <= 0 {
		return 0, os.ErrClosed
	}
	n, err := p.f.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

// tail keeps the last bytes of what is written to it. Safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
	max int
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-t.max):]...)
	if over := len(t.buf) - t.max; over > t.max {
		// Moved once per max bytes, not at each write.
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

// last returns at most n of the last bytes.
func (t *tail) last(n int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = min(n, t.max, len(t.buf))
	return append([]byte(nil), t.buf[len(t.buf)-n:]...)
}
