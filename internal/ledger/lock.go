package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is the lock's file in the state directory. It is never deleted: a
// second daemon could otherwise lock a file that has no name any more.
const lockName = "lock"

// StateLock is the hold of a state directory. The kernel releases it when the
// process ends, however it ends.
type StateLock struct {
	mu   sync.Mutex
	file *os.File
}

// LockedError says who holds a state directory. It is ErrLocked.
type LockedError struct {
	Dir string
	PID int // 0: the holder has not written it yet
}

func (e *LockedError) Error() string {
	who := "unknown pid"
	if e.PID > 0 {
		who = "pid " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("%s: %v (%s)", e.Dir, ErrLocked, who)
}

// Is reports a LockedError as ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// inheritTime bounds how long a process that was just being started by a holder
// that was killed may keep that one's lock: between the fork and the exec, which
// closes its file, it has it too.
const inheritTime = 2 * time.Second

// Lock takes the state directory for this process, making it if it is not
// there. A directory that is held by a living process is a *LockedError at
// once; after the death of the holder it waits for a moment where it must.
func Lock(stateDir string) (*StateLock, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(stateDir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the state directory's lock: %w", err)
	}
	if err := flockInherited(f); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &LockedError{Dir: stateDir, PID: holder(f)}
		}
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	_, err = f.WriteAt([]byte(pid), 0)
	if err == nil {
		err = f.Truncate(int64(len(pid)))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("writing the state directory's lock: %w", err)
	}
	return &StateLock{file: f}, nil
}

// Close gives the state directory back. It is idempotent.
func (l *StateLock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	// The pid goes first: who looks at the file later must not be told of a
	// process that has let go.
	return errors.Join(f.Truncate(0), f.Close())
}

// flockInherited is flock that lets what a dead holder was starting get to its
// exec.
func flockInherited(f *os.File) error {
	err := flock(f)
	if !errors.Is(err, unix.EWOULDBLOCK) || alive(holder(f)) {
		return err
	}
	const pause = 2 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for timeout := time.After(inheritTime); ; {
		select {
		case <-tick.C:
		case <-timeout:
			return err
		}
		if err = flock(f); !errors.Is(err, unix.EWOULDBLOCK) || alive(holder(f)) {
			return err
		}
	}
}

// alive reports whether a process runs. One that nobody has collected yet does
// not.
func alive(pid int) bool {
	if pid <= 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func holder(f *os.File) int {
	var b [32]byte
	n, _ := f.ReadAt(b[:], 0) // a short file is an error and yet has been read
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0
	}
	return pid
}
