package pi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

func (p *protocol) Line(l []byte) harness.Output {
	l = bytes.TrimRight(l, "\r\n")
	if len(bytes.TrimSpace(l)) == 0 || p.status.State == harness.StateExited {
		return harness.Output{}
	}
	// What is passed on whole must be valid text for whoever stores it.
	l = bytes.ToValidUTF8(l, []byte("\uFFFD"))
	out, err := p.read(l)
	if err != nil {
		return events(harness.Unreadable(l, fmt.Errorf("reading a line of Pi: %w", err)))
	}
	return out
}

func events(evs ...harness.Event) harness.Output { return harness.Output{Events: evs} }

// read applies one line. An error means that the line has not the shape its
// type promises; nothing was changed then.
func (p *protocol) read(l []byte) (harness.Output, error) {
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(l, &head); err != nil {
		return harness.Output{}, err
	}
	switch head.Type {
	case "response":
		return p.response(l)
	case "agent_start":
		return p.begun(), nil
	case "agent_settled":
		return p.settled(l)
	case "message_update":
		return delta(l)
	case "message_end":
		return p.messageEnd(l)
	case "tool_execution_start", "tool_execution_update", "tool_execution_end":
		return tool(head.Type, l)
	case "queue_update":
		return queueUpdate(l)
	case "auto_retry_start", "auto_retry_end":
		return retry(head.Type, l)
	case "compaction_start", "compaction_end":
		return compaction(head.Type, l)
	case "extension_error":
		return extensionError(l)
	case "extension_ui_request":
		return p.dialog(l)
	}
	// Newer releases add kinds of events; one that is not known is no fault.
	return harness.Output{}, nil
}

// begun: a run of the agent has begun. What was held for it goes out.
func (p *protocol) begun() harness.Output {
	t := p.turn
	if t == nil || !t.accepted {
		return harness.Output{}
	}
	t.running = true
	out := harness.Output{Write: t.held}
	t.held = nil
	return out
}

// settled: Pi will not go on by itself. One that comes before the prompt was
// accepted belongs to a run that an extension began before.
func (p *protocol) settled(l []byte) (harness.Output, error) {
	var s struct {
		Aborted bool `json:"aborted"`
	}
	if err := json.Unmarshal(l, &s); err != nil {
		return harness.Output{}, err
	}
	t := p.turn
	if t == nil || !t.accepted {
		return harness.Output{}, nil
	}
	t.settled, t.aborted = true, s.Aborted
	return p.finish(), nil
}

// finish asks for the session's state once Pi has settled and has answered
// every order: the state then shows a message that came too late to be run.
func (p *protocol) finish() harness.Output {
	t := p.turn
	if t == nil || !t.settled || t.asked != "" || len(p.orders) > 0 {
		return harness.Output{}
	}
	t.asked = p.next()
	return harness.Output{Write: [][]byte{line(command{ID: t.asked, Type: "get_state"})}}
}

func delta(l []byte) (harness.Output, error) {
	var m struct {
		Event struct {
			Type  string `json:"type"`
			Delta string `json:"delta"`
		} `json:"assistantMessageEvent"`
	}
	if err := json.Unmarshal(l, &m); err != nil {
		return harness.Output{}, err
	}
	kind, isDelta := strings.CutSuffix(m.Event.Type, "_delta")
	if !isDelta || (kind != "text" && kind != "thinking") {
		return harness.Output{}, nil
	}
	return events(harness.NewEvent(harness.MessageUpdated, harness.MessageDelta{Delta: m.Event.Delta, Kind: kind}, nil)), nil
}

func (p *protocol) messageEnd(l []byte) (harness.Output, error) {
	var e struct {
		Message json.RawMessage `json:"message"`
	}
	if err := json.Unmarshal(l, &e); err != nil {
		return harness.Output{}, err
	}
	var m message
	if err := json.Unmarshal(e.Message, &m); err != nil {
		return harness.Output{}, err
	}
	said := text(m.Content)
	role := "user" // what extensions and summaries add reaches the model as the user's
	switch m.Role {
	case "":
		return harness.Output{}, fmt.Errorf("a message without a role")
	case "system":
		return harness.Output{}, nil
	case "toolResult":
		role = "tool"
	case "assistant":
		role = "assistant"
		if p.turn != nil {
			p.turn.last = &m
			if strings.TrimSpace(said) != "" {
				p.turn.result = said
			}
		}
	}
	return events(harness.NewEvent(ledger.MessageEnded, harness.Message{Role: role},
		harness.MessageBody{Message: e.Message, Text: said})), nil
}

