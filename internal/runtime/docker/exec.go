package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// execMark is the variable by which the processes of one command are found
// again: the engine has no call that ends a command.
const execMark = "ALINEO_EXEC"

// Exec implements runtime.Runtime.
func (d *Docker) Exec(ctx context.Context, id string, req runtime.ExecRequest) (int, error) {
	if len(req.Args) == 0 {
		return 0, fmt.Errorf("running a command in %s: no command: %w", id, runtime.ErrInvalid)
	}
	handle, err := d.running(ctx, id)
	if err != nil {
		return 0, err
	}
	mark := execMark + "=" + ids.New("x")
	env := []string{mark}
	for k, v := range req.Env {
		env = append(env, k+"="+v)
	}
	execID, hijacked, err := d.attach(ctx, handle, id, container.ExecOptions{
		User: req.User, Env: env, WorkingDir: req.Workdir, Cmd: append([]string{guestBinary}, runtime.RunArgs(req.Args)...),
		AttachStdin: req.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		if ctx.Err() != nil && execID != "" {
			// It may have been started by the request whose answer was not awaited.
			err = errors.Join(err, d.killExec(ctx, handle, id, execID, mark))
		}
		return 0, err
	}
	defer hijacked.Close()
	if req.Stdin != nil {
		// Not awaited: a read of the caller's may never end, and the write
		// fails as soon as the connection is closed. See ExecRequest.Stdin.
		go func() {
			_, _ = io.Copy(hijacked.Conn, req.Stdin)
			_ = hijacked.CloseWrite()
		}()
	}
	copied := make(chan error, 1)
	go func() {
		_, err := stdcopy.StdCopy(orDiscard(req.Stdout), orDiscard(req.Stderr), hijacked.Reader)
		copied <- err
	}()
	select {
	case err = <-copied:
	case <-ctx.Done():
		err := d.killExec(ctx, handle, id, execID, mark)
		hijacked.Close()
		<-copied
		return 0, errors.Join(fmt.Errorf("running a command in %s: %w", id, ctx.Err()), err)
	}
	if err != nil {
		return 0, explain(ctx, "reading a command's output from "+id, err)
	}
	return d.exitCode(ctx, id, execID)
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// exitCode waits for the command's end: its output may end earlier, and the
// engine takes note of its exit a little later.
func (d *Docker) exitCode(ctx context.Context, id, execID string) (int, error) {
	for {
		ended, err := d.inspectExec(ctx, execID)
		if errors.Is(err, runtime.ErrNotFound) {
			// With the sandbox, its commands are gone.
			return 0, fmt.Errorf("running a command in %s: %w: %w", id, errExecLost, runtime.ErrNotRunning)
		}
		if err != nil {
			return 0, err
		}
		if !ended.Running {
			return ended.ExitCode, nil
		}
		select {
		case <-d.clock.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("running a command in %s: %w", id, ctx.Err())
		}
	}
}

// killExec ends a command whose caller has left: every process that bears its
// mark. From the host where that can see them, else with the sandbox's shell.
func (d *Docker) killExec(ctx context.Context, handle, id, execID, mark string) error {
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for {
		ended, err := d.inspectExec(fresh, execID)
		if errors.Is(err, runtime.ErrNotFound) || (err == nil && !ended.Running && ended.Pid != 0) {
			return nil
		}
		if err != nil {
			return err
		}
		if killMarked(mark) == 0 && ended.Pid != 0 {
			err := d.call(fresh, "ending a command in "+id, func(ctx context.Context) error {
				killer, err := d.cli.ContainerExecCreate(ctx, handle, container.ExecOptions{
					User: "0:0",
					Cmd:  []string{"/bin/sh", "-c", killScript, "sh", mark},
				})
				if err != nil {
					return err
				}
				return d.cli.ContainerExecStart(ctx, killer.ID, container.ExecStartOptions{Detach: true})
			})
			if err != nil {
				return err
			}
		}
		select {
		case <-d.clock.After(20 * time.Millisecond):
		case <-fresh.Done():
			return fmt.Errorf("ending a command in %s: %w", id, fresh.Err())
		}
	}
}

const killScript = `for p in /proc/[0-9]*; do
	if [ "${p#/proc/}" != $$ ] && grep -q -F -- "$1" "$p/environ" 2>/dev/null; then kill -9 "${p#/proc/}"; fi
done`

// killMarked kills the processes of this machine whose environment holds the
// mark, and says how many there were. The mark is random: no process of
// another container, or of another command, has it. It finds none where the
// engine runs elsewhere or this process may not look.
func killMarked(mark string) (found int) {
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return 0
	}
	for _, path := range environs {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
			found++
		}
	}
	return found
}
