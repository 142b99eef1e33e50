package recovery

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/runtime"
)

// Purposes of a sandbox, in sandbox.intended.
const (
	PurposeProvision = "provision"
	PurposeRestore   = "restore"
	PurposeRollback  = "rollback"
)

var (
	errNoCheckpoint = errors.New("the workspace still stands and no good checkpoint exists: a blank agent would lose it")
	errBadRestore   = errors.New("checkpoint could not be restored")
)

// restore makes a new sandbox beside the old one, lays the newest checkpoint
// into it that verifies, and continues the harness on that. A blank agent is
// made only where blankAllowed: the old sandbox is gone.
func (c *climb) restore(ctx context.Context, blankAllowed bool) (*Outcome, error) {
	out, err := c.tryRestore(ctx, blankAllowed)
	if err == nil {
		return out, nil
	}
	if c.failed(ctx, Restored, err) {
		return nil, c.last
	}
	return nil, &LostError{Attempts: c.attempts, SandboxLeft: !blankAllowed, last: err}
}

func (c *climb) tryRestore(ctx context.Context, blankAllowed bool) (*Outcome, error) {
	env, err := c.Env(c.Spec)
	if err != nil {
		return nil, err
	}
	candidates, err := c.candidates(ctx)
	if err != nil {
		return nil, err
	}
	if len(candidates) == 0 && (!blankAllowed || c.Checkpoint != nil) {
		return nil, errNoCheckpoint
	}
	purpose := PurposeRestore
	if c.Checkpoint != nil {
		purpose = PurposeRollback
	}
	p, err := c.Provision(ctx, c.rt, c.h, c.Subject, purpose)
	if err != nil {
		return nil, err
	}
	out := &Outcome{Rung: Restored, Live: p.Live, SandboxID: p.Info.SandboxID, Created: &p.Info, Previous: c.Agent.SandboxID}
	err = c.fill(ctx, out, env, candidates, blankAllowed)
	if err != nil {
		p.Live.Close()
		c.Discard(ctx, c.rt, c.Agent, p.Info.SandboxID, err.Error())
		return nil, err
	}
	return out, nil
}

// candidates are the checkpoints worth trying, best first. Those that do not
// verify are left out and noted.
func (c *climb) candidates(ctx context.Context) ([]ledger.Checkpoint, error) {
	if c.Checkpoint != nil {
		if err := c.Store.Verify(ctx, c.Checkpoint.SnapshotRef, c.Checkpoint.SHA256); err != nil {
			return nil, fmt.Errorf("checkpoint of turn %d: %w", c.Checkpoint.Turn, err)
		}
		return []ledger.Checkpoint{*c.Checkpoint}, nil
	}
	all, err := c.Ledger.Checkpoints(ctx, ledger.CheckpointFilter{AgentID: c.Agent.AgentID, State: "kept"})
	if err != nil {
		return nil, fmt.Errorf("listing checkpoints: %w", err)
	}
	return checkpoint.Candidates(all), nil
}

// fill lays the first good checkpoint into the new sandbox and continues on it,
// or starts blank.
func (c *climb) fill(ctx context.Context, out *Outcome, env map[string]string, candidates []ledger.Checkpoint, blankAllowed bool) error {
	for i := range candidates {
		cp := candidates[i]
		hello, err := c.lay(ctx, out.Live, env, cp)
		if err == nil {
			out.Hello, out.Checkpoint = hello, &cp
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, bridge.ErrClosed) {
			return err
		}
		c.attempts = append(c.attempts, ledger.RungAttempt{Rung: string(Restored),
			Error: fmt.Sprintf("checkpoint of turn %d: %s", cp.Turn, err)})
		if !errors.Is(err, bridge.ErrHarness) {
			c.damaged = append(c.damaged, ledger.CheckpointRefPayload{SnapshotRef: cp.SnapshotRef, Reason: err.Error()})
		}
		c.Log.Warn("checkpoint skipped", zap.String("agent", c.Agent.AgentID), zap.Int("turn", cp.Turn), zap.Error(err))
	}
	if !blankAllowed || c.Checkpoint != nil {
		return fmt.Errorf("%w: %w", errBadRestore, errNoCheckpoint)
	}
	if len(candidates) > 0 {
		// What a failed checkpoint left half laid must not look like a home.
		return c.blankAfterFailure(ctx, out, env)
	}
	hello, err := c.start(ctx, out.Live, env, "", live.Expect{})
	if err != nil {
		return err
	}
	out.Hello, out.Blank = hello, true
	return nil
}

// blankAfterFailure starts over in a second new sandbox, because the first one
// holds parts of a checkpoint.
func (c *climb) blankAfterFailure(ctx context.Context, out *Outcome, env map[string]string) error {
	p, err := c.Provision(ctx, c.rt, c.h, c.Subject, PurposeRestore)
	if err != nil {
		return err
	}
	hello, err := c.start(ctx, p.Live, env, "", live.Expect{})
	if err != nil {
		p.Live.Close()
		c.Discard(ctx, c.rt, c.Agent, p.Info.SandboxID, err.Error())
		return err
	}
	out.Live.Close()
	c.Discard(ctx, c.rt, c.Agent, out.SandboxID, "no checkpoint could be laid into it")
	out.Live, out.SandboxID, out.Created = p.Live, p.Info.SandboxID, &p.Info
	out.Hello, out.Blank = hello, true
	return nil
}

