package swarm

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// blockedByRequest is why an agent is blocked whose turn waits for the answer
// to a permission request.
const blockedByRequest = "permission requested"

// policy says what the spec wants of a turn that ended so: that its prompt is
// asked again, or that the agent is blocked, and why.
func (o *owner) policy(turn *ledger.Turn, p ledger.TurnEndedPayload) (again bool, blocked string) {
	if p.Outcome != OutcomeFailed || o.spec == nil || o.row.StopMode != "" {
		return false, ""
	}
	switch p.Class {
	case harness.ClassMissingCredentials, harness.ClassQuota: // the next try would fail alike
	default:
		if turn.Attempt < o.spec.FailureRetries() {
			return true, ""
		}
	}
	if failures := o.row.Failures + 1; o.spec.Breaks(failures) {
		return false, fmt.Sprintf("%d failed turns in a row", failures)
	}
	if o.spec.OnFailure == spec.FailureAsk {
		return false, "its turn has failed"
	}
	return false, ""
}

// tellParent puts into the parent's inbox that its child is blocked.
func (t *translation) tellParent(turn *ledger.Turn, p ledger.TurnEndedPayload) {
	if t.o.row.ParentAgentID == "" {
		return
	}
	text := fmt.Sprintf("agent %s (%s) is blocked until somebody lets it go on: %s", t.o.id, t.o.row.SpecName, p.Blocked)
	if p.Error != "" {
		text += "\n" + shorten(p.Error)
	}
	t.entries = append(t.entries, ledger.Entry{AgentID: t.o.row.ParentAgentID, Event: ledger.InboxQueued,
		Payload: ledger.InboxQueuedPayload{Kind: ledger.InboxBlocked, From: t.o.id, FromTurn: turn.TurnID, Outcome: p.Outcome},
		Body:    map[string]string{"text": text}})
}

// standing is the state of an agent that is in a turn, or idle after one, where
// nothing else holds it.
func (o *owner) standing(inTurn, wentWell bool) string {
	switch {
	case o.row.Blocked != "":
		return StateBlocked
	case inTurn:
		pending, err := o.s.Ledger.Permissions(o.s.ctx, o.id, requestPending, requestAnswered)
		if err != nil {
			o.log.Warn("reading the permission requests", zap.Error(err))
		}
		if len(pending) > 0 {
			return StateBlocked
		}
		return StateRunning
	case wentWell:
		return StateDone
	}
	return StateFailed
}
