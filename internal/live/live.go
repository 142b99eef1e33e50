// Package live is a live agent: its sandbox, the bridge in it and the harness
// below that, taken as one thing that takes turns and yields events. It is
// what every rung of the recovery ladder returns.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/runtime"
)

// ErrSession: the harness runs, but its session is not the one the ledger
// knows.
var ErrSession = errors.New("session is not the expected one")

// dialPause is the time between two tries to reach a bridge that is starting.
// A bridge takes some tens of milliseconds to listen.
const dialPause = 20 * time.Millisecond

// Agent is one connected sandbox. Its methods are safe for concurrent use,
// as those of the bridge's client are.
type Agent struct {
	*bridge.Client
	runtime   runtime.Runtime
	sandboxID string
}

// Connect reaches the bridge that runs in a sandbox and waits for its hello,
// at most timeout (0: bridge.HelloTimeout). Errors: bridge.ErrNoAnswer,
// runtime.ErrNotRunning, runtime.ErrUnreachable and others of these packages.
func Connect(ctx context.Context, rt runtime.Runtime, sandboxID string, timeout time.Duration) (*Agent, error) {
	if timeout <= 0 {
		timeout = bridge.HelloTimeout
	}
	helloCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := rt.Dial(helloCtx, sandboxID)
	if err != nil {
		return nil, answerless(ctx, fmt.Errorf("dialling the bridge of %s: %w", sandboxID, err))
	}
	client, err := bridge.Connect(helloCtx, conn, sandboxID)
	if err != nil {
		conn.Close()
		return nil, answerless(ctx, fmt.Errorf("greeting the bridge of %s: %w", sandboxID, err))
	}
	return &Agent{Client: client, runtime: rt, sandboxID: sandboxID}, nil
}

// answerless turns the end of our own time limit into the bridge's silence;
// the end of the caller's context stays what it is.
func answerless(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", bridge.ErrNoAnswer, err)
	}
	return err
}

// Await connects to a bridge that is just being started: it tries again until
// the bridge answers or timeout has passed. A bridge of the epoch past, where
// that is given, is the one being replaced: it may still answer, and is not
// waited for.
func Await(ctx context.Context, rt runtime.Runtime, sandboxID, past string, timeout time.Duration, clock clockwork.Clock) (*Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		a, err := Connect(ctx, rt, sandboxID, 0)
		if err == nil && (past == "" || a.Hello().Epoch != past) {
			return a, nil
		}
		if err == nil {
			a.Close()
			err = fmt.Errorf("%w: the bridge of %s that is to be replaced still runs", bridge.ErrNoAnswer, sandboxID)
		}
		if errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, runtime.ErrNotFound) || errors.Is(err, bridge.ErrVersion) {
			return nil, err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", bridge.ErrNoAnswer, last)
		case <-clock.After(dialPause):
		}
	}
}

// Visit takes in a program of the sandbox that waits to speak with the daemon:
// bridge.ErrNobody where none does. The caller closes it.
func (a *Agent) Visit(ctx context.Context) (io.ReadWriteCloser, error) {
	conn, err := a.runtime.Dial(ctx, a.sandboxID)
	if err != nil {
		return nil, fmt.Errorf("dialling the bridge of %s: %w", a.sandboxID, err)
	}
	return bridge.Visit(ctx, conn, a.sandboxID)
}

// SandboxID names the sandbox.
func (a *Agent) SandboxID() string { return a.sandboxID }

// Expect says which session a continued harness must come back with. The zero
// value expects nothing.
type Expect struct {
	SessionID string
	Messages  int
	// Exactly: the count must be Messages, as after the restore of a
	// checkpoint. Otherwise an interrupted turn may have added some.
	Exactly bool
}

// Start starts the harness and holds its session against what is expected:
// ErrSession where it differs, in which case the harness is stopped again.
func (a *Agent) Start(ctx context.Context, req bridge.StartRequest, want Expect) (bridge.Hello, error) {
	hello, err := a.StartHarness(ctx, req)
	if err != nil {
		return hello, fmt.Errorf("starting %s: %w", req.Harness, err)
	}
	got := hello.Harness
	if want.SessionID == "" || got.SessionID == want.SessionID &&
		(got.Messages == want.Messages || !want.Exactly && got.Messages > want.Messages) {
		return hello, nil
	}
	err = fmt.Errorf("%w: want %s with %d messages, got %s with %d", ErrSession,
		want.SessionID, want.Messages, got.SessionID, got.Messages)
	const grace = time.Second
	if stopErr := a.StopHarness(ctx, grace); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stopping %s: %w", req.Harness, stopErr))
	}
	return hello, err
}

// Ready reports whether the harness of a hello can take turns or is taking one.
func Ready(h bridge.Hello) bool {
	return h.Harness.State == harness.StateIdle || h.Harness.State == harness.StateBusy
}

// Pack streams an archive of the home directory, over a connection of its own.
func (a *Agent) Pack(ctx context.Context, req bridge.PackRequest) (io.ReadCloser, error) {
	conn, err := a.runtime.Dial(ctx, a.sandboxID)
	if err != nil {
		return nil, fmt.Errorf("dialling the bridge of %s: %w", a.sandboxID, err)
	}
	r, err := bridge.Pack(ctx, conn, a.sandboxID, req)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("asking %s for its home: %w", a.sandboxID, err)
	}
	return r, nil
}

// Unpack makes the home directory exactly what the archive holds. The harness
// must not be running.
func (a *Agent) Unpack(ctx context.Context, req bridge.UnpackRequest, r io.Reader) (bridge.ArchiveStats, error) {
	conn, err := a.runtime.Dial(ctx, a.sandboxID)
	if err != nil {
		return bridge.ArchiveStats{}, fmt.Errorf("dialling the bridge of %s: %w", a.sandboxID, err)
	}
	defer conn.Close()
	stats, err := bridge.Unpack(ctx, conn, a.sandboxID, req, r)
	if err != nil {
		return stats, fmt.Errorf("laying an archive into %s: %w", a.sandboxID, err)
	}
	return stats, nil
}
