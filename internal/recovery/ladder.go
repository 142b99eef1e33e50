// Package recovery decides how an agent comes back: it climbs the ladder of
// rungs, gentlest first, and says what it found and did. It writes nothing of
// that to the ledger itself, save the intent that must stand there before a
// sandbox is made: internal/swarm turns its findings into events and owns the
// agent from then on.
//
// The next rung is tried only after a definite failure of the one before. A
// runtime that does not answer is not a dead agent: Climb then returns
// ErrHeld, and nothing was started in the agent's place.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
)

// Rung is a step of the ladder.
type Rung string

// The rungs, gentlest first.
const (
	Reattached Rung = "reattached"
	Resumed    Rung = "resumed"
	Restarted  Rung = "restarted"
	Restored   Rung = "restored"
)

var (
	// ErrHeld: the runtime does not answer, or not definitely. The agent is
	// neither alive nor dead; ask again later.
	ErrHeld = errors.New("runtime unreachable")
	// ErrLost: every rung failed. The error is a *LostError.
	ErrLost = errors.New("every rung of the ladder failed")
	// ErrAlive: the rung that was asked for failed and the sandbox is alive,
	// so that no further rung was wanted.
	ErrAlive = errors.New("the sandbox is alive and its bridge does not answer")
)

// LostError carries what each rung failed with.
type LostError struct {
	Attempts []ledger.RungAttempt
	// SandboxLeft: the old sandbox still stands, with its workspace.
	SandboxLeft bool
	last        error
}

func (e *LostError) Error() string {
	var b strings.Builder
	b.WriteString(ErrLost.Error())
	for _, a := range e.Attempts {
		fmt.Fprintf(&b, "; %s: %s", a.Rung, a.Error)
	}
	return b.String()
}

// Unwrap returns ErrLost and the last rung's error.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.last} }

// Subject is the agent to be brought back.
type Subject struct {
	Agent ledger.Agent
	Spec  *spec.Spec
	// Known is what a list of the runtime just said of the sandbox; nil to
	// have the ladder ask.
	Known *runtime.Info
	// Gone: a list of the runtime just showed that there is no such sandbox.
	Gone bool
	// Checkpoint, where set, is restored, and no other: a roll back.
	Checkpoint *ledger.Checkpoint
	// Falling is told when the first rung has definitely failed, so that the
	// agent can be shown as recovering while the next ones are tried. May be nil.
	Falling func(error)
}

// Limits says which rungs may be tried.
type Limits struct {
	From Rung // the first one
	// GentleOnly: where the first rung fails and the sandbox is alive, stop
	// with ErrAlive.
	GentleOnly bool
}

// Outcome is what a climb found and did.
type Outcome struct {
	Rung      Rung
	Live      *live.Agent // nil for a paused sandbox, which stays frozen
	Hello     bridge.Hello
	SandboxID string
	// Previous is the sandbox that was replaced; still there, to be let go.
	Previous   string
	Created    *runtime.Info // of the new sandbox
	Transport  string
	Checkpoint *ledger.Checkpoint
	Blank      bool
	Attempts   []ledger.RungAttempt
	Damaged    []ledger.CheckpointRefPayload // checkpoints that were skipped
	Took       time.Duration
}

// Ladder climbs. It is safe for concurrent use by different agents.
type Ladder struct {
	Ledger *ledger.Ledger // read, never written
	Setup  *setup.Builder
	Store  checkpoint.Store
	Clock  clockwork.Clock
	Log    *zap.Logger
	// Intend records the intent to make a sandbox and returns its id and
	// generation; Abandoned records that it was removed again.
	Intend    func(ctx context.Context, a ledger.Agent, purpose, image string) (id string, generation int, err error)
	Abandoned func(ctx context.Context, a ledger.Agent, sandboxID, reason string) error
	// Env resolves the spec's environment.
	Env func(s *spec.Spec) (map[string]string, error)
	// Furnish completes a new sandbox before its harness starts; forked says
	// that it was made from the copy of another agent's. Places are variables
	// that name places in it. Both may be nil.
	Furnish func(ctx context.Context, rt runtime.Runtime, a ledger.Agent, s *spec.Spec, sandboxID string, forked bool) error
	Places  func(ctx context.Context, rt runtime.Runtime, a ledger.Agent, sandboxID string) (map[string]string, error)

	HelloTimeout time.Duration // of a bridge that should be running
	StartTimeout time.Duration // of a harness until it tells its session
}

// bridgeStart bounds how long a bridge may take from being started to its
// hello: an exec of the binary, on a loaded machine.
const bridgeStart = 30 * time.Second

// climb is one climb in progress.
type climb struct {
	*Ladder
	Subject
	rt       runtime.Runtime
	h        harness.Harness
	attempts []ledger.RungAttempt
	damaged  []ledger.CheckpointRefPayload
	last     error
	epoch    string // of the bridge that answered; empty where none did
}

