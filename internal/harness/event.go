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