func (c *climb) lay(ctx context.Context, a *live.Agent, env map[string]string, cp ledger.Checkpoint) (bridge.Hello, error) {
	if err := c.Store.Verify(ctx, cp.SnapshotRef, cp.SHA256); err != nil {
		return bridge.Hello{}, err
	}
	r, err := c.Store.Open(ctx, cp.SnapshotRef)
	if err != nil {
		return bridge.Hello{}, err
	}
	defer r.Close()
	var paths []string
	if c.Spec.Checkpoint != nil {
		paths = c.Spec.Checkpoint.Paths
	}
	if _, err := a.Unpack(ctx, bridge.UnpackRequest{Paths: paths}, r); err != nil {
		return bridge.Hello{}, err
	}
	return c.start(ctx, a, env, cp.SessionID, live.Expect{SessionID: cp.SessionID, Messages: cp.Messages, Exactly: true})
}

// Provisioned is a new sandbox whose bridge answers; no harness runs in it.
type Provisioned struct {
	Live *live.Agent
	Info runtime.Info
}

// Provision makes a new sandbox for an agent from its setup snapshot: the
// intent is recorded, then the sandbox made, then its bridge awaited. When it
// fails, nothing of it is left, save where the runtime stopped answering.
func (l *Ladder) Provision(ctx context.Context, rt runtime.Runtime, h harness.Harness, s Subject, purpose string) (*Provisioned, error) {
	image, forked, err := l.image(ctx, rt, h, s)
	if err != nil {
		return nil, err
	}
	id, generation, err := l.Intend(ctx, s.Agent, purpose, image)
	if err != nil {
		return nil, fmt.Errorf("recording the intent of a sandbox: %w", err)
	}
	info, err := rt.Create(ctx, runtime.CreateRequest{
		Labels: runtime.Labels{SandboxID: id, RunID: s.Agent.RunID, AgentID: s.Agent.AgentID, Generation: generation},
		Image:  image, CPUMillis: s.Spec.Resources.CPUMillis(), MemoryBytes: s.Spec.Resources.MemoryBytes(),
		Bridge: runtime.Bridge{User: s.Spec.User, Workdir: s.Spec.Workdir},
	})
	if err != nil {
		err = fmt.Errorf("making sandbox %s: %w", id, err)
		l.Discard(ctx, rt, s.Agent, id, err.Error())
		return nil, err
	}
	a, err := live.Await(ctx, rt, id, "", bridgeStart, l.Clock)
	if err != nil {
		err = fmt.Errorf("waiting for the bridge of %s: %w", id, err)
		l.Discard(ctx, rt, s.Agent, id, err.Error())
		return nil, err
	}
	if l.Furnish != nil {
		if err := l.Furnish(ctx, rt, s.Agent, s.Spec, id, forked); err != nil {
			a.Close()
			l.Discard(ctx, rt, s.Agent, id, err.Error())
			return nil, err
		}
	}
	return &Provisioned{Live: a, Info: info}, nil
}

// image is what an agent's sandboxes are made from: the copy of its parent's,
// where it was forked, else its setup snapshot.
func (l *Ladder) image(ctx context.Context, rt runtime.Runtime, h harness.Harness, s Subject) (ref string, forked bool, err error) {
	if s.Agent.ForkImage != "" {
		_, err := rt.Image(ctx, s.Agent.ForkImage)
		if err == nil {
			return s.Agent.ForkImage, true, nil
		}
		if !errors.Is(err, runtime.ErrNotFound) {
			return "", false, fmt.Errorf("looking for the image of a fork: %w", err)
		}
		l.Log.Warn("the image of a fork has vanished: what was inherited outside the home is lost",
			zap.String("agent", s.Agent.AgentID), zap.String("image", s.Agent.ForkImage))
	}
	ref, err = l.Setup.Ensure(ctx, rt, s.Spec, h)
	if err != nil {
		return "", false, fmt.Errorf("setup snapshot: %w", err)
	}
	return ref, false, nil
}

// Discard removes a sandbox that was made and came to nothing, also when the
// climb was called off. What cannot be removed now, the reconciliation finds.
func (l *Ladder) Discard(ctx context.Context, rt runtime.Runtime, a ledger.Agent, sandboxID, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runtime.DefaultCallTimeout)
	defer cancel()
	err := rt.Remove(ctx, sandboxID)
	if err == nil {
		err = l.Abandoned(ctx, a, sandboxID, reason)
	}
	if err != nil {
		l.Log.Warn("cannot remove a sandbox that came to nothing", zap.String("sandbox", sandboxID), zap.Error(err))
	}
}
