package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Create implements runtime.Runtime.
func (l *Local) Create(ctx context.Context, req runtime.CreateRequest) (runtime.Info, error) {
	if err := req.Check(); err != nil {
		return runtime.Info{}, err
	}
	unlock, err := l.locks.Lock(ctx, req.SandboxID)
	if err != nil {
		return runtime.Info{}, err
	}
	defer unlock()

	rec, err := l.lookup(req.SandboxID)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		if rec, err = l.make(ctx, req); err != nil {
			return runtime.Info{}, fmt.Errorf("creating %s: %w", req.SandboxID, err)
		}
	case err != nil:
		return runtime.Info{}, err
	case rec.Instance != l.opts.Instance || rec.Labels != req.Labels:
		return runtime.Info{}, fmt.Errorf("creating %s: %s: %w", req.SandboxID, l.dir(req.SandboxID), runtime.ErrForeign)
	}
	before := l.info(rec)
	if before.State == runtime.StateRunning || before.State == runtime.StatePaused {
		return before, nil
	}
	if err := l.start(ctx, rec); err != nil {
		// One that never ran holds nothing that could be lost.
		if before.State == runtime.StateCreated {
			err = errors.Join(err, l.discard(l.dir(req.SandboxID), req.SandboxID))
		}
		return runtime.Info{}, fmt.Errorf("creating %s: %w", req.SandboxID, err)
	}
	return l.info(rec), nil
}

// make makes the directory of a sandbox: aside, and then in one step.
func (l *Local) make(ctx context.Context, req runtime.CreateRequest) (_ record, err error) {
	id := req.SandboxID
	if err := l.sweep(l.sandboxesDir(), id+"."); err != nil {
		return record{}, err
	}
	aside := filepath.Join(l.sandboxesDir(), l.newName(id)+"."+ids.New("x"))
	defer func() {
		if err != nil {
			err = errors.Join(err, removeTree(aside))
		}
	}()
	home := filepath.Join(aside, "home")
	if err := os.Mkdir(aside, 0o755); err != nil {
		return record{}, err
	}
	if req.Image == "" {
		err = os.Mkdir(home, 0o700)
	} else {
		err = l.fill(ctx, home, req.Image)
	}
	if err != nil {
		return record{}, err
	}
	if req.Bridge.User != "" && os.Geteuid() == 0 {
		cred, err := credential(req.Bridge.User)
		if err != nil {
			return record{}, err
		}
		if err := os.Chown(home, int(cred.Uid), int(cred.Gid)); err != nil {
			return record{}, err
		}
	}
	rec := record{Instance: l.opts.Instance, CreatedAt: l.clock.Now().UTC(), CreateRequest: req}
	if err := writeRecord(filepath.Join(aside, recordFile), rec); err != nil {
		return record{}, err
	}
	failpoint.Hit("local.create")
	if err := ctx.Err(); err != nil {
		return record{}, err
	}
	if err := os.Rename(aside, l.dir(id)); err != nil {
		return record{}, err
	}
	failpoint.Hit("local.created")
	return rec, runtime.SyncDir(l.sandboxesDir())
}

// start starts the first process of a sandbox that does not run. The caller
// holds its lock.
func (l *Local) start(ctx context.Context, rec record) error {
	id := rec.SandboxID
	// What an earlier life left would fight with this one: also a first
	// process whose pid was not recorded any more before a crash.
	if err := l.killRest(ctx, id); err != nil {
		return fmt.Errorf("ending what an earlier start left: %w", err)
	}
	if err := l.unmarkFrozen(id); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	pid, err := l.spawn(rec)
	if err != nil {
		return err
	}
	failpoint.Hit("local.spawned")
	first := firstRecord{process: process{PID: pid, BootID: bootID()}, StartedAt: l.clock.Now().UTC()}
	s, err := readStat(pid)
	if err == nil {
		first.Start = s.start
		err = writeRecord(filepath.Join(l.dir(id), pidFile), first)
	}
	if err == nil {
		_, err = l.watch(id, first)
	}
	if err != nil {
		// Unrecorded it would live on, out of everyone's sight.
		return errors.Join(err, l.killRest(context.WithoutCancel(ctx), id))
	}
	failpoint.Hit("local.started")
	l.publish(runtime.Event{Type: runtime.EventStarted, SandboxID: id, Time: first.StartedAt, ExitCode: -1})
	return nil
}

// spawn runs init in a session of its own, so that no signal meant for the
// daemon reaches it, and with nothing that ties it to the daemon's life.
func (l *Local) spawn(rec record) (pid int, err error) {
	binary, err := l.installed()
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(l.dir(rec.SandboxID), logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	init := runtime.InitCommand{
		SandboxID: rec.SandboxID, Dir: l.dir(rec.SandboxID), Home: l.home(rec.SandboxID),
		User: rec.Bridge.User, Workdir: rec.Bridge.Workdir,
	}
	p, err := os.StartProcess(binary, append([]string{binary}, init.Args()...), &os.ProcAttr{
		Dir: init.Home, Env: l.environ(rec, nil), Files: []*os.File{null, log, log},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	pid = p.Pid
	return pid, p.Release() // its end is awaited, and asked for, by watch
}

// environ is the environment of a process of the sandbox. Of the daemon's own
// only the search path and the language pass: the rest may hold secrets.
func (l *Local) environ(rec record, more map[string]string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG": "C.UTF-8",
	}
	for k := range env {
		if v := os.Getenv(k); v != "" {
			env[k] = v
		}
	}
	env["HOME"] = l.home(rec.SandboxID)
	maps.Copy(env, rec.Env)
	maps.Copy(env, more)
	// Last, for the sandbox's processes are found by it.
	env[sandboxEnv] = rec.SandboxID
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// credential resolves a name or uid[:gid].
func credential(name string) (*syscall.Credential, error) {
	who, group, _ := strings.Cut(name, ":")
	found, err := user.Lookup(who)
	if err != nil {
		found, err = user.LookupId(who)
	}
	if err != nil {
		uid, numErr := strconv.ParseUint(who, 10, 32)
		if numErr != nil {
			return nil, fmt.Errorf("user %q: %w: %w", name, runtime.ErrInvalid, err)
		}
		// A number needs no entry in the password file; its group is the same.
		found = &user.User{Gid: strconv.FormatUint(uid, 10), Uid: strconv.FormatUint(uid, 10)}
	}
	if group == "" {
		group = found.Gid
	} else if g, err := user.LookupGroup(group); err == nil {
		group = g.Gid
	}
	uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(group, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("user %q: %w: %w", name, runtime.ErrInvalid, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
