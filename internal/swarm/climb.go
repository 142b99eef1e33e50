package swarm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/telemetry"
)

// beginClimb puts the agent on the ladder.
func (o *owner) beginClimb() {
	if o.rt == nil {
		o.hold(fmt.Errorf("runtime %q is not at hand", o.row.Runtime))
		return
	}
	lim := recovery.Limits{From: o.from, GentleOnly: o.gentle}
	wasPaused := o.row.State == StatePaused
	sub := recovery.Subject{Agent: o.row, Spec: o.spec, Known: o.known, Gone: o.gone}
	if lim.From != recovery.Reattached && o.row.State != StateRecovering {
		if err := o.append(o.change(StateRecovering, "asked for")); err != nil {
			o.fail("recording the recovery", err)
			return
		}
		sub.Agent = o.row
	}
	o.disconnect()
	o.revive, o.gentle, o.known, o.gone = false, false, nil, false
	o.climb(sub, lim, wasPaused)
}

func (o *owner) climb(sub recovery.Subject, lim recovery.Limits, wasPaused bool) {
	o.begin("climb", 0, func(ctx context.Context) func() {
		o.s.climbing.Add(1)
		defer o.s.climbing.Add(-1)
		mine := o.task
		sub.Falling = func(why error) {
			// Best effort: it only shows what is going on.
			_ = o.post(func() { o.falling(mine, why) })
		}
		select {
		case o.s.climbs <- struct{}{}:
			defer func() { <-o.s.climbs }()
		case <-ctx.Done():
			return func() {}
		}
		begun := o.s.Clock.Now()
		out, err := o.s.ladder.Climb(ctx, o.rt, o.h, sub, lim)
		took := o.s.Clock.Since(begun)
		if err != nil && ctx.Err() != nil {
			return func() {} // called off
		}
		hit("swarm.climbed")
		return func() { o.climbed(sub, out, err, took, wasPaused) }
	})
}

// falling shows the agent as recovering while the lower rungs are tried.
func (o *owner) falling(during *task, why error) {
	if o.task != during || o.row.State == StateRecovering || o.row.StopMode != "" || isFinal(o.row.State) {
		return
	}
	if err := o.append(o.change(StateRecovering, why.Error())); err != nil {
		o.log.Warn("recording the recovery", zap.Error(err))
	}
}

func (o *owner) climbed(sub recovery.Subject, out *recovery.Outcome, err error, took time.Duration, wasPaused bool) {
	o.from = recovery.Reattached
	if err == nil {
		if err = o.adopt(sub, out, wasPaused); err != nil {
			// Nothing was recorded: the next climb begins from what the ledger says.
			o.disconnect()
			if errors.Is(err, bridge.ErrGap) {
				// The journal was deleted or replaced, and which turns the
				// sandbox has taken stood in it too: from here on nobody could
				// tell what is new from what was stored. The workspace stands.
				o.crash(ClassJournalLost, err)
				return
			}
			o.fail("taking the agent over", err)
			o.answer(WayBack{}, &Error{Kind: ErrUnavailable, Code: "recovery_failed", Message: err.Error()})
			return
		}
		o.calm()
		o.passed()
		o.s.Metrics.Recovered(string(out.Rung), telemetry.Success, took)
		o.answer(o.wayBack(out), nil)
		return
	}
	var unset *spec.UnsetVarError
	switch {
	case errors.Is(err, recovery.ErrHeld):
		o.hold(err)
	case errors.As(err, &unset):
		o.crash(harness.ClassMissingCredentials, err)
	case errors.Is(err, recovery.ErrAlive):
		o.answer(WayBack{}, &Error{Kind: ErrConflict, Code: "bridge_unresponsive", Message: err.Error()})
		o.settled = true
		o.again()
	default:
		o.lose(err, took)
	}
}

// hold keeps an agent in recovering: its runtime does not answer.
func (o *owner) hold(why error) {
	o.answer(WayBack{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: why.Error()})
	if o.row.State == StatePaused { // it stays so, whether or not it can be looked at
		o.again()
		return
	}
	if o.row.Recovering != ClassRuntimeUnreachable {
		e := ledger.Entry{SandboxID: o.row.SandboxID, Event: ledger.AgentStateChanged, Payload: ledger.AgentStateChangedPayload{
			From: o.row.State, To: StateRecovering, Reason: why.Error(), Recovering: ClassRuntimeUnreachable}}
		if err := o.append(e); err != nil {
			o.fail("recording that the runtime does not answer", err)
			return
		}
	}
	o.again()
}

