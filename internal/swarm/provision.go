package swarm

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/telemetry"
)

// beginProvision makes the agent's first sandbox and starts its harness.
func (o *owner) beginProvision() {
	sub := recovery.Subject{Agent: o.row, Spec: o.spec}
	o.begin("provision", o.s.Provisioning, func(ctx context.Context) func() {
		select {
		case o.s.climbs <- struct{}{}:
			defer func() { <-o.s.climbs }()
		case <-ctx.Done():
			return func() {}
		}
		p, hello, err := o.provision(ctx, sub)
		return func() {
			switch {
			case err == nil:
				o.provisioned(p, hello)
			case o.s.ctx.Err() != nil || o.row.StopMode != "":
			default:
				o.notProvisioned(err)
			}
		}
	})
}

func (o *owner) provision(ctx context.Context, sub recovery.Subject) (*recovery.Provisioned, bridge.Hello, error) {
	env, err := o.s.env(o.spec)
	if err != nil {
		return nil, bridge.Hello{}, err
	}
	p, err := o.s.ladder.Provision(ctx, o.rt, o.h, sub, recovery.PurposeProvision)
	if err != nil {
		return nil, bridge.Hello{}, err
	}
	hit("swarm.sandbox-created")
	hello, err := o.s.ladder.StartNew(ctx, o.rt, p.Live, sub, o.h, env)
	if err != nil {
		p.Live.Close()
		o.s.ladder.Discard(ctx, o.rt, sub.Agent, p.Info.SandboxID, err.Error())
		return nil, hello, err
	}
	return p, hello, nil
}

func (o *owner) provisioned(p *recovery.Provisioned, hello bridge.Hello) {
	id := p.Info.SandboxID
	hit("swarm.before-provisioned")
	err := o.append(
		ledger.Entry{SandboxID: id, Event: ledger.SandboxCreated, Payload: ledger.SandboxCreatedPayload{Handle: p.Info.Handle, Transport: o.rt.Transport()}},
		ledger.Entry{SandboxID: id, Event: ledger.AgentProvisioned, Payload: ledger.AgentProvisionedPayload{SandboxID: id,
			SessionID: hello.Harness.SessionID, Messages: hello.Harness.Messages}},
		o.change(StateDone, "provisioned"),
	)
	if err != nil {
		p.Live.Close()
		o.fail("recording the new sandbox", err)
		return
	}
	hit("swarm.after-provisioned")
	o.unmark()
	o.calm()
	if err := o.connect(p.Live, true, id, hello.Head); err != nil {
		o.lostBridge(err)
	}
}

// notProvisioned tells what can be tried again by itself from what a person
// must put right.
func (o *owner) notProvisioned(err error) {
	var unset *spec.UnsetVarError
	var step *setup.StepError
	class := ClassSetupFailed
	switch {
	case errors.Is(err, errNotAdmitted):
		class = ClassAdmission
	case errors.Is(err, errParentLost):
		class = ClassParentLost
	case errors.Is(err, runtime.ErrUnreachable), errors.Is(err, ledger.ErrFull):
		o.log.Warn("cannot provision yet", zap.Error(err))
		o.again()
		return
	case errors.As(err, &unset):
		class = harness.ClassMissingCredentials
	case errors.As(err, &step):
	case errors.Is(err, bridge.ErrHarness):
		class = harness.ClassSessionFailed
	}
	entries, ended := o.settleOpen(OutcomeFailed, class, err.Error(), true)
	if ended == 0 { // else its turns say so
		entries = append(entries, ledger.Entry{Event: ledger.AgentDiagnosed, Payload: ledger.AgentDiagnosedPayload{Class: class, Error: err.Error()}})
	}
	entries = append(entries,
		ledger.Entry{Event: ledger.AgentEnded, Payload: ledger.AgentEndedPayload{Outcome: OutcomeFailed,
			EndedAt: o.s.Clock.Now().UnixMilli(), Error: err.Error()}},
		o.change(StateCrashed, class))
	if appendErr := o.append(entries...); appendErr != nil {
		o.fail("recording a failed provisioning", appendErr)
		return
	}
	o.countEnded(ended, OutcomeFailed)
	o.log.Error("agent could not be provisioned", zap.String("class", class), zap.Error(err))
}

// beginCheckpoint takes the checkpoint that a turn owes, before the next prompt
// is let in.
func (o *owner) beginCheckpoint(turn ledger.Turn) {
	a := o.live
	o.takeCheckpoint(a, turn.Number, turn.TurnID, nil)
}

