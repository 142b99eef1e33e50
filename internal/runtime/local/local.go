// Package local runs sandboxes as plain processes of this machine. It isolates
// nothing: a sandbox is a process group with a home directory of its own.
//
// All that is known of a sandbox stands in its directory:
//
//	<state>/sandboxes/<id>/sandbox.json  what was asked for, and for whom
//	                       home/         the home directory, and all that a commit holds
//	                       bridge.sock   made by the bridge
//	                       journal/      made by the bridge
//	                       init.pid      the first process: pid, start time, boot
//	                       init.log      what the first process wrote
//	                       exit.json     how the last first process ended
//	                       frozen        there while the sandbox is frozen, says what for
//
// The directory appears under its name only with sandbox.json in it, and goes
// by being renamed first. Hence a crash leaves either a sandbox or something
// whose name begins with a dot, which the next start clears away.
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Options configure the driver. Instance, StateDir and Binary are required.
type Options struct {
	// Instance names the daemon's state. Sandboxes of other instances are
	// never seen.
	Instance string
	// StateDir is an absolute directory.
	StateDir string
	// Binary is the path of the alineod executable.
	Binary string
	Clock  clockwork.Clock // nil: the real one
	Log    *zap.Logger     // nil: none
}

// Local is the driver. It is made by New.
type Local struct {
	opts  Options
	clock clockwork.Clock
	log   *zap.Logger
	locks runtime.Locks

	// stop ends the goroutines that wg counts.
	stop    context.Context
	stopNow context.CancelFunc
	wg      sync.WaitGroup

	mu      sync.Mutex
	watches map[string]*watch // by sandbox
	readers map[*reader]bool

	binaryMu sync.Mutex
	binary   string // the installed copy, once there is one
}

var _ runtime.Runtime = (*Local)(nil)

// New makes the driver and takes up what an earlier daemon left: it watches
// what runs, ends what an ended sandbox left behind, lets go on what was frozen
// for a commit, and clears away what was being made or removed.
//
// The caller holds the lock on the state directory: two drivers of one
// instance must not work at the same time.
func New(opts Options) (*Local, error) {
	if err := runtime.CheckName(opts.Instance); err != nil {
		return nil, fmt.Errorf("local: instance: %w", err)
	}
	if !filepath.IsAbs(opts.StateDir) {
		return nil, fmt.Errorf("local: state directory %q is not absolute: %w", opts.StateDir, runtime.ErrInvalid)
	}
	if opts.Clock == nil {
		opts.Clock = clockwork.NewRealClock()
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	l := &Local{
		opts: opts, clock: opts.Clock, log: opts.Log,
		watches: make(map[string]*watch), readers: make(map[*reader]bool),
	}
	for _, dir := range [...]string{l.sandboxesDir(), l.imagesDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("local: %w", err)
		}
	}
	l.stop, l.stopNow = context.WithCancel(context.Background())
	if err := l.takeUp(); err != nil {
		return nil, errors.Join(fmt.Errorf("local: taking up sandboxes: %w", err), l.Close())
	}
	return l, nil
}

// takeUp finishes what a crash interrupted.
func (l *Local) takeUp() error {
	for _, dir := range [...]string{l.sandboxesDir(), l.imagesDir()} {
		if err := l.sweep(dir, ""); err != nil {
			return err
		}
	}
	found, err := l.records()
	if err != nil {
		return err
	}
	table, err := readProcesses()
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range found {
		first, alive := l.firstProcess(rec.SandboxID)
		switch {
		case !alive:
			for _, p := range table.of(rec.SandboxID, first.PID) {
				errs = append(errs, p.signal(killSignal))
			}
		case l.frozenFor(rec.SandboxID) == frozenCommit:
			errs = append(errs, l.thaw(rec.SandboxID, first.PID))
		}
		if alive {
			_, err := l.watch(rec.SandboxID, first)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Name implements runtime.Runtime.
func (l *Local) Name() string { return "local" }

// Capabilities implements runtime.Runtime.
func (l *Local) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Commit: true, Pause: true, RestartInPlace: true, StoppedArchive: true}
}

// Ping implements runtime.Runtime: this machine always answers.
func (l *Local) Ping(context.Context) error { return nil }

// Transport implements runtime.Runtime.
func (l *Local) Transport() string { return "socket" }

// JournalDir implements runtime.Runtime.
func (l *Local) JournalDir(id string) string {
	return filepath.Join(l.dir(id), runtime.JournalName)
}

// Close implements runtime.Runtime.
func (l *Local) Close() error {
	l.stopNow()
	l.wg.Wait()
	return nil
}

func (l *Local) sandboxesDir() string { return filepath.Join(l.opts.StateDir, "sandboxes") }

func (l *Local) dir(id string) string { return filepath.Join(l.sandboxesDir(), id) }

func (l *Local) home(id string) string { return filepath.Join(l.dir(id), "home") }

// Names of what is being made and of what is being removed. They hold the
// instance, for another's are not ours to clear away.
func (l *Local) newName(what string) string  { return ".new-" + l.opts.Instance + "." + what }
func (l *Local) goneName(what string) string { return ".gone-" + l.opts.Instance + "." + what }

// sweep deletes what a crash left half made or half removed in dir; what is
// not empty narrows it to one sandbox.
func (l *Local) sweep(dir, what string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.newName(what)) || strings.HasPrefix(e.Name(), l.goneName(what)) {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// discard removes a directory: first from sight, in one step, then its content.
func (l *Local) discard(dir, what string) error {
	parent := filepath.Dir(dir)
	aside := filepath.Join(parent, l.goneName(what)+"."+ids.New("x"))
	if err := os.Rename(dir, aside); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return errors.Join(runtime.SyncDir(parent), removeTree(aside))
}

// removeTree deletes a directory with all in it, also where directories in it
// may not be written to, as those of Go's module cache.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return nil // what cannot be opened is reported by the second attempt
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// installed returns the path of the copy of the executable that sandboxes run.
func (l *Local) installed() (string, error) {
	l.binaryMu.Lock()
	defer l.binaryMu.Unlock()
	if l.binary != "" {
		if _, err := os.Stat(l.binary); err == nil {
			return l.binary, nil
		}
	}
	path, err := runtime.InstallBinary(l.opts.StateDir, l.opts.Binary)
	if err != nil {
		return "", err
	}
	l.binary = path
	return path, nil
}