// crash ends a recovery that a person must put right before it can go on.
func (o *owner) crash(class string, why error) {
	entries, ended := o.settleOpen(OutcomeInterrupted, class, why.Error(), false)
	entries = append(entries,
		ledger.Entry{Event: ledger.AgentDiagnosed, Payload: ledger.AgentDiagnosedPayload{Class: class, Error: why.Error()}},
		o.change(StateCrashed, why.Error()))
	if err := o.append(entries...); err != nil {
		o.fail("recording a crash", err)
		return
	}
	o.turnID = ""
	o.countEnded(ended, OutcomeInterrupted)
	o.answer(WayBack{}, &Error{Kind: ErrConflict, Code: class, Message: why.Error()})
}

// lose records that every rung failed. A workspace that still stands can be
// revived (crashed); without one the agent is lost, and tried again.
func (o *owner) lose(err error, took time.Duration) {
	var lost *recovery.LostError
	class, state := ClassRuntimeLost, StateLost
	var attempts []ledger.RungAttempt
	if errors.As(err, &lost) {
		attempts = lost.Attempts
		if lost.SandboxLeft {
			class, state = harness.ClassSessionFailed, StateCrashed
		}
	}
	var step *setup.StepError
	if errors.As(err, &step) {
		class = ClassSetupFailed
	}
	rung := recovery.Restored
	if len(attempts) > 0 {
		rung = recovery.Rung(attempts[len(attempts)-1].Rung)
	}
	o.s.Metrics.Recovered(string(rung), telemetry.Failed, took)
	again := o.row.State == StateLost && state == StateLost && o.row.Error == err.Error()
	if !again {
		entries, ended := o.settleOpen(OutcomeLost, class, err.Error(), false)
		entries = append(entries, ledger.Entry{SandboxID: o.row.SandboxID, Event: ledger.AgentDiagnosed,
			Payload: ledger.AgentDiagnosedPayload{Class: class, Error: err.Error()}, Body: map[string]any{"attempts": attempts}})
		if o.row.State != state {
			entries = append(entries, o.change(state, err.Error()))
		}
		if appendErr := o.append(entries...); appendErr != nil {
			o.fail("recording a loss", appendErr)
			return
		}
		o.turnID = ""
		o.countEnded(ended, OutcomeLost)
	}
	o.log.Error("agent did not come back", zap.String("class", class), zap.Error(err))
	o.answer(WayBack{}, &Error{Kind: ErrConflict, Code: class, Message: err.Error()})
	if state == StateLost {
		o.again()
	}
}

// settleOpen settles the turn in progress; with queued, also those that wait.
func (o *owner) settleOpen(outcome, class, why string, queued bool) ([]ledger.Entry, int) {
	states := []string{"started"}
	if queued {
		states = append(states, "requested")
	}
	open, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, States: states})
	if err != nil {
		o.log.Error("reading the open turns", zap.Error(err))
		return nil, 0
	}
	t := &translation{o: o, sandbox: o.row.SandboxID} // without a state: it changes none
	for i := range open {
		t.settle(&open[i], ledger.TurnEndedPayload{Turn: open[i].Number, Outcome: outcome, Class: class, Error: why,
			ToolCalls: o.inFlight(open[i].TurnID, nil)}, nil)
	}
	return t.entries, len(open)
}

func (o *owner) countEnded(n int, outcome string) {
	for range n {
		o.s.Metrics.TurnEnded(outcome)
	}
}

