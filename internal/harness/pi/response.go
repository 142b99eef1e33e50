package pi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

func (p *protocol) response(l []byte) (harness.Output, error) {
	var r response
	if err := json.Unmarshal(l, &r); err != nil {
		return harness.Output{}, err
	}
	t := p.turn
	order, ordered := p.orders[r.ID]
	switch {
	case r.ID == "":
		return harness.Output{}, fmt.Errorf("a command was not readable to Pi: %s", r.Error)
	case r.ID == p.opened:
		return p.sessionOpened(r)
	case ordered:
		delete(p.orders, r.ID)
		out := p.finish()
		out.Replies = []harness.Reply{{Order: order, Err: r.failure()}}
		return out, nil
	case t != nil && r.ID == t.prompt:
		return p.prompted(r)
	case t != nil && r.ID == t.asked:
		return p.settledState(r)
	case t != nil && r.ID == t.clearing:
		return p.goOn(r)
	}
	return harness.Output{}, nil // the clear_queue of an abort
}

func (r response) failure() string {
	if r.Success {
		return ""
	}
	if r.Error == "" {
		return "Pi refused without a reason"
	}
	return r.Error
}

func (r response) state() (s sessionState, err error) {
	if !r.Success {
		return s, fmt.Errorf("%s: %s", r.Command, r.failure())
	}
	err = json.Unmarshal(r.Data, &s)
	if err == nil && (s.SessionID == "" || s.MessageCount < 0) {
		err = errors.New("a state without a session")
	}
	return s, err
}

func (p *protocol) sessionOpened(r response) (harness.Output, error) {
	s, err := r.state()
	if err != nil {
		return harness.Output{}, err
	}
	p.opened = ""
	p.status = harness.Status{State: harness.StateIdle, SessionID: s.SessionID, Messages: s.MessageCount}
	return events(harness.NewEvent(ledger.SessionStarted, ledger.SessionPayload{
		SessionID: s.SessionID, Messages: s.MessageCount, Continued: p.launch.Continue && s.MessageCount > 0,
	}, nil)), nil
}

// prompted reads Pi's answer to the prompt.
func (p *protocol) prompted(r response) (harness.Output, error) {
	t := p.turn
	if !r.Success {
		class := harness.ClassSessionFailed
		if badKey.MatchString(r.Error) {
			class = harness.ClassMissingCredentials
		}
		out := p.endTurn(harness.TurnEnd{Outcome: harness.OutcomeFailed, Class: class, Error: r.failure()})
		out.Replies = p.refuseOrders("the prompt was refused")
		return out, nil
	}
	var data struct {
		Disposition string `json:"disposition"`
	}
	// Without a readable disposition it counts as started, the usual one: the
	// prompt was accepted all the same.
	_ = json.Unmarshal(r.Data, &data)
	t.accepted = true
	switch data.Disposition {
	case "handled":
		// A command of an extension: no run follows, nothing will settle, and
		// nothing can be steered.
		t.held = nil
		out := harness.Output{Replies: p.refuseOrders("the prompt was handled without a run")}
		t.settled, t.aborted = true, t.aborting
		out.Write = p.finish().Write
		return out, nil
	case "queued":
		return p.begun(), nil // into a run that an extension had begun
	}
	return harness.Output{}, nil
}

// settledState ends the turn, unless Pi has more to do after all.
func (p *protocol) settledState(r response) (harness.Output, error) {
	t := p.turn
	s, err := r.state()
	if err != nil {
		// The turn is over all the same, with the figures known before.
		out := p.endTurn(t.outcome())
		out.Events = slices.Insert(out.Events, 0, harness.Unreadable(r.Data, fmt.Errorf("reading the session's state: %w", err)))
		return out, nil
	}
	p.status.SessionID, p.status.Messages = s.SessionID, s.MessageCount
	switch {
	case s.IsStreaming && !t.aborted:
		t.settled, t.asked = false, "" // an extension began another run
		return harness.Output{}, nil
	case s.Pending > 0 && !t.aborting:
		t.clearing = p.next()
		return harness.Output{Write: [][]byte{line(command{ID: t.clearing, Type: "clear_queue"})}}, nil
	}
	return p.endTurn(t.outcome()), nil
}

// goOn prompts with the messages that were queued too late for the run: they
// were accepted, so they belong to this turn.
func (p *protocol) goOn(r response) (harness.Output, error) {
	var queued struct {
		Steering []string `json:"steering"`
		FollowUp []string `json:"followUp"`
	}
	if err := json.Unmarshal(r.Data, &queued); !r.Success || err != nil {
		out := p.endTurn(p.turn.outcome())
		out.Events = slices.Insert(out.Events, 0, harness.Unreadable(r.Data, errors.New("clearing the queue of Pi failed: a late message is lost")))
		return out, nil
	}
	texts := append(queued.Steering, queued.FollowUp...)
	if len(texts) == 0 {
		return p.endTurn(p.turn.outcome()), nil
	}
	return p.writePrompt(strings.Join(texts, "\n"), nil), nil
}

// outcome reads how the turn ended from its last assistant message.
func (t *turn) outcome() harness.TurnEnd {
	switch {
	case t.aborted, t.last != nil && t.last.StopReason == "aborted":
		return harness.TurnEnd{Outcome: harness.OutcomeAborted}
	case t.last != nil && t.last.StopReason == "error":
		why := t.last.ErrorMessage
		if why == "" {
			why = "the model failed without a reason"
		}
		return harness.TurnEnd{Outcome: harness.OutcomeFailed, Class: classify(why), Error: why}
	}
	return harness.TurnEnd{Outcome: harness.OutcomeSuccess}
}
