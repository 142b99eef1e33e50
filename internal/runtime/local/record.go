package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Names of the files in a sandbox's directory; see the package's comment.
const (
	recordFile = "sandbox.json"
	pidFile    = "init.pid"
	exitFile   = "exit.json"
	logFile    = "init.log"
	frozenFile = "frozen"
)

// What a sandbox is frozen for.
const (
	frozenPause  = "pause"
	frozenCommit = "commit"
)

// record is what sandbox.json holds.
type record struct {
	Instance  string
	CreatedAt time.Time
	runtime.CreateRequest
}

// process names one process for good: the kernel gives a pid again, but not
// with the same start time within one boot.
type process struct {
	PID    int
	Start  uint64 // clock ticks since the boot
	BootID string
}

// firstRecord is what init.pid holds.
type firstRecord struct {
	process
	StartedAt time.Time
}

// exitRecord is what exit.json holds.
type exitRecord struct {
	process
	Code int // -1: not known
	At   time.Time
}

// writeRecord replaces a file as a whole, durably.
func writeRecord(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

func writeFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return runtime.SyncDir(dir)
}

func readRecord(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// errNotHere is ErrNotFound for a sandbox.
func errNotHere(id string) error { return fmt.Errorf("sandbox %q: %w", id, runtime.ErrNotFound) }

// lookup reads a sandbox's record, whoever's it is.
func (l *Local) lookup(id string) (record, error) {
	var rec record
	if !ids.Valid(ids.Sandbox, id) {
		return rec, errNotHere(id)
	}
	err := readRecord(filepath.Join(l.dir(id), recordFile), &rec)
	if errors.Is(err, os.ErrNotExist) {
		return rec, errNotHere(id)
	}
	if err == nil && rec.SandboxID != id {
		err = errors.New("it is another's")
	}
	if err != nil {
		return rec, fmt.Errorf("reading the record of %s: %w", id, err)
	}
	return rec, nil
}

// record reads the record of a sandbox of this instance.
func (l *Local) record(id string) (record, error) {
	rec, err := l.lookup(id)
	if err == nil && rec.Instance != l.opts.Instance {
		return rec, errNotHere(id)
	}
	return rec, err
}

// records reads those of all sandboxes of this instance. One that cannot be
// read is reported and left out: it must not keep the others from being seen.
func (l *Local) records() ([]record, error) {
	entries, err := os.ReadDir(l.sandboxesDir())
	if err != nil {
		return nil, err
	}
	var found []record
	for _, e := range entries {
		rec, err := l.record(e.Name())
		switch {
		case err == nil:
			found = append(found, rec)
		case !errors.Is(err, runtime.ErrNotFound):
			l.log.Error("sandbox set aside", zap.String("sandboxId", e.Name()), zap.Error(err))
		}
	}
	return found, nil
}

// firstProcess returns the first process that was last started in the sandbox
// (a zero one if there was none) and says whether it lives.
func (l *Local) firstProcess(id string) (firstRecord, bool) {
	var first firstRecord
	if err := readRecord(filepath.Join(l.dir(id), pidFile), &first); err != nil {
		return firstRecord{}, false
	}
	return first, first.alive() && commandNames(first.PID, id)
}

// frozenFor says what the sandbox is frozen for, if it is.
func (l *Local) frozenFor(id string) string {
	data, err := os.ReadFile(filepath.Join(l.dir(id), frozenFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// info says what is known of a sandbox.
func (l *Local) info(rec record) runtime.Info {
	id := rec.SandboxID
	info := runtime.Info{
		Labels: rec.Labels, State: runtime.StateCreated, Handle: l.dir(id), Image: rec.Image, CreatedAt: rec.CreatedAt,
	}
	first, alive := l.firstProcess(id)
	if first.PID == 0 {
		return info
	}
	info.StartedAt = first.StartedAt
	if alive {
		info.State = runtime.StateRunning
		if l.frozenFor(id) == frozenPause {
			info.State = runtime.StatePaused
		}
		return info
	}
	info.State, info.ExitCode = runtime.StateStopped, -1
	var exit exitRecord
	if err := readRecord(filepath.Join(l.dir(id), exitFile), &exit); err == nil && exit.process == first.process {
		info.ExitCode, info.FinishedAt = exit.Code, exit.At
	}
	return info
}

// List implements runtime.Runtime. ExitCode is -1 where a sandbox ended while
// no daemon was there to see it.
func (l *Local) List(ctx context.Context) ([]runtime.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	found, err := l.records()
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	infos := make([]runtime.Info, len(found))
	for i, rec := range found {
		infos[i] = l.info(rec)
	}
	return infos, nil
}

// Inspect implements runtime.Runtime; see List for ExitCode.
func (l *Local) Inspect(ctx context.Context, id string) (runtime.Info, error) {
	if err := ctx.Err(); err != nil {
		return runtime.Info{}, fmt.Errorf("inspecting %s: %w", id, err)
	}
	rec, err := l.record(id)
	if err != nil {
		return runtime.Info{}, err
	}
	return l.info(rec), nil
}

// live returns the record and first process of a sandbox that runs, frozen or not.
func (l *Local) live(id string) (record, firstRecord, error) {
	rec, err := l.record(id)
	if err != nil {
		return rec, firstRecord{}, err
	}
	first, alive := l.firstProcess(id)
	if !alive {
		return rec, first, fmt.Errorf("sandbox %s: %w", id, runtime.ErrNotRunning)
	}
	return rec, first, nil
}

// errPaused answers what a frozen sandbox cannot do.
func errPaused(id string) error {
	return fmt.Errorf("sandbox %s: %w", id, runtime.ErrPaused)
}