// takeCheckpoint takes one of the home as it stands; reply, where given, is
// told how it went.
func (o *owner) takeCheckpoint(a *live.Agent, number int, turnID string, reply func(CheckpointView, error)) {
	meta := checkpoint.Meta{AgentID: o.id, SandboxID: o.row.SandboxID, TurnID: turnID, Turn: number}
	req := bridge.PackRequest{}
	if c := o.spec.Checkpoint; c != nil {
		req.Paths, req.Exclude = c.Paths, c.Exclude
	}
	session, messages := o.row.SessionID, o.row.Messages
	o.begin(taskCheckpoint, o.s.TakeTimeout, func(ctx context.Context) func() {
		stored, took, err := checkpoint.Take(ctx, o.s.Store, sourceOf(a, req), meta)
		hit("swarm.checkpoint-stored")
		return func() {
			view, err := o.checkpointed(meta, stored, took, err, session, messages)
			if reply != nil {
				reply(view, err)
			}
		}
	})
}

func (o *owner) checkpointed(m checkpoint.Meta, stored checkpoint.Stored, took time.Duration, err error, session string, messages int) (CheckpointView, error) {
	if err != nil {
		if o.s.ctx.Err() != nil || o.row.StopMode != "" && errors.Is(err, context.Canceled) {
			return CheckpointView{}, err // called off; still owed
		}
		o.s.Metrics.Checkpointed(telemetry.Failed, took, 0)
		o.log.Warn("checkpoint failed", zap.Int("turn", m.Turn), zap.Error(err))
		if appendErr := o.append(ledger.Entry{SandboxID: m.SandboxID, TurnID: m.TurnID, Event: ledger.AgentCheckpointFailed,
			Payload: ledger.AgentCheckpointFailedPayload{Turn: m.Turn, Error: err.Error()}}); appendErr != nil {
			o.fail("recording a failed checkpoint", appendErr)
		}
		return CheckpointView{}, &Error{Kind: ErrUnavailable, Code: "checkpoint_failed", Message: err.Error()}
	}
	p := ledger.AgentCheckpointedPayload{Turn: m.Turn, TurnID: m.TurnID, SnapshotRef: stored.Ref, SHA256: stored.SHA256,
		Bytes: stored.Bytes, Files: stored.Files, TookMs: took.Milliseconds(), SessionID: session, Messages: messages}
	if err := o.recordCheckpoint(m.SandboxID, p); err != nil {
		return CheckpointView{}, err
	}
	o.s.Metrics.Checkpointed(telemetry.Success, took, stored.Bytes)
	return o.newestCheckpoint(stored.Ref)
}

// recordCheckpoint records a stored checkpoint and, in the same transaction,
// lets go of those beyond the number that is kept. A crash before they are gone
// from the store is put right by the sweep of the next boot.
func (o *owner) recordCheckpoint(sandboxID string, p ledger.AgentCheckpointedPayload) error {
	hit("swarm.before-checkpointed")
	kept, err := o.s.Ledger.Checkpoints(o.s.ctx, ledger.CheckpointFilter{AgentID: o.id, State: "kept"})
	var surplus []ledger.Checkpoint
	if err == nil {
		fresh := ledger.Checkpoint{AgentID: o.id, SandboxID: sandboxID, SnapshotRef: p.SnapshotRef, State: "kept"}
		surplus = checkpoint.Prunable(append([]ledger.Checkpoint{fresh}, kept...), o.spec.Retain(o.s.Retain))
		entries := []ledger.Entry{{SandboxID: sandboxID, TurnID: p.TurnID, Event: ledger.AgentCheckpointed, Payload: p}}
		for _, c := range surplus {
			entries = append(entries, ledger.Entry{SandboxID: c.SandboxID, Event: ledger.CheckpointPruned,
				Payload: ledger.CheckpointRefPayload{SnapshotRef: c.SnapshotRef, Reason: "newer ones are kept"}})
		}
		err = o.append(entries...)
	}
	if err != nil {
		// Without its event the archive is nobody's.
		if removeErr := o.s.Store.Remove(context.WithoutCancel(o.s.ctx), p.SnapshotRef); removeErr != nil {
			o.log.Warn("removing an unrecorded checkpoint", zap.Error(removeErr))
		}
		o.fail("recording a checkpoint", err)
		return err
	}
	hit("swarm.after-checkpointed")
	for _, c := range surplus {
		if err := o.s.Store.Remove(o.s.ctx, c.SnapshotRef); err != nil {
			o.log.Warn("removing a pruned checkpoint", zap.String("ref", c.SnapshotRef), zap.Error(err))
		}
	}
	return nil
}

func (o *owner) newestCheckpoint(ref string) (CheckpointView, error) {
	all, err := o.s.Ledger.Checkpoints(o.s.ctx, ledger.CheckpointFilter{AgentID: o.id})
	if err != nil {
		return CheckpointView{}, err
	}
	for _, c := range all {
		if c.SnapshotRef == ref {
			return checkpointView(c), nil
		}
	}
	return CheckpointView{}, notFound("checkpoint", ref)
}

func checkpointView(c ledger.Checkpoint) CheckpointView {
	return CheckpointView{Turn: c.Turn, TurnID: c.TurnID, SnapshotRef: c.SnapshotRef, SandboxID: c.SandboxID, SHA256: c.SHA256,
		Bytes: c.Bytes, Files: c.Files, TakenAt: c.TakenAt, Imported: c.Imported, Damaged: c.Damaged}
}
