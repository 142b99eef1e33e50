package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Start implements runtime.Runtime.
func (l *Local) Start(ctx context.Context, id string) error {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := l.record(id)
	if err != nil {
		return err
	}
	if _, alive := l.firstProcess(id); alive {
		return nil
	}
	if err := l.start(ctx, rec); err != nil {
		return fmt.Errorf("starting %s: %w", id, err)
	}
	return nil
}

// Stop implements runtime.Runtime.
func (l *Local) Stop(ctx context.Context, id string, grace time.Duration) error {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	_, first, err := l.live(id)
	if errors.Is(err, runtime.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.end(ctx, id, first, grace); err != nil {
		return fmt.Errorf("stopping %s: %w", id, err)
	}
	return nil
}

// end ends the first process, and with it all the others. The caller holds the
// sandbox's lock.
func (l *Local) end(ctx context.Context, id string, first firstRecord, grace time.Duration) error {
	w, err := l.watch(id, first)
	if err != nil {
		return err
	}
	s := stat{pid: first.PID, start: first.Start}
	if grace > 0 {
		if err := s.signal(unix.SIGTERM); err != nil {
			return err
		}
		// Frozen it would not hear. What was frozen goes on for this moment,
		// and only after the signal, so that it is the first thing heard.
		if l.frozenFor(id) != "" {
			if err := l.thaw(id, first.PID); err != nil {
				return err
			}
		}
		timeout := l.clock.NewTimer(grace)
		defer timeout.Stop()
		select {
		case <-w.exited:
		case <-timeout.Chan():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// The first process first: it must not start anew what is killed.
	if err := s.signal(unix.SIGKILL); err != nil {
		return err
	}
	if err := l.killRest(ctx, id); err != nil {
		return err
	}
	select {
	case <-w.exited:
	case <-l.stop.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return l.unmarkFrozen(id)
}

// killRest kills every process of a sandbox.
func (l *Local) killRest(ctx context.Context, id string) error {
	first, _ := l.firstProcess(id)
	return killAll(ctx, func() ([]stat, error) { return processesOf(id, first) })
}

// Remove implements runtime.Runtime.
func (l *Local) Remove(ctx context.Context, id string) error {
	if !ids.Valid(ids.Sandbox, id) {
		return fmt.Errorf("removing %q: %w", id, runtime.ErrInvalid)
	}
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// An unreadable record does not keep a sandbox from being removed, another
	// instance's does.
	if rec, err := l.lookup(id); err == nil && rec.Instance != l.opts.Instance {
		return nil
	} else if errors.Is(err, runtime.ErrNotFound) {
		if err := l.sweep(l.sandboxesDir(), id+"."); err != nil {
			return fmt.Errorf("removing what is left of %s: %w", id, err)
		}
		return nil
	}
	first, alive := l.firstProcess(id)
	if alive {
		err = l.end(ctx, id, first, 0)
	} else {
		err = l.killRest(ctx, id)
	}
	if err == nil {
		failpoint.Hit("local.remove")
		err = l.discard(l.dir(id), id)
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", id, err)
	}
	l.publish(runtime.Event{Type: runtime.EventRemoved, SandboxID: id, Time: l.clock.Now().UTC(), ExitCode: -1})
	return nil
}

// Kick implements runtime.Runtime.
func (l *Local) Kick(_ context.Context, id string) error {
	_, first, err := l.live(id)
	if err != nil {
		return err
	}
	if l.frozenFor(id) == frozenPause {
		return errPaused(id)
	}
	// One that does not catch the signal yet would die of it. It is about to
	// start its first bridge: just what is asked for.
	if !catches(first.PID, unix.SIGUSR1) {
		return nil
	}
	if err := (stat{pid: first.PID, start: first.Start}).signal(unix.SIGUSR1); err != nil {
		return fmt.Errorf("signalling %s: %w", id, err)
	}
	return nil
}

// catches says whether the process has a handler for the signal.
func catches(pid int, sig unix.Signal) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if mask, ok := strings.CutPrefix(lines.Text(), "SigCgt:\t"); ok {
			caught, err := strconv.ParseUint(mask, 16, 64)
			return err == nil && caught&(1<<(sig-1)) != 0
		}
	}
	return false
}

// Dial implements runtime.Runtime.
func (l *Local) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if _, _, err := l.live(id); err != nil {
		return nil, err
	}
	conn, err := runtime.DialSocket(ctx, l.dir(id))
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dialling %s: %w", id, ctx.Err())
	}
	return nil, fmt.Errorf("dialling %s: %w: %w", id, runtime.ErrNotRunning, err)
}

func (l *Local) unmarkFrozen(id string) error {
	err := os.Remove(filepath.Join(l.dir(id), frozenFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
