package scripted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// protocol implements harness.Protocol.
type protocol struct {
	status harness.Status
	result string          // last thing said in the turn in progress
	orders map[string]bool // written, not answered
	asks   map[string]bool // open permission requests
}

func (p *protocol) Status() harness.Status { return p.status }

// Open writes nothing: the process tells its session unasked.
func (p *protocol) Open() harness.Output { return harness.Output{} }

func (p *protocol) Prompt(pr harness.Prompt) (harness.Output, error) {
	switch p.status.State {
	case harness.StateIdle:
	case harness.StateBusy:
		return harness.Output{}, harness.ErrBusy
	default:
		return harness.Output{}, fmt.Errorf("%w: it is %s", harness.ErrNotReady, p.status.State)
	}
	p.status.State = harness.StateBusy
	p.result = ""
	return write(order{Op: opPrompt, Text: pr.Text, Images: len(pr.Images)}), nil
}

func (p *protocol) Steer(id, text string) (harness.Output, error) {
	return p.order(order{Op: opSteer, ID: id, Text: text})
}

func (p *protocol) FollowUp(id, text string) (harness.Output, error) {
	return p.order(order{Op: opFollowUp, ID: id, Text: text})
}

func (p *protocol) Abort(id string) (harness.Output, error) {
	return p.order(order{Op: opAbort, ID: id})
}

func (p *protocol) Answer(id, requestID, decision, feedback string) (harness.Output, error) {
	if !p.asks[requestID] {
		return harness.Output{}, fmt.Errorf("%w: %q", harness.ErrUnknownRequest, requestID)
	}
	if !harness.ValidDecision(decision) {
		return harness.Output{}, fmt.Errorf("%w: no such decision: %q", harness.ErrRefused, decision)
	}
	return p.order(order{Op: opAnswer, ID: id, Request: requestID, Decision: decision, Feedback: feedback})
}

func (p *protocol) order(o order) (harness.Output, error) {
	if p.status.State != harness.StateBusy {
		return harness.Output{}, harness.ErrNoTurn
	}
	p.orders[o.ID] = true
	return write(o), nil
}

func write(o order) harness.Output {
	line, err := json.Marshal(o)
	if err != nil { // a struct of strings and integers always marshals
		panic(err)
	}
	return harness.Output{Write: [][]byte{line}}
}

func (p *protocol) Line(line []byte) harness.Output {
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		return harness.Output{}
	}
	var r report
	if err := json.Unmarshal(line, &r); err != nil {
		return events(harness.Unreadable(line, fmt.Errorf("reading a line: %w", err)))
	}
	out, err := p.report(r)
	if err != nil {
		return events(harness.Unreadable(line, err))
	}
	return out
}

func events(evs ...harness.Event) harness.Output { return harness.Output{Events: evs} }