func tool(kind string, l []byte) (harness.Output, error) {
	var t struct {
		ID      string          `json:"toolCallId"`
		Name    string          `json:"toolName"`
		Args    json.RawMessage `json:"args"`
		Partial json.RawMessage `json:"partialResult"`
		Result  json.RawMessage `json:"result"`
		IsError bool            `json:"isError"`
	}
	if err := json.Unmarshal(l, &t); err != nil {
		return harness.Output{}, err
	}
	call := ledger.ToolCall{ID: t.ID, Name: t.Name}
	switch kind {
	case "tool_execution_start":
		return events(harness.NewEvent(ledger.ToolStarted, call, harness.ToolArgs{Args: t.Args})), nil
	case "tool_execution_update":
		return events(harness.NewEvent(harness.ToolUpdated, harness.ToolOutput{ToolCall: call, Output: toolText(t.Partial)}, nil)), nil
	}
	return events(harness.NewEvent(ledger.ToolEnded, harness.ToolEnd{ToolCall: call, IsError: t.IsError},
		harness.ToolResult{Result: toolText(t.Result)})), nil
}

func queueUpdate(l []byte) (harness.Output, error) {
	var q struct {
		Steering []json.RawMessage `json:"steering"`
		FollowUp []json.RawMessage `json:"followUp"`
	}
	if err := json.Unmarshal(l, &q); err != nil {
		return harness.Output{}, err
	}
	return events(harness.NewEvent(harness.QueueUpdated,
		harness.Queue{Steering: len(q.Steering), FollowUp: len(q.FollowUp)}, nil)), nil
}

func retry(kind string, l []byte) (harness.Output, error) {
	var r struct {
		Attempt      int64  `json:"attempt"`
		MaxAttempts  int64  `json:"maxAttempts"`
		DelayMs      int64  `json:"delayMs"`
		ErrorMessage string `json:"errorMessage"`
		Success      bool   `json:"success"`
		FinalError   string `json:"finalError"`
	}
	if err := json.Unmarshal(l, &r); err != nil {
		return harness.Output{}, err
	}
	if kind == "auto_retry_start" {
		return events(harness.NewEvent(ledger.RetryStarted, harness.Retry{
			Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, DelayMs: r.DelayMs, Error: r.ErrorMessage,
		}, nil)), nil
	}
	return events(harness.NewEvent(ledger.RetryEnded, harness.RetryEnd{Success: r.Success, Attempt: r.Attempt, Error: r.FinalError}, nil)), nil
}

func compaction(kind string, l []byte) (harness.Output, error) {
	var c struct {
		Reason  string `json:"reason"`
		Aborted bool   `json:"aborted"`
		Error   string `json:"errorMessage"`
		Result  struct {
			Summary string      `json:"summary"`
			Before  json.Number `json:"tokensBefore"`
			After   json.Number `json:"estimatedTokensAfter"`
		} `json:"result"`
	}
	if err := json.Unmarshal(l, &c); err != nil {
		return harness.Output{}, err
	}
	started := harness.Compaction{Reason: c.Reason}
	if kind == "compaction_start" {
		return events(harness.NewEvent(ledger.CompactionStarted, started, nil)), nil
	}
	return events(harness.NewEvent(ledger.CompactionEnded, harness.CompactionEnd{
		Compaction: started, Aborted: c.Aborted, Error: c.Error,
		TokensBefore: number(c.Result.Before), TokensAfter: number(c.Result.After),
	}, harness.CompactionBody{Summary: c.Result.Summary})), nil
}

// number is 0 for what is none.
func number(n json.Number) float64 {
	f, err := n.Float64()
	if err != nil {
		return 0
	}
	return f
}

func extensionError(l []byte) (harness.Output, error) {
	var e struct {
		Path  string `json:"extensionPath"`
		Event string `json:"event"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(l, &e); err != nil {
		return harness.Output{}, err
	}
	return events(harness.NewEvent(ledger.ExtensionError,
		harness.ExtensionError{Extension: e.Path, Event: e.Event}, harness.ExtensionErrorBody{Error: e.Error})), nil
}

// dialog holds a dialog of an extension as a permission request. What only
// shows something is left out.
func (p *protocol) dialog(l []byte) (harness.Output, error) {
	var d struct {
		ID      string   `json:"id"`
		Method  string   `json:"method"`
		Title   string   `json:"title"`
		Options []string `json:"options"`
	}
	if err := json.Unmarshal(l, &d); err != nil {
		return harness.Output{}, err
	}
	if !dialog(d.Method) {
		return harness.Output{}, nil
	}
	if _, open := p.asks[d.ID]; d.ID == "" || open {
		return harness.Output{}, fmt.Errorf("a dialog without an id of its own")
	}
	p.asks[d.ID] = ask{method: d.Method, options: d.Options, inTurn: p.turn != nil}
	return events(harness.NewEvent(ledger.PermissionRequested,
		ledger.PermissionRequestedPayload{RequestID: d.ID, Title: d.Title},
		harness.PermissionAsk{Request: json.RawMessage(l)})), nil
}
