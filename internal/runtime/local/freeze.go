package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/runtime"
)

const (
	// freezeTimeout bounds a freeze: a process that waits for a disk stops
	// only after it.
	freezeTimeout = 10 * time.Second
	freezeTick    = 2 * time.Millisecond
)

// Pause implements runtime.Runtime. That the sandbox is to be frozen is noted
// first: a crash in the midst leaves one that says paused, which both Pause
// and Unpause then bring to order.
func (l *Local) Pause(ctx context.Context, id string) error {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	_, first, err := l.live(id)
	if err != nil {
		return err
	}
	already := l.frozenFor(id) == frozenPause
	if err := l.freeze(ctx, id, first, frozenPause); err != nil {
		return fmt.Errorf("pausing %s: %w", id, err)
	}
	if !already {
		l.publish(runtime.Event{Type: runtime.EventPaused, SandboxID: id, Time: l.clock.Now().UTC(), ExitCode: -1})
	}
	return nil
}

// Unpause implements runtime.Runtime.
func (l *Local) Unpause(ctx context.Context, id string) error {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	_, first, err := l.live(id)
	if err != nil {
		return err
	}
	if l.frozenFor(id) == "" {
		return nil
	}
	if err := l.thaw(id, first.PID); err != nil {
		return fmt.Errorf("unpausing %s: %w", id, err)
	}
	l.publish(runtime.Event{Type: runtime.EventUnpaused, SandboxID: id, Time: l.clock.Now().UTC(), ExitCode: -1})
	return nil
}

// freeze stops every process of the sandbox. A stopped process starts no other,
// so it is done once a look finds nothing but stopped ones. One that waits for
// the exec of a child it made by vfork cannot stop before that: its children go
// on until it can (vfork(2)).
func (l *Local) freeze(ctx context.Context, id string, first firstRecord, why string) error {
	if err := writeFile(filepath.Join(l.dir(id), frozenFile), []byte(why+"\n")); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	err := func() error {
		for {
			found, err := processesOf(id, first)
			if err != nil {
				return err
			}
			moving := false
			states := make(map[int]stat, len(found))
			for _, s := range found {
				states[s.pid] = s
			}
			for _, s := range found {
				sig := unix.SIGSTOP
				switch {
				case states[s.parent].blocked() && s.stopped():
					sig = unix.SIGCONT
				case states[s.parent].blocked():
					moving = true
					continue
				case s.stopped():
					continue
				}
				moving = true
				if err := s.signal(sig); err != nil {
					return err
				}
			}
			if !moving {
				return nil
			}
			// The kernel tells of a stop only the parent; hence another look.
			select {
			case <-time.After(freezeTick):
			case <-bounded.Done():
				return bounded.Err()
			}
		}
	}()
	if err != nil {
		return errors.Join(err, l.thaw(id, first.PID))
	}
	return nil
}

// thaw lets every process of the sandbox go on.
func (l *Local) thaw(id string, first int) error {
	t, err := readProcesses()
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range t.of(id, first) {
		errs = append(errs, s.signal(unix.SIGCONT))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return l.unmarkFrozen(id)
}
