package swarm

import (
	"context"
	"errors"
	"io"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
)

// Modes of a stop.
const (
	stopAbort = "abort"
	stopStop  = "stop"
	stopDrain = "drain"
)

func sourceOf(a *live.Agent, req bridge.PackRequest) checkpoint.Source {
	return func(ctx context.Context) (io.ReadCloser, error) { return a.Pack(ctx, req) }
}

// drained reports whether a draining agent has nothing left to finish.
func (o *owner) drained() bool {
	if o.live == nil {
		return o.row.State != StateRunning && o.row.State != StateBlocked && o.row.State != StateRecovering
	}
	if o.turnID != "" {
		return false
	}
	owed, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, OwesCheckpoint: true, Limit: 1})
	if err != nil {
		o.log.Warn("reading what is owed", zap.Error(err))
		return false
	}
	return len(owed) == 0
}

// beginStop ends the harness gently, then the sandbox. The file system stays.
func (o *owner) beginStop() {
	o.endSandbox("stop", func(ctx context.Context, a *live.Agent, sandboxID string) error {
		if a != nil {
			if err := a.StopHarness(ctx, o.s.StopGrace); err != nil && !connectionLost(err) {
				o.log.Info("harness did not end when asked", zap.Error(err))
			}
		}
		err := o.rt.Stop(ctx, sandboxID, o.s.StopGrace)
		hit("swarm.sandbox-stopped")
		if errors.Is(err, runtime.ErrNotFound) {
			return nil // a revive restores it
		}
		return err
	}, func() {
		entries, ended := o.settleOpen(OutcomeAborted, "", "stopped", false)
		entries = append(entries,
			ledger.Entry{SandboxID: o.row.SandboxID, Event: ledger.AgentStopped, Payload: ledger.ReasonPayload{Reason: "asked for"}},
			o.change(StateStopped, "asked for"))
		if err := o.append(entries...); err != nil {
			o.fail("recording a stop", err)
			return
		}
		o.countEnded(ended, OutcomeAborted)
		o.turnID = ""
	})
}

// beginAbort deletes the sandbox; the agent is over.
func (o *owner) beginAbort() {
	runID := o.row.RunID // the row itself changes meanwhile
	o.endSandbox("abort", func(ctx context.Context, _ *live.Agent, _ string) error {
		all, err := o.s.Ledger.Sandboxes(ctx, ledger.SandboxFilter{AgentID: o.id, States: []string{"intended", "created", "current", "released"}})
		if err != nil {
			return err
		}
		for _, sb := range all {
			if err := o.rt.Remove(ctx, sb.SandboxID); err != nil {
				return err
			}
			hit("swarm.sandbox-removed")
			if err := o.s.sandboxRemoved(ctx, runID, o.id, sb.SandboxID, "aborted"); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		entries, ended := o.settleOpen(OutcomeAborted, "", "aborted", true)
		entries = append(entries,
			ledger.Entry{Event: ledger.AgentEnded, Payload: ledger.AgentEndedPayload{Outcome: OutcomeAborted, EndedAt: o.s.Clock.Now().UnixMilli()}},
			o.change(StateAborted, "asked for"),
			ledger.Entry{Event: ledger.AgentReleased, Payload: ledger.ReasonPayload{Reason: "aborted"}})
		if err := o.append(entries...); err != nil {
			o.fail("recording an abort", err)
			return
		}
		o.countEnded(ended, OutcomeAborted)
		o.turnID = ""
	})
}

// endSandbox runs what ends a sandbox and then records it. A runtime that does
// not answer is asked again; the intent stands in the ledger.
func (o *owner) endSandbox(name string, end func(context.Context, *live.Agent, string) error, record func()) {
	if o.rt == nil && o.row.SandboxID != "" {
		o.log.Warn("cannot end the sandbox: its runtime is not at hand")
		o.again()
		return
	}
	a, sandboxID, rt := o.live, o.row.SandboxID, o.rt
	if name == stopAbort {
		o.salvage(sandboxID) // now: the journal goes with the sandbox
	}
	o.begin(name, 0, func(ctx context.Context) func() {
		var err error
		if rt != nil && (sandboxID != "" || name == stopAbort) {
			err = end(ctx, a, sandboxID)
		}
		return func() {
			if err != nil {
				o.fail("ending the sandbox ("+name+")", err)
				return
			}
			o.disconnect()
			o.salvage(sandboxID)
			o.calm()
			record()
			o.from, o.known, o.gone = recovery.Reattached, nil, false
		}
	})
}
