package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// States of a permission request that somebody may still hear of.
const (
	requestPending  = "pending"
	requestAnswered = "answered" // and the harness has not said that it heard
	// requestParked: its turn was interrupted. Where the next one asks the same,
	// it gets the answer.
	requestParked = "parked"
)

// AnswerPermission decides a request of the harness: once, always or reject.
// The answer is in the ledger when it returns. It is handed over now, or when
// the agent is connected again, or when a turn that was interrupted asks the
// same again.
func (s *Swarm) AnswerPermission(ctx context.Context, id, requestID, decision, feedback string, idem Idempotency) (PermissionView, error) {
	if !harness.ValidDecision(decision) {
		return PermissionView{}, invalid("decision", "want once, always or reject")
	}
	return request(ctx, s, id, actAnswer, idem, func(o *owner, key withKey) (PermissionView, error) {
		views, err := s.Permissions(ctx, id)
		if err != nil {
			return PermissionView{}, err
		}
		var view *PermissionView
		for i := range views {
			if views[i].RequestID == requestID {
				view = &views[i]
			}
		}
		if view == nil {
			return PermissionView{}, notFound("permission", requestID)
		}
		if view.Decision != "" {
			return PermissionView{}, &Error{Kind: ErrConflict, Code: "answered", Message: "this request was answered with " + view.Decision}
		}
		view.Decision = decision
		if view.State == requestPending {
			view.State = requestAnswered
		}
		_, err = o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{SandboxID: o.row.SandboxID, TurnID: view.TurnID, Event: ledger.PermissionAnswered,
			Payload: ledger.PermissionResolvedPayload{RequestID: requestID, Decision: decision, Feedback: feedback}}}, Request: key(*view)})
		if err != nil {
			return PermissionView{}, err
		}
		hit("swarm.answered")
		return *view, o.handAnswers()
	})
}

// handAnswers hands the harness the answers it has not heard. A frozen one
// hears nothing.
func (o *owner) handAnswers() error {
	if o.live == nil || o.row.State == StatePaused {
		return nil
	}
	answered, err := o.s.Ledger.Permissions(o.s.ctx, o.id, requestAnswered)
	if err != nil {
		return err
	}
	for _, p := range answered {
		if o.answered[p.RequestID] {
			continue
		}
		ctx, cancel := o.ctxShort()
		err := o.live.Answer(ctx, p.RequestID, p.Decision, p.Feedback)
		cancel()
		if connectionLost(err) { // it is handed over when the agent is back
			o.lostBridge(err)
			return nil
		}
		if o.answered == nil {
			o.answered = map[string]bool{}
		}
		o.answered[p.RequestID] = true
		if errors.Is(err, harness.ErrUnknownRequest) { // heard before, or its turn has just ended
			o.log.Info("the harness does not wait for this answer", zap.String("request", p.RequestID))
			continue
		}
		if err != nil {
			return harnessError(err)
		}
	}
	return nil
}

// answerParked answers a request that the harness asks again with what was
// decided of it before its turn was interrupted.
func (t *translation) answerParked(turnID string, e *harness.Event, asked ledger.PermissionRequestedPayload) error {
	parked, err := t.o.s.Ledger.Permissions(t.o.s.ctx, t.o.id, requestParked)
	if err != nil {
		return err
	}
	for _, p := range parked {
		if p.Decision == "" || p.Title != asked.Title || t.given[p.RequestID] {
			continue
		}
		before, err := t.o.s.Ledger.Body(t.o.s.ctx, p.RequestSeq)
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
		if !sameRequest(before, e.Body) {
			continue
		}
		if t.given == nil {
			t.given = map[string]bool{}
		}
		t.given[p.RequestID] = true
		t.add(turnID, ledger.PermissionAnswered, ledger.PermissionResolvedPayload{RequestID: asked.RequestID,
			Decision: p.Decision, Feedback: p.Feedback, Of: p.RequestID}, nil)
		return nil
	}
	return nil
}

// sameRequest reports whether two bodies ask the same, but for the id.
func sameRequest(a, b json.RawMessage) bool {
	var as, bs struct{ Request map[string]any }
	if json.Unmarshal(a, &as) != nil || json.Unmarshal(b, &bs) != nil {
		return false
	}
	delete(as.Request, "id")
	delete(bs.Request, "id")
	return reflect.DeepEqual(as.Request, bs.Request)
}
