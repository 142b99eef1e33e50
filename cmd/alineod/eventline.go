package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// widest is the longest text of an event that is shown, in characters.
const widest = 200

// eventFields are what the lines show of events' data. Each event has some.
type eventFields struct {
	AgentID    string `json:"agentId"`
	TS         int64  `json:"ts"`
	Turn       int    `json:"turn"`
	From       string `json:"from"`
	To         string `json:"to"`
	Reason     string `json:"reason"`
	Outcome    string `json:"outcome"`
	Class      string `json:"class"`
	Error      string `json:"error"`
	SandboxID  string `json:"sandboxId"`
	Previous   string `json:"previousSandboxId"`
	Rung       string `json:"rung"`
	TookMs     int64  `json:"tookMs"`
	Checkpoint *struct {
		Turn int `json:"turn"`
	} `json:"checkpoint"`
	Bytes     int64           `json:"bytes"`
	Files     int64           `json:"files"`
	Role      string          `json:"role"`
	Text      string          `json:"text"`
	Name      string          `json:"name"`
	Args      json.RawMessage `json:"args"`
	Result    json.RawMessage `json:"result"`
	IsError   bool            `json:"isError"`
	RequestID string          `json:"requestId"`
	Title     string          `json:"title"`
	Decision  string          `json:"decision"`
	Message   json.RawMessage `json:"message"`
	SpecName  string          `json:"specName"`
	Harness   string          `json:"harness"`
	Delta     string          `json:"delta"`
	Output    string          `json:"output"`
	Attempt   int             `json:"attempt"`
	Provider  string          `json:"provider"`
}

// eventLine is an event in one line: when, whose, what, and what matters of
// it. An event of an unknown name shows its data.
func eventLine(ev client.Event, withAgent bool) string {
	var f eventFields
	if json.Unmarshal(ev.Data, &f) != nil {
		// A field of another type than is expected here: show all of it.
		f = eventFields{}
		return strings.TrimRight(fmt.Sprintf("%-24s %s", line(ev.Name), compact(ev.Data)), " ")
	}
	var b strings.Builder
	if f.TS != 0 {
		b.WriteString(time.UnixMilli(f.TS).Format("15:04:05 "))
	}
	if withAgent && f.AgentID != "" {
		fmt.Fprintf(&b, "%s ", f.AgentID)
	}
	fmt.Fprintf(&b, "%-24s %s", ev.Name, cut(describe(ev, f), widest))
	return strings.TrimRight(line(b.String()), " ")
}

func describe(ev client.Event, f eventFields) string {
	switch ev.Name {
	case ledger.AgentSpawned:
		return words(f.SpecName, f.Harness)
	case ledger.AgentStateChanged:
		return words(f.From+" → "+f.To, in(f.Reason))
	case ledger.AgentProvisioned, ledger.SandboxOrphaned, ledger.SandboxRemoved:
		return words(f.SandboxID, in(f.Reason))
	case ledger.AgentRecovered:
		s := words(f.Rung, f.SandboxID)
		if f.Previous != "" && f.Previous != f.SandboxID {
			s = words(s, "instead of "+f.Previous)
		}
		if f.Checkpoint != nil {
			s = words(s, fmt.Sprintf("from turn %d", f.Checkpoint.Turn))
		}
		return words(s, took(f.TookMs))
	case ledger.AgentCheckpointed:
		return words(turn(f.Turn), fmt.Sprintf("%d files, %s", f.Files, size(f.Bytes)), took(f.TookMs))
	case ledger.TurnRequested, ledger.TurnStarted:
		return words(turn(f.Turn), f.Text)
	case ledger.TurnEnded:
		return words(turn(f.Turn), f.Outcome, f.Class, f.Error, took(f.TookMs))
	case ledger.HandleSettled, ledger.AgentEnded, ledger.AgentTurnFailed, ledger.AgentTurnInterrupted,
		ledger.AgentCheckpointFailed, ledger.AgentDiagnosed, ledger.AgentStopped, ledger.AgentRevived,
		ledger.AgentReleased, ledger.RunClosed:
		return words(turn(f.Turn), f.Outcome, f.Class, f.Reason, f.Error)
	case ledger.MessageEnded:
		return f.Role + ": " + messageText(f)
	case harness.MessageUpdated:
		return f.Delta
	case ledger.ToolStarted:
		return words(f.Name, compact(f.Args))
	case harness.ToolUpdated:
		return words(f.Name, f.Output)
	case ledger.ToolEnded:
		if f.IsError {
			return words(f.Name, "failed:", plain(f.Result))
		}
		return words(f.Name, plain(f.Result))
	case ledger.PermissionRequested, ledger.PermissionResolved:
		return words(f.RequestID, f.Title, f.Decision)
	case ledger.AgentQuotaExhausted:
		return words(f.Provider, f.Reason)
	case ledger.RunStarted, ledger.SessionStarted, ledger.SessionEnded, ledger.SnapshotCreated:
		return ""
	}
	return compact(without(ev.Data, "agentId", "runId", "ts"))
}

// messageText is what a message says, wherever it stands.
func messageText(f eventFields) string {
	if f.Text != "" {
		return f.Text
	}
	var m struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(f.Message, &m) == nil && m.Text != nil {
		return *m.Text // empty where a message only calls tools
	}
	return compact(f.Message)
}

// words joins those that are not empty.
func words(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" }), " ")
}

func in(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func turn(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("turn %d", n)
}

func took(ms int64) string {
	if ms == 0 {
		return ""
	}
	return in((time.Duration(ms) * time.Millisecond).String())
}

// plain is a JSON string's text, or the JSON itself.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return compact(raw)
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return line(string(raw))
	}
	return line(b.String())
}

// without leaves fields out of an object.
func without(raw json.RawMessage, names ...string) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return raw
	}
	for _, name := range names {
		delete(fields, name)
	}
	if len(fields) == 0 {
		return nil
	}
	out, err := json.Marshal(fields)
	if err != nil {
		return raw
	}
	return out
}