// Climb brings an agent back on the first rung, from l.From on, that holds.
// Errors: ErrHeld, ErrLost (a *LostError), ErrAlive, *spec.UnsetVarError, and
// the context's. A failed rung has cleaned up what it made.
func (l *Ladder) Climb(ctx context.Context, rt runtime.Runtime, h harness.Harness, s Subject, lim Limits) (*Outcome, error) {
	start := l.Clock.Now()
	c := &climb{Ladder: l, Subject: s, rt: rt, h: h}
	out, err := c.climb(ctx, lim)
	if err != nil {
		return nil, c.held(ctx, err)
	}
	out.Attempts, out.Damaged, out.Took = c.attempts, c.damaged, l.Clock.Since(start)
	out.Transport = rt.Transport()
	return out, nil
}

// held tells what is not definite by its kind.
func (c *climb) held(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("climbing: %w", context.Cause(ctx))
	}
	if errors.Is(err, runtime.ErrUnreachable) && !errors.Is(err, ErrHeld) {
		return fmt.Errorf("%w: %w", ErrHeld, err)
	}
	return err
}

func (c *climb) climb(ctx context.Context, lim Limits) (*Outcome, error) {
	info, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	if c.Checkpoint != nil {
		return c.restore(ctx, true)
	}
	if info != nil {
		out, err := c.climbStanding(ctx, lim, info)
		if out != nil || err != nil {
			return out, err
		}
		// It may have ended, or gone, under our hands: then what was tried
		// failed for that reason, and the rung for that state is due.
		before := info.State
		c.Known = nil
		if info, err = c.look(ctx); err != nil {
			return nil, err
		}
		if info != nil && info.State == runtime.StateStopped && before != info.State {
			out, err := c.climbStanding(ctx, lim, info)
			if out != nil || err != nil {
				return out, err
			}
		}
	}
	return c.restore(ctx, info == nil)
}

// climbStanding tries the rungs that need the agent's own sandbox. Neither an
// outcome nor an error means that none of them held.
func (c *climb) climbStanding(ctx context.Context, lim Limits, info *runtime.Info) (*Outcome, error) {
	switch info.State {
	case runtime.StatePaused:
		if lim.From == Reattached {
			return &Outcome{Rung: Reattached, SandboxID: info.SandboxID}, nil
		}
		if err := c.rt.Unpause(ctx, info.SandboxID); err != nil && c.failed(ctx, Resumed, err) {
			return nil, c.last
		}
		fallthrough
	case runtime.StateRunning:
		if lim.From == Reattached {
			out, err := c.reattach(ctx, info)
			if err == nil {
				return out, nil
			}
			if c.failed(ctx, Reattached, err) {
				return nil, c.last
			}
			if lim.GentleOnly {
				return nil, fmt.Errorf("%w: %w", ErrAlive, err)
			}
		}
		return c.continued(ctx, Resumed, info, c.rt.Kick)
	default:
		if !c.rt.Capabilities().RestartInPlace {
			c.failed(ctx, Restarted, runtime.ErrUnsupported)
			return nil, nil
		}
		return c.continued(ctx, Restarted, info, c.rt.Start)
	}
}

// failed notes that a rung failed, and reports whether that was not definite,
// so that the climb must end with c.last.
func (c *climb) failed(ctx context.Context, rung Rung, err error) bool {
	c.last = err
	if ctx.Err() != nil || errors.Is(err, runtime.ErrUnreachable) {
		return true
	}
	var unset *spec.UnsetVarError
	if errors.As(err, &unset) {
		return true // no rung below could do without it
	}
	if len(c.attempts) == 0 && c.Falling != nil {
		c.Falling(err)
	}
	c.attempts = append(c.attempts, ledger.RungAttempt{Rung: string(rung), Error: err.Error()})
	c.Log.Info("rung failed", zap.String("agent", c.Agent.AgentID), zap.String("sandbox", c.Agent.SandboxID),
		zap.String("rung", string(rung)), zap.Error(err))
	return false
}

// look finds the agent's sandbox; nil where there is definitely none.
func (c *climb) look(ctx context.Context) (*runtime.Info, error) {
	switch {
	case c.Agent.SandboxID == "" || c.Gone:
		return nil, nil
	case c.Known != nil:
		return c.Known, nil
	}
	info, err := c.rt.Inspect(ctx, c.Agent.SandboxID)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: looking for sandbox %s: %w", ErrHeld, c.Agent.SandboxID, err)
	}
	return &info, nil
}

