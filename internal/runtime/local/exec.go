package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

const (
	// execMark is the variable by which the processes of one command are found.
	execMark = "ALINEO_EXEC"
	// outputGrace is how long a command's output may stay open after its end:
	// something it left running in the background may hold it.
	outputGrace = time.Second
	// As a shell has it.
	exitNotFound, exitNotExecutable = 127, 126
)

// Exec implements runtime.Runtime.
func (l *Local) Exec(ctx context.Context, id string, req runtime.ExecRequest) (int, error) {
	doing := "running a command in " + id
	if len(req.Args) == 0 {
		return 0, fmt.Errorf("%s: no command: %w", doing, runtime.ErrInvalid)
	}
	mark := ids.New("x")
	cmd, err := l.startExec(ctx, id, mark, req)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return refuse(req, err, exitNotFound), nil
	case errors.Is(err, os.ErrPermission):
		return refuse(req, err, exitNotExecutable), nil
	case err != nil:
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		// What it started in turn may have left its process group.
		look := func() ([]stat, error) {
			t, err := readProcesses()
			if err != nil {
				return nil, err
			}
			return t.marked(execMark + "=" + mark), nil
		}
		return 0, errors.Join(fmt.Errorf("%s: %w", doing, ctx.Err()), killAll(context.WithoutCancel(ctx), look))
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return 0, nil
}

// refuse says on the command's standard error why there was no command.
func refuse(req runtime.ExecRequest, err error, code int) int {
	if req.Stderr != nil {
		fmt.Fprintln(req.Stderr, err)
	}
	return code
}

// startExec starts the command. It holds the sandbox's lock meanwhile, so that
// no command is started in a sandbox that is being frozen or ended.
func (l *Local) startExec(ctx context.Context, id, mark string, req runtime.ExecRequest) (*exec.Cmd, error) {
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, _, err := l.live(id)
	if err != nil {
		return nil, err
	}
	if l.frozenFor(id) != "" {
		return nil, errPaused(id)
	}
	more := map[string]string{}
	for k, v := range req.Env {
		more[k] = v
	}
	more[execMark] = mark
	env := l.environ(rec, more)
	path, err := lookPath(req.Args[0], env)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, req.Args[1:]...)
	cmd.Args[0] = req.Args[0]
	cmd.Env, cmd.Dir = env, l.workdir(rec, req.Workdir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = req.Stdin, req.Stdout, req.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if req.User != "" {
		cred, err := credential(req.User)
		if err != nil {
			return nil, err
		}
		if int(cred.Uid) != os.Geteuid() {
			cmd.SysProcAttr.Credential = cred
		}
	}
	// The whole group: a shell's children hold its output open.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputGrace
	return cmd, cmd.Start()
}

// workdir is where a command starts: the given directory, else the sandbox's
// own, else the home.
func (l *Local) workdir(rec record, dir string) string {
	home := l.home(rec.SandboxID)
	for _, d := range [...]string{dir, rec.Bridge.Workdir} {
		if d == "" {
			continue
		}
		if !filepath.IsAbs(d) {
			d = filepath.Join(home, d)
		}
		if _, err := os.Stat(d); err == nil || dir != "" {
			return d // one that was asked for is an error if it is not there
		}
	}
	return home
}

// lookPath finds a command in the sandbox's search path, not in the daemon's.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if st, err := os.Stat(full); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