// adopt takes over what the ladder brought back: it reads the gap of the
// journal, settles the turn that did not survive, and records the rung.
func (o *owner) adopt(sub recovery.Subject, out *recovery.Outcome, wasPaused bool) error {
	restored := out.Rung == recovery.Restored
	if out.Live == nil { // frozen, and left so
		entries := []ledger.Entry{o.recovered(out)}
		if !wasPaused {
			entries = append(entries, ledger.Entry{SandboxID: out.SandboxID, Event: ledger.AgentStateChanged, Payload: ledger.AgentStateChangedPayload{
				From: o.row.State, To: StatePaused, PausedBy: pausedByRuntime, Reason: "its sandbox is frozen"}})
		}
		o.settled = true
		return o.append(entries...)
	}
	if restored {
		o.salvage(out.Previous)
	}
	if err := o.connect(out.Live, !restored, out.SandboxID, out.Hello.Head); err != nil {
		if restored {
			o.s.ladder.Discard(o.s.ctx, o.rt, o.row, out.SandboxID, err.Error())
		}
		return err
	}
	t := &translation{o: o, sandbox: o.row.SandboxID, turn: o.turnID}
	interrupted, err := o.interrupted(t, out)
	if err != nil {
		return err
	}
	if restored {
		if err := o.replace(t, out, sub); err != nil {
			return err
		}
	}
	for _, d := range out.Damaged {
		t.add("", ledger.CheckpointDamaged, d, nil)
	}
	t.entries = append(t.entries, o.recovered(out))
	if next := o.nextState(t, interrupted); next != o.row.State && !wasPaused {
		e := o.change(next, string(out.Rung))
		e.SandboxID = out.SandboxID
		t.entries = append(t.entries, e)
	}
	hit("swarm.before-recovered")
	if wasPaused {
		// Frozen before it is recorded as paused: no crash leaves it working
		// behind a ledger that says otherwise.
		if err := o.rt.Pause(o.s.ctx, out.SandboxID); err != nil {
			return fmt.Errorf("freezing it again: %w", err)
		}
		if o.row.State != StatePaused {
			t.add("", ledger.AgentStateChanged, ledger.AgentStateChangedPayload{From: o.row.State, To: StatePaused, Reason: string(out.Rung), PausedBy: pausedByUser}, nil)
		}
	}
	if err := o.append(t.entries...); err != nil {
		if restored {
			o.disconnect()
			o.s.ladder.Discard(o.s.ctx, o.rt, o.row, out.SandboxID, err.Error())
		}
		return err
	}
	hit("swarm.after-recovered")
	o.turnID, o.cutOff = t.turn, ""
	o.countEnded(len(t.ended), OutcomeInterrupted)
	o.log.Info("agent recovered", zap.String("rung", string(out.Rung)), zap.String("sandbox", out.SandboxID),
		zap.String("previous", out.Previous), zap.Bool("blank", out.Blank), zap.Duration("took", out.Took))
	if restored {
		o.unmark()
		o.letGo(out.Previous, sub.Checkpoint != nil)
	}
	return nil
}

// connect makes a connection the owner's own and reads the journal up to head.
func (o *owner) connect(a *live.Agent, catchUp bool, sandboxID string, head int64) error {
	o.disconnect()
	o.heard = o.s.Clock.Now()
	ctx, cancel := o.ctxShort()
	defer cancel()
	cursor, err := o.s.Ledger.Cursor(ctx, sandboxID)
	if err == nil {
		err = a.Subscribe(ctx, cursor.Pos)
	}
	if err != nil {
		a.Close()
		return fmt.Errorf("reading the journal of %s: %w", sandboxID, err)
	}
	o.live, o.records = a, a.Records()
	if !catchUp {
		return nil
	}
	return o.catchUp(ctx, head)
}

// interrupted settles the turn that was running when it did not survive.
func (o *owner) interrupted(t *translation, out *recovery.Outcome) (*ledger.Turn, error) {
	open, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, States: []string{"started"}, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(open) == 0 {
		t.turn = ""
		return nil, nil
	}
	turn := open[0]
	if out.Rung != recovery.Restored && out.Hello.TurnID == turn.TurnID {
		t.turn = turn.TurnID
		return nil, nil
	}
	calls := o.inFlight(turn.TurnID, nil)
	t.settle(&turn, ledger.TurnEndedPayload{Turn: turn.Number, Outcome: OutcomeInterrupted, ToolCalls: calls,
		Error: "the turn did not survive: " + string(out.Rung)}, nil)
	t.turn = ""
	return &turn, nil
}