func (c *climb) reattach(ctx context.Context, info *runtime.Info) (*Outcome, error) {
	a, err := live.Connect(ctx, c.rt, info.SandboxID, c.HelloTimeout)
	if err != nil {
		return nil, err
	}
	hello := a.Hello()
	c.epoch = hello.Epoch
	if !live.Ready(hello) {
		a.Close()
		return nil, fmt.Errorf("%w: it is %s", bridge.ErrHarness, describe(hello))
	}
	return &Outcome{Rung: Reattached, Live: a, Hello: hello, SandboxID: info.SandboxID}, nil
}

func describe(h bridge.Hello) string {
	if h.Exit == nil {
		return string(h.Harness.State)
	}
	return string(h.Harness.State) + ", " + h.Exit.String()
}

// continued brings the bridge up by way of begin (a kick, a start) and the
// harness on the session it had.
func (c *climb) continued(ctx context.Context, rung Rung, info *runtime.Info, begin func(context.Context, string) error) (*Outcome, error) {
	out, err := c.tryContinued(ctx, rung, info, begin)
	if err == nil {
		return out, nil
	}
	if c.failed(ctx, rung, err) {
		return nil, c.last
	}
	return nil, nil
}

func (c *climb) tryContinued(ctx context.Context, rung Rung, info *runtime.Info, begin func(context.Context, string) error) (*Outcome, error) {
	env, err := c.Env(c.Spec)
	if err != nil {
		return nil, err
	}
	if rung == Resumed && len(c.attempts) == 0 {
		// The bridge that is about to be killed must not be taken for the next.
		if a, err := live.Connect(ctx, c.rt, info.SandboxID, c.HelloTimeout); err == nil {
			c.epoch = a.Hello().Epoch
			a.Close()
		}
	}
	if err := begin(ctx, info.SandboxID); err != nil {
		return nil, fmt.Errorf("starting the bridge: %w", err)
	}
	for again := true; ; again = false {
		a, err := live.Await(ctx, c.rt, info.SandboxID, c.epoch, bridgeStart, c.Clock)
		if err != nil {
			return nil, err
		}
		hello, err := c.start(ctx, a, env, c.Agent.SessionID, live.Expect{SessionID: c.Agent.SessionID, Messages: c.Agent.Messages})
		if err == nil {
			return &Outcome{Rung: rung, Live: a, Hello: hello, SandboxID: info.SandboxID}, nil
		}
		a.Close()
		if !again || !errors.Is(err, bridge.ErrClosed) || ctx.Err() != nil {
			return nil, err
		}
		// A bridge that was too slow for a hello, and so is not known by its
		// epoch, may still have answered before begin ended it.
		c.epoch = a.Hello().Epoch
	}
}

// start starts the harness: continued on a session, or fresh where session is
// empty.
func (c *climb) start(ctx context.Context, a *live.Agent, env map[string]string, session string, want live.Expect) (bridge.Hello, error) {
	return c.startHarness(ctx, c.rt, a, c.Subject, c.h, env, session, want)
}

// StartNew starts the harness of an agent's first sandbox, on a session of its
// own.
func (l *Ladder) StartNew(ctx context.Context, rt runtime.Runtime, a *live.Agent, s Subject, h harness.Harness, env map[string]string) (bridge.Hello, error) {
	return l.startHarness(ctx, rt, a, s, h, env, "", live.Expect{})
}

// startHarness starts an agent's harness in a connected sandbox: continued on a
// session, or fresh where session is empty.
func (l *Ladder) startHarness(ctx context.Context, rt runtime.Runtime, a *live.Agent, s Subject, h harness.Harness, env map[string]string, session string, want live.Expect) (bridge.Hello, error) {
	if l.Places != nil {
		places, err := l.Places(ctx, rt, s.Agent, a.SandboxID())
		if err != nil {
			return bridge.Hello{}, err
		}
		if len(places) > 0 {
			env = maps.Clone(env)
			maps.Copy(env, places)
		}
	}
	startCtx, cancel := context.WithTimeout(ctx, l.StartTimeout)
	defer cancel()
	hello, err := a.Start(startCtx, bridge.StartRequest{
		Harness: h.Name(),
		Launch: harness.Launch{Continue: session != "", SessionID: session, Provider: s.Spec.Provider,
			Model: s.Spec.Model, Workdir: s.Spec.Workdir},
		Env: env,
	}, want)
	if err != nil && ctx.Err() == nil && startCtx.Err() != nil {
		err = fmt.Errorf("%w: %s told no session within %s: %w", bridge.ErrHarness, h.Name(), l.StartTimeout, err)
		return hello, errors.Join(err, endHung(ctx, a))
	}
	return hello, err
}

// endHung ends a harness that was started and told no session. It would go on,
// and no archive is laid into a home below a running harness.
func endHung(ctx context.Context, a *live.Agent) error {
	const grace = time.Second
	ctx, cancel := context.WithTimeout(ctx, bridgeStart)
	defer cancel()
	if err := a.StopHarness(ctx, grace); err != nil {
		return fmt.Errorf("stopping it: %w", err)
	}
	return nil
}
