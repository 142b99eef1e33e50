package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/pkg/stdcopy"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Transport implements runtime.Runtime. Until the engine has answered once,
// auto is the guess that its address allows.
func (d *Docker) Transport() string { return d.transport.Load().(string) }

// settleTransport finds out once whether a socket in a mounted directory joins
// the two sides: it does if engine and daemon share a kernel. Docker Desktop
// offers a unix socket too, but its engine is in a virtual machine.
func (d *Docker) settleTransport(ctx context.Context) error {
	if d.settled.Load() {
		return nil
	}
	d.transportMu.Lock()
	defer d.transportMu.Unlock()
	if d.settled.Load() {
		return nil
	}
	var engine system.Info
	err := d.call(ctx, "asking the engine for its host", func(ctx context.Context) (err error) {
		engine, err = d.cli.Info(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var here unix.Utsname
	if err := unix.Uname(&here); err != nil {
		return fmt.Errorf("asking for the kernel's release: %w", err)
	}
	kernel := unix.ByteSliceToString(here.Release[:])
	transport := TransportSocket
	if engine.KernelVersion != kernel || strings.Contains(engine.OperatingSystem, "Docker Desktop") {
		transport = TransportExec
	}
	d.transport.Store(transport)
	d.settled.Store(true)
	d.log.Info("transport to bridges chosen", zap.String("transport", transport),
		zap.String("engineKernel", engine.KernelVersion), zap.String("engineSystem", engine.OperatingSystem))
	return nil
}

// Dial implements runtime.Runtime. Over the socket it asks the engine nothing
// about a sandbox that was listed before, unless the connection fails.
func (d *Docker) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if !ids.Valid(ids.Sandbox, id) {
		return nil, fmt.Errorf("dialling %q: %w", id, runtime.ErrNotFound)
	}
	if err := d.settleTransport(ctx); err != nil {
		return nil, err
	}
	if d.Transport() == TransportExec {
		return d.dialExec(ctx, id)
	}
	if _, known := d.known.Load(id); !known {
		if _, err := d.Inspect(ctx, id); err != nil {
			return nil, err
		}
	}
	conn, err := runtime.DialSocket(ctx, d.sandboxDir(id))
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dialling %s: %w", id, ctx.Err())
	}
	info, raw, lookErr := d.inspect(ctx, id)
	switch {
	case lookErr != nil:
		return nil, lookErr
	case info.State == runtime.StateRunning && !mountsDir(raw):
		// It was made while the transport was exec.
		return d.dialExec(ctx, id)
	}
	return nil, fmt.Errorf("dialling %s (%s): %w: %w", id, info.State, runtime.ErrNotRunning, err)
}

// mountsDir says whether the container's directory is one of the host.
func mountsDir(raw container.InspectResponse) bool {
	for _, m := range raw.Mounts {
		if m.Destination == guestDir {
			return m.Type == "bind"
		}
	}
	return false
}

// dialExec joins the bridge by way of a process in the container that copies
// between its standard streams and the socket.
func (d *Docker) dialExec(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	handle, err := d.running(ctx, id)
	if err != nil {
		return nil, err
	}
	execID, hijacked, err := d.attach(ctx, handle, id, container.ExecOptions{
		User: "0:0", AttachStdin: true, AttachStdout: true, AttachStderr: true,
		WorkingDir: "/",
		Cmd:        []string{guestBinary, runtime.BridgeCommand, "dial", "--dir", guestDir},
	})
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	s := &execStream{hijacked: hijacked, out: r, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		said := &tail{max: 512}
		n, err := stdcopy.StdCopy(w, said, hijacked.Reader)
		w.CloseWithError(d.execEnd(execID, id, n, said.String(), err))
	}()
	return s, nil
}

// execEnd says why a stream ended. One that ended before a single byte came
// means that there was no bridge to speak with; otherwise it is an EOF.
func (d *Docker) execEnd(execID, id string, n int64, said string, err error) error {
	if err != nil || n > 0 {
		return err
	}
	ended, inspectErr := d.inspectExec(d.stop, execID)
	if inspectErr != nil {
		return inspectErr
	}
	if ended.ExitCode != 0 {
		return fmt.Errorf("dialling %s: %w: exit code %d: %s", id, runtime.ErrNotRunning, ended.ExitCode, said)
	}
	return nil
}

// attach creates a command in the container and starts it with its streams
// attached.
func (d *Docker) attach(ctx context.Context, handle, id string, opts container.ExecOptions) (execID string, _ types.HijackedResponse, err error) {
	var hijacked types.HijackedResponse
	err = d.call(ctx, "running a command in "+id, func(ctx context.Context) error {
		created, err := d.cli.ContainerExecCreate(ctx, handle, opts)
		if err != nil {
			return err
		}
		execID = created.ID
		attaching, release := watched(ctx)
		defer release()
		hijacked, err = d.cli.ContainerExecAttach(attaching, execID, container.ExecAttachOptions{})
		if err != nil && ctx.Err() != nil {
			return ctx.Err() // what the closing of the connection led to
		}
		return err
	})
	if cerrdefs.IsConflict(err) {
		// It was running a moment ago: it has stopped or was frozen since.
		if _, lookErr := d.running(ctx, id); lookErr != nil {
			return "", hijacked, lookErr
		}
	}
	return execID, hijacked, err
}

func (d *Docker) inspectExec(ctx context.Context, execID string) (container.ExecInspect, error) {
	var ended container.ExecInspect
	err := d.call(ctx, "inspecting a command", func(ctx context.Context) (err error) {
		ended, err = d.cli.ContainerExecInspect(ctx, execID)
		return err
	})
	return ended, err
}

// execStream is the hijacked connection of a command as one stream.
type execStream struct {
	hijacked types.HijackedResponse
	out      *io.PipeReader
	done     chan struct{} // closed when nothing copies into out any more
	once     sync.Once
}

// Read reads what the command wrote to its standard output.
func (s *execStream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write writes to the command's standard input.
func (s *execStream) Write(p []byte) (int, error) { return s.hijacked.Conn.Write(p) }

// CloseWrite ends the command's standard input, as a socket's would.
func (s *execStream) CloseWrite() error { return s.hijacked.CloseWrite() }

// Close ends the stream; the command sees its input end and exits.
func (s *execStream) Close() error {
	s.once.Do(func() {
		s.hijacked.Close()
		s.out.CloseWithError(io.ErrClosedPipe)
		<-s.done
	})
	return nil
}

// tail keeps the last bytes written to it.
type tail struct {
	max  int
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.max; over > 0 {
		t.kept = t.kept[over:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.kept)) }

var errExecLost = errors.New("the engine no longer knows the command")