// replace records the new sandbox, and what goes with the old one.
func (o *owner) replace(t *translation, out *recovery.Outcome, sub recovery.Subject) error {
	t.sandbox = out.SandboxID
	handle := ""
	if out.Created != nil {
		handle = out.Created.Handle
	}
	t.add("", ledger.SandboxCreated, ledger.SandboxCreatedPayload{Handle: handle, Transport: out.Transport}, nil)
	t.add("", ledger.AgentProvisioned, ledger.AgentProvisionedPayload{SandboxID: out.SandboxID,
		SessionID: out.Hello.Harness.SessionID, Messages: out.Hello.Harness.Messages}, nil)
	owed, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, OwesCheckpoint: true})
	if err != nil {
		return err
	}
	for _, turn := range owed {
		t.add(turn.TurnID, ledger.AgentCheckpointFailed, ledger.AgentCheckpointFailedPayload{Turn: turn.Number,
			Error: "the sandbox was replaced before the checkpoint was taken"}, nil)
	}
	if cp := sub.Checkpoint; cp != nil {
		// Recorded again for the new sandbox: a loss before the next turn must
		// not bring back the conversation that was rolled away.
		t.add(cp.TurnID, ledger.AgentCheckpointed, ledger.AgentCheckpointedPayload{Turn: cp.Turn, TurnID: cp.TurnID,
			SnapshotRef: cp.SnapshotRef, SHA256: cp.SHA256, Bytes: cp.Bytes, Files: cp.Files,
			SessionID: cp.SessionID, Messages: cp.Messages, Imported: cp.Imported}, nil)
	}
	return nil
}

func (o *owner) nextState(t *translation, interrupted *ledger.Turn) string {
	if interrupted != nil {
		return StateFailed
	}
	return o.standing(t.turn != "", wentWell(o.row))
}

// wentWell reports whether an agent's last turn was no failure.
func wentWell(a ledger.Agent) bool {
	return a.Outcome == "" || a.Outcome == OutcomeSuccess || a.Outcome == OutcomeAborted
}

func (o *owner) recovered(out *recovery.Outcome) ledger.Entry {
	p := ledger.AgentRecoveredPayload{Rung: string(out.Rung), SandboxID: out.SandboxID, PreviousSandboxID: out.Previous,
		Checkpoint: summary(out), Blank: out.Blank, InterruptedTurnID: o.cutOff, TookMs: out.Took.Milliseconds(),
		Attempts: out.Attempts}
	if p.Attempts == nil {
		p.Attempts = []ledger.RungAttempt{}
	}
	// A reattached harness may be in a turn: what it counts then is no fact
	// that a later rung could be held against.
	if out.Rung != recovery.Reattached {
		p.SessionID, p.Messages = out.Hello.Harness.SessionID, out.Hello.Harness.Messages
	}
	return ledger.Entry{SandboxID: out.SandboxID, Event: ledger.AgentRecovered, Payload: p}
}

func summary(out *recovery.Outcome) *ledger.CheckpointSummary {
	if out.Checkpoint == nil {
		return nil
	}
	return &ledger.CheckpointSummary{Turn: out.Checkpoint.Turn, Ref: out.Checkpoint.SnapshotRef}
}

func (o *owner) wayBack(out *recovery.Outcome) WayBack {
	return WayBack{AgentID: o.id, SandboxID: out.SandboxID, Rung: string(out.Rung), Turn: o.row.Turn, Checkpoint: summary(out)}
}

// letGo removes the sandbox that was replaced, by its own id. After a roll back
// it is kept, stopped, until a turn has ended in the new one.
func (o *owner) letGo(sandboxID string, keep bool) {
	if sandboxID == "" {
		return
	}
	rt, row := o.rt, o.row
	o.s.work.Go(func() {
		ctx, cancel := context.WithTimeout(o.s.ctx, runtime.DefaultCallTimeout)
		defer cancel()
		if keep {
			if err := rt.Stop(ctx, sandboxID, time.Second); err != nil && !errors.Is(err, runtime.ErrNotFound) {
				o.log.Warn("stopping the sandbox that was rolled back", zap.String("sandbox", sandboxID), zap.Error(err))
			}
			return
		}
		o.s.removeSandbox(ctx, rt, row.RunID, row.AgentID, sandboxID, "replaced")
	})
}

// removeSandbox removes one and records it; the reconciliation finds what it
// could not remove.
func (s *Swarm) removeSandbox(ctx context.Context, rt runtime.Runtime, runID, agentID, sandboxID, reason string) {
	err := rt.Remove(ctx, sandboxID)
	hit("swarm.sandbox-removed")
	if err == nil {
		err = s.sandboxRemoved(ctx, runID, agentID, sandboxID, reason)
	}
	if err != nil {
		s.Log.Warn("removing a sandbox", zap.String("sandbox", sandboxID), zap.Error(err))
	}
}
