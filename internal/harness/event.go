package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/alineod/alineod/internal/ledger"
)

// maxUnreadable bounds, in bytes, how much of an unreadable line is kept: it is
// evidence for a person, and a sandbox must not fill the ledger with it.
const maxUnreadable = 2048

// NewEvent makes an event. data and body are marshalled; nil leaves them out.
// They are the drivers' own structs and maps, so marshalling cannot fail, save
// for a json.RawMessage that is not valid: then the event becomes the
// diagnostic of that.
func NewEvent(name string, data, body any) Event {
	ev := Event{Name: name}
	var err error
	if data != nil {
		if ev.Data, err = json.Marshal(data); err != nil {
			return Unreadable(nil, fmt.Errorf("marshalling %s: %w", name, err))
		}
	}
	if body != nil {
		if ev.Body, err = json.Marshal(body); err != nil {
			return Unreadable(nil, fmt.Errorf("marshalling %s: %w", name, err))
		}
	}
	return ev
}

// Unreadable is the diagnostic.stored event for a line that cannot be read, or
// that does not fit what was said before.
func Unreadable(line []byte, err error) Event {
	if len(line) > maxUnreadable {
		line = line[:maxUnreadable]
	}
	return NewEvent(ledger.DiagnosticStored,
		map[string]string{"class": ClassProtocolError, "error": cut(err.Error(), maxUnreadable)},
		map[string]string{"line": string(bytes.ToValidUTF8(line, []byte("\uFFFD")))})
}

// SessionEnded is the event that follows the end of a process whose session
// was known.
func SessionEnded(s Status) Event {
	return NewEvent(ledger.SessionEnded, ledger.SessionPayload{SessionID: s.SessionID, Messages: s.Messages}, nil)
}

// PermissionResolved is the event that an open permission request was decided.
func PermissionResolved(requestID, decision, feedback string) Event {
	return NewEvent(ledger.PermissionResolved, ledger.PermissionResolvedPayload{
		RequestID: requestID, Decision: decision, Feedback: feedback,
	}, nil)
}

// TurnResult is the Body of turn.ended: the last text of the assistant.
type TurnResult struct {
	Result string `json:"result"`
}

// MessageDelta is a piece of a message that is being said.
type MessageDelta struct {
	Delta string `json:"delta"`
	Kind  string `json:"kind"` // text or thinking
}

// Message says whose message.ended tells of.
type Message struct {
	Role string `json:"role"` // assistant, user, tool
}

// MessageBody is a whole message, as the harness wrote it, and its text.
type MessageBody struct {
	Message any    `json:"message"`
	Text    string `json:"text"`
}

// ToolArgs are what a tool is called with.
type ToolArgs struct {
	Args json.RawMessage `json:"args,omitempty"`
}

// ToolOutput is what a tool that runs has written so far.
type ToolOutput struct {
	ledger.ToolCall
	Output string `json:"output"`
}

// ToolEnd ends a call of a tool.
type ToolEnd struct {
	ledger.ToolCall
	IsError bool `json:"isError"`
}

// ToolResult is what the model gets of a call, as text.
type ToolResult struct {
	Result string `json:"result"`
}

// PermissionAsk is what a harness asks, in its own words.
type PermissionAsk struct {
	Request any `json:"request"`
}

// Queue counts what a harness has been told and not yet told its model.
type Queue struct {
	Steering int `json:"steering"`
	FollowUp int `json:"followUp"`
}

// Retry says that the harness asks its provider again.
type Retry struct {
	Attempt     int64  `json:"attempt"`
	MaxAttempts int64  `json:"maxAttempts"`
	DelayMs     int64  `json:"delayMs"`
	Error       string `json:"error"`
}

// RetryEnd says what became of that.
type RetryEnd struct {
	Success bool   `json:"success"`
	Attempt int64  `json:"attempt"`
	Error   string `json:"error"`
}

// Compaction says that a conversation is about to be summarized.
type Compaction struct {
	Reason string `json:"reason"`
}

// CompactionEnd says what became of that. The numbers of tokens are 0 where
// they are not known.
type CompactionEnd struct {
	Compaction
	Aborted      bool    `json:"aborted"`
	Error        string  `json:"error"`
	TokensBefore float64 `json:"tokensBefore"`
	TokensAfter  float64 `json:"tokensAfter"`
}

// CompactionBody is what stands in the conversation's place.
type CompactionBody struct {
	Summary string `json:"summary"`
}

// ExtensionError is a failure inside an extension of the harness.
type ExtensionError struct {
	Extension string `json:"extension"`
	Event     string `json:"event"` // what it was told when it failed
}

// ExtensionErrorBody is its text.
type ExtensionErrorBody struct {
	Error string `json:"error"`
}

// Decisions of a permission request. DecisionCancelled is nobody's answer: the
// request ended with its turn or its process.
const (
	DecisionOnce      = "once"
	DecisionAlways    = "always"
	DecisionReject    = "reject"
	DecisionCancelled = "cancelled"
)

// ValidDecision reports whether d may be given to Protocol.Answer.
func ValidDecision(d string) bool {
	return d == DecisionOnce || d == DecisionAlways || d == DecisionReject
}

// String says how the process ended, in one line: its code or signal, and the
// last line it wrote to its standard error.
func (e Exit) String() string {
	var b strings.Builder
	switch {
	case e.Signal != "":
		fmt.Fprintf(&b, "harness was killed by %s", e.Signal)
	default:
		fmt.Fprintf(&b, "harness exited with code %d", e.Code)
	}
	if e.OOMHint {
		b.WriteString(" (the kernel killed for memory while it lived)")
	}
	stderr := strings.TrimRight(e.Stderr, "\n\r\t ")
	if i := strings.LastIndexByte(stderr, '\n'); i >= 0 {
		stderr = stderr[i+1:]
	}
	if stderr != "" {
		b.WriteString(": " + cut(strings.ToValidUTF8(stderr, "\uFFFD"), maxUnreadable))
	}
	return b.String()
}

// cut shortens s to at most n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
