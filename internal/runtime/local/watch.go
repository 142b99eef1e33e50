package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/runtime"
)

// maxBehind is how many events wait for a reader before it is told to list
// anew instead.
const maxBehind = 256

// watch waits for the end of one first process.
type watch struct {
	process
	exited chan struct{} // closed once its end is noted in exit.json
}

// watch sees to it that the end of a first process is noticed. A watch that
// exists already is returned. If the process is gone by now, the watch is one
// that is over.
func (l *Local) watch(id string, first firstRecord) (*watch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.watches[id]; w != nil && w.process == first.process {
		return w, nil
	}
	w := &watch{process: first.process, exited: make(chan struct{})}
	h, err := stat{pid: first.PID, start: first.Start}.open()
	if errors.Is(err, os.ErrProcessDone) {
		close(w.exited)
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	l.watches[id] = w
	l.wg.Go(func() {
		defer h.close()
		if err := h.wait(l.stop); err != nil {
			if l.stop.Err() == nil {
				l.log.Error("watch of a sandbox broke", zap.String("sandboxId", id), zap.Error(err))
			}
			return
		}
		l.ended(id, w)
	})
	return w, nil
}

// ended takes note of the end of a first process.
func (l *Local) ended(id string, w *watch) {
	exit := exitRecord{process: w.process, Code: reap(w.PID), At: l.clock.Now().UTC()}
	path := filepath.Join(l.dir(id), exitFile)
	var noted exitRecord
	// Where another has reaped the process, it knows the code and we do not.
	if exit.Code >= 0 || readRecord(path, &noted) != nil || noted.process != w.process {
		if err := writeRecord(path, exit); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.log.Error("end of a sandbox not noted", zap.String("sandboxId", id), zap.Error(err))
		}
	}
	l.mu.Lock()
	if l.watches[id] == w {
		delete(l.watches, id)
	}
	l.mu.Unlock()
	close(w.exited)
	l.publish(runtime.Event{Type: runtime.EventDied, SandboxID: id, Time: exit.At, ExitCode: exit.Code})

	// What it leaves behind must end with it, but not what a new start brought.
	unlock, err := l.locks.Lock(l.stop, id)
	if err != nil {
		return
	}
	defer unlock()
	if first, _ := l.firstProcess(id); first.process != w.process {
		return
	}
	if err := l.killRest(l.stop, id); err != nil && l.stop.Err() == nil {
		l.log.Error("processes of an ended sandbox not ended", zap.String("sandboxId", id), zap.Error(err))
	}
}

// reap asks for the exit code of a child that has ended; -1 if it is not ours
// or another has asked. As a shell has it, a signal is 128 and its number.
func reap(pid int) int {
	var status unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || got != pid:
			return -1
		case status.Signaled():
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}
}

// reader is one subscription to events.
type reader struct {
	mu     sync.Mutex
	queue  []runtime.Event
	wakeup chan struct{} // holds one element if the queue has grown
}

func (r *reader) add(ev runtime.Event) {
	r.mu.Lock()
	if len(r.queue) >= maxBehind {
		ev = runtime.Event{Type: runtime.EventResync, Time: ev.Time, ExitCode: -1}
		r.queue = r.queue[:0]
	}
	r.queue = append(r.queue, ev)
	r.mu.Unlock()
	select {
	case r.wakeup <- struct{}{}:
	default:
	}
}

func (r *reader) take() []runtime.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.queue
	r.queue = nil
	return taken
}

func (l *Local) publish(ev runtime.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.readers {
		r.add(ev)
	}
}

// Events implements runtime.Runtime. There is no EventOOM: nothing on this
// machine tells whose process the kernel killed for memory.
func (l *Local) Events(ctx context.Context) <-chan runtime.Event {
	out := make(chan runtime.Event)
	r := &reader{wakeup: make(chan struct{}, 1)}
	l.mu.Lock()
	l.readers[r] = true
	l.mu.Unlock()
	// From here on nothing is missed: every sandbox that runs is watched since
	// its start or since New.
	r.add(runtime.Event{Type: runtime.EventResync, Time: l.clock.Now().UTC(), ExitCode: -1})
	l.wg.Go(func() {
		defer close(out)
		defer func() {
			l.mu.Lock()
			delete(l.readers, r)
			l.mu.Unlock()
		}()
		for {
			select {
			case <-r.wakeup:
			case <-ctx.Done():
				return
			case <-l.stop.Done():
				return
			}
			for _, ev := range r.take() {
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				case <-l.stop.Done():
					return
				}
			}
		}
	})
	return out
}