// report applies one line of the process. An error means that the line does
// not fit; nothing was changed then.
func (p *protocol) report(r report) (harness.Output, error) {
	if p.status.State == harness.StateStarting && r.Ev != evReady {
		return harness.Output{}, fmt.Errorf("%q before the session is known", r.Ev)
	}
	switch r.Ev {
	case evReady:
		if p.status.State != harness.StateStarting || r.Session == "" {
			return harness.Output{}, fmt.Errorf("%q out of place", r.Ev)
		}
		p.status = harness.Status{State: harness.StateIdle, SessionID: r.Session, Messages: r.Messages}
		return events(harness.NewEvent(ledger.SessionStarted, ledger.SessionPayload{
			SessionID: r.Session, Messages: r.Messages, Continued: r.Continued,
		}, nil)), nil
	case evDelta:
		return events(harness.NewEvent(harness.MessageUpdated, harness.MessageDelta{Delta: r.Text, Kind: r.Name}, nil)), nil
	case evMessage:
		return p.message(r), nil
	case evTool:
		return events(harness.NewEvent(ledger.ToolStarted, ledger.ToolCall{ID: r.ID, Name: r.Name},
			harness.ToolArgs{Args: r.Args})), nil
	case evToolOut:
		return events(harness.NewEvent(harness.ToolUpdated,
			harness.ToolOutput{ToolCall: ledger.ToolCall{ID: r.ID, Name: r.Name}, Output: r.Text}, nil)), nil
	case evToolEnd:
		return events(harness.NewEvent(ledger.ToolEnded,
			harness.ToolEnd{ToolCall: ledger.ToolCall{ID: r.ID, Name: r.Name}, IsError: r.IsError},
			harness.ToolResult{Result: r.Text})), nil
	case evAsk:
		p.asks[r.ID] = true
		return events(harness.NewEvent(ledger.PermissionRequested,
			ledger.PermissionRequestedPayload{RequestID: r.ID, Title: r.Text},
			harness.PermissionAsk{
				Request: map[string]string{"id": r.ID, "question": r.Text}})), nil
	case evAnswered:
		if !p.asks[r.ID] {
			return harness.Output{}, fmt.Errorf("%q of a request that is not open", r.Ev)
		}
		delete(p.asks, r.ID)
		return events(harness.PermissionResolved(r.ID, r.Decision, r.Feedback)), nil
	case evQueue:
		return events(harness.NewEvent(harness.QueueUpdated,
			harness.Queue{Steering: r.Steering, FollowUp: r.FollowUp}, nil)), nil
	case evQuota:
		return events(harness.NewEvent(ledger.AgentQuotaExhausted, harness.Quota{
			Provider: r.Provider, Status: "exhausted", ResetsAt: r.ResetsAt, Source: r.Text,
		}, nil)), nil
	case evReply:
		if !p.orders[r.ID] {
			return harness.Output{}, fmt.Errorf("%q to an order that was not given", r.Ev)
		}
		delete(p.orders, r.ID)
		return harness.Output{Replies: []harness.Reply{{Order: r.ID, Err: r.Error}}}, nil
	case evEnd:
		return p.end(r)
	}
	return harness.Output{}, fmt.Errorf("unknown kind of line %q", r.Ev)
}

func (p *protocol) message(r report) harness.Output {
	if r.Name == "assistant" && r.Text != "" {
		p.result = r.Text
	}
	p.status.Messages = r.Messages
	return events(harness.NewEvent(ledger.MessageEnded, harness.Message{Role: r.Name}, harness.MessageBody{
		Message: map[string]string{"role": r.Name, "text": r.Text}, Text: r.Text,
	}))
}

func (p *protocol) end(r report) (harness.Output, error) {
	if p.status.State != harness.StateBusy {
		return harness.Output{}, fmt.Errorf("%q without a turn", r.Ev)
	}
	end := harness.TurnEnd{Outcome: r.Outcome, Class: r.Class, Error: r.Error, SessionID: p.status.SessionID, Messages: r.Messages}
	switch r.Outcome {
	case harness.OutcomeSuccess, harness.OutcomeFailed, harness.OutcomeAborted:
	default:
		end.Outcome, end.Class = harness.OutcomeFailed, harness.ClassProtocolError
		end.Error = fmt.Sprintf("the turn ended with an unknown outcome %.40q", r.Outcome)
	}
	p.status.State, p.status.Messages = harness.StateIdle, r.Messages
	out := p.cancelAsks()
	out.Events = append(out.Events, harness.NewEvent(ledger.TurnEnded, end, harness.TurnResult{Result: p.result}))
	return out, nil
}

// cancelAsks closes the permission requests that nobody will answer any more.
func (p *protocol) cancelAsks() (out harness.Output) {
	for _, id := range sorted(p.asks) {
		out.Events = append(out.Events, harness.PermissionResolved(id, harness.DecisionCancelled, ""))
	}
	clear(p.asks)
	return out
}

func (p *protocol) Exited(e harness.Exit) harness.Output {
	if p.status.State == harness.StateExited {
		return harness.Output{}
	}
	out := p.cancelAsks()
	if p.status.State == harness.StateBusy {
		out.Events = append(out.Events, harness.NewEvent(ledger.TurnEnded, harness.TurnEnd{
			Outcome: harness.OutcomeFailed, Class: harness.ClassSessionFailed, Error: e.String(),
			SessionID: p.status.SessionID, Messages: p.status.Messages,
		}, harness.TurnResult{Result: p.result}))
	}
	if p.status.State != harness.StateStarting {
		out.Events = append(out.Events, harness.SessionEnded(p.status))
	}
	for _, id := range sorted(p.orders) {
		out.Replies = append(out.Replies, harness.Reply{Order: id, Err: e.String()})
	}
	clear(p.orders)
	p.status.State = harness.StateExited
	return out
}

// sorted makes what is derived from a set the same at every run.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
