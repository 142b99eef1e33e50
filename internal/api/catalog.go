package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// origin is what the data of every event can have, beside its own fields: what
// it is about.
type origin struct {
	AgentID   string `json:"agentId,omitempty"`
	RunID     string `json:"runId,omitempty"`
	SandboxID string `json:"sandboxId,omitempty"`
	TurnID    string `json:"turnId,omitempty"`
	TS        int64  `json:"ts,omitempty" doc:"Unix milliseconds; only of stored events"`
	By        string `json:"by,omitempty" doc:"The agent that asked for it from inside its sandbox"`
}

// eventDoc documents an event: the values are an example, and their types what
// its data is made of.
type eventDoc struct {
	name, doc     string
	payload, body any
}

type specBody struct {
	Spec json.RawMessage `json:"spec"`
}

// resultBody: a turn that the harness did not end has none.
type resultBody struct {
	Result string `json:"result,omitempty"`
}

type textBody struct {
	Text string `json:"text"`
}

type attemptsBody struct {
	Attempts []ledger.RungAttempt `json:"attempts,omitempty"`
}

type steeredBody struct {
	Message string `json:"message"`
}

// catalog is every event a stream can carry.
func catalog() []eventDoc {
	return []eventDoc{
		{ledger.RunStarted, "A run began", ledger.RunStartedPayload{RootAgentID: exAgent, CloseWhen: "explicit", MaxAgentsTotal: bare(20)}, nil},
		{ledger.RunQuiescent, "Nothing of the run is at work", ledger.RunQuiescentPayload{AsOf: 812}, nil},
		{ledger.RunClosed, "The run is over", ledger.RunClosedPayload{Reason: "deleted"}, nil},

		{ledger.AgentSpawned, "An agent was asked for", ledger.AgentSpawnedPayload{SpecName: "worker", Harness: "pi", Model: "claude-sonnet-4-5",
			Runtime: "docker", State: swarm.StateProvisioning, Depth: 1, ParentAgentID: exParent, Checkpointing: true, SpawnDepth: bare(2), MaxAgents: bare(5), SetupHash: exHash},
			specBody{json.RawMessage(`{"harness":"pi","checkpoint":true}`)}},
		{ledger.AgentForked, "Its sandbox's files are a copy of another agent's", ledger.AgentForkedPayload{From: exParent, SandboxID: exSandbox,
			Image: "sha256:" + exHash, SetupHash: exHash, Marked: true, TookMs: 840}, nil},
		{ledger.AgentProvisioned, "It has a sandbox, and its harness is up", ledger.AgentProvisionedPayload{SandboxID: exSandbox, SessionID: "5f0c"}, nil},
		{ledger.AgentStateChanged, "It went from one state to another", ledger.AgentStateChangedPayload{From: swarm.StateRunning, To: swarm.StatePaused,
			Reason: "asked for", PausedBy: "user"}, nil},
		{ledger.AgentSteered, "Something was said into its turn", struct{}{}, steeredBody{"leave the tests alone"}},
		{ledger.AgentEnded, "It is over", ledger.AgentEndedPayload{Outcome: swarm.OutcomeAborted, EndedAt: exTime}, nil},
		{ledger.AgentReleased, "Its sandbox is being removed", ledger.ReasonPayload{Reason: "aborted"}, nil},
		{ledger.AgentCheckpointed, "Its home was saved", ledger.AgentCheckpointedPayload{Turn: 3, TurnID: exTurn, SnapshotRef: exRef, SHA256: exHash,
			Bytes: 184320, Files: 61, TookMs: 95, SessionID: "5f0c", Messages: 12}, nil},
		{ledger.AgentCheckpointFailed, "Its home could not be saved", ledger.AgentCheckpointFailedPayload{Turn: 3, Error: "no space left on device"}, nil},
		{ledger.AgentRecovered, "It came back", ledger.AgentRecoveredPayload{Rung: "restored", SandboxID: exSandbox, PreviousSandboxID: "s_7bb1029acd55",
			Checkpoint: &ledger.CheckpointSummary{Turn: 3, Ref: exRef}, InterruptedTurnID: exTurn, TookMs: 2100,
			Attempts: []ledger.RungAttempt{{Rung: "reattached", Error: "no such container"}}, SessionID: "5f0c", Messages: 12}, nil},
		{ledger.AgentTurnFailed, "A turn of it failed", ledger.AgentTurnFailedPayload{Turn: 4, Class: "provider_error", Error: "529 overloaded"}, nil},
		{ledger.AgentTurnInterrupted, "A turn of it was cut off", ledger.AgentTurnInterruptedPayload{Turn: 4, Error: "the sandbox is gone",
			ToolCalls: []ledger.ToolCall{exCall}}, nil},
		{ledger.AgentStopped, "It was stopped and keeps its sandbox", ledger.ReasonPayload{Reason: "asked for"}, nil},
		{ledger.AgentRevived, "It was brought back", ledger.ReasonPayload{Reason: "asked for"}, nil},
		{ledger.AgentDiagnosed, "Why something of it failed", ledger.AgentDiagnosedPayload{Class: "missing_credentials", Error: "401 invalid x-api-key"},
			attemptsBody{[]ledger.RungAttempt{{Rung: "resumed", Error: "no such container"}}}},
		{ledger.AgentQuotaExhausted, "Its provider refuses for now", harness.Quota{Provider: "anthropic", Window: "5h", Status: "exhausted",
			ResetsAt: exTime, Source: "usage limit reached"}, nil},

		{ledger.WaitResolved, "What a held agent waits for has come", exWait, nil},
		{ledger.WaitBlocked, "It can not come any more", exWait, nil},
		{ledger.BudgetDenied, "A budget is used up", ledger.BudgetDeniedPayload{Dimension: "maxAgents", Limit: 5, Holder: exParent}, nil},
		{ledger.AdmissionQueued, "Too many sandboxes are being made: it waits for its turn", ledger.AdmissionPayload{Ahead: 2}, nil},
		{ledger.AdmissionGranted, "Its sandbox is being made", ledger.AdmissionPayload{WaitedMs: 5200}, nil},
		{ledger.AdmissionTimeout, "Its turn did not come in time", ledger.AdmissionPayload{WaitedMs: 3600000}, nil},
		{ledger.NotifyRegistered, "It is to be told when others settle", ledger.NotifyRegisteredPayload{Agents: []string{exAgent}, Wake: true}, nil},
		{ledger.InboxQueued, "There is something to tell it; the item's number is the event's id",
			ledger.InboxQueuedPayload{Kind: ledger.InboxSettled, From: exAgent, FromTurn: exTurn, Outcome: swarm.OutcomeSuccess, Wake: true}, textBody{"agent worker has settled: success"}},
		{ledger.InboxDelivered, "It was told", ledger.InboxItemsPayload{Items: []int64{812}, Delivery: "steer"}, nil},
		{ledger.InboxDropped, "It is over: nobody is told", ledger.InboxItemsPayload{Items: []int64{812}}, nil},

		{ledger.TurnRequested, "It was prompted", ledger.TurnRequestedPayload{Turn: 4, RetryOf: "t_41c0de993e20", Attempt: 1}, harness.Prompt{Text: "Fix the build"}},
		{ledger.TurnStarted, "Its harness has the prompt", ledger.TurnStartedPayload{Turn: 4}, nil},
		{ledger.TurnEnded, "The turn is over", ledger.TurnEndedPayload{Turn: 4, Outcome: swarm.OutcomeSuccess, SessionID: "5f0c", Messages: 14,
			TookMs: 61000, OwesCheckpoint: true}, resultBody{Result: "The build is green."}},
		{ledger.HandleSettled, "How its last turn ended", ledger.HandleSettledPayload{Outcome: swarm.OutcomeSuccess, ResultRef: "turn:" + exTurn}, nil},

		{ledger.SnapshotCreated, "A setup was built, to be used by all with the same one", ledger.SnapshotPayload{Runtime: "docker", Hash: exHash,
			Ref: "sha256:" + exHash, TookMs: 41000, Skipped: []string{"node"}}, nil},
		{ledger.SandboxOrphaned, "A sandbox was found that is nobody's", ledger.ReasonPayload{Reason: "unknown"}, nil},
		{ledger.SandboxRemoved, "A sandbox was removed", ledger.ReasonPayload{Reason: "replaced"}, nil},

		{ledger.SessionStarted, "The harness began or continued a conversation", ledger.SessionPayload{SessionID: "5f0c", Messages: 12, Continued: true}, nil},
		{ledger.SessionEnded, "The harness ended", ledger.SessionPayload{SessionID: "5f0c", Messages: 14}, nil},
		{ledger.MessageEnded, "A message was said whole", harness.Message{Role: "assistant"}, harness.MessageBody{
			Message: map[string]any{"role": "assistant", "content": "The build is green."}, Text: "The build is green."}},
		{ledger.ToolStarted, "A tool was called", exCall, harness.ToolArgs{Args: json.RawMessage(`{"command":"make"}`)}},
		{ledger.ToolEnded, "The call ended", harness.ToolEnd{ToolCall: exCall}, harness.ToolResult{Result: "ok"}},
		{ledger.PermissionRequested, "The harness asks leave", ledger.PermissionRequestedPayload{RequestID: "q7", Title: "Run rm -r build?"},
			harness.PermissionAsk{Request: map[string]any{"method": "confirm"}}},
		{ledger.PermissionResolved, "That was decided", ledger.PermissionResolvedPayload{RequestID: "q7", Decision: "once"}, nil},
		{ledger.CompactionStarted, "The conversation is about to be summarized", harness.Compaction{Reason: "threshold"}, nil},
		{ledger.CompactionEnded, "It was, or was not", harness.CompactionEnd{Compaction: harness.Compaction{Reason: "threshold"}, TokensBefore: 180000, TokensAfter: 9000},
			harness.CompactionBody{Summary: "The build was fixed."}},
		{ledger.RetryStarted, "The harness asks its provider again", harness.Retry{Attempt: 1, MaxAttempts: 3, DelayMs: 2000, Error: "529 overloaded"}, nil},
		{ledger.RetryEnded, "That came off, or did not", harness.RetryEnd{Success: true, Attempt: 1}, nil},
		{ledger.ExtensionError, "An extension of the harness failed", harness.ExtensionError{Extension: "guard.ts", Event: "tool_call"}, harness.ExtensionErrorBody{Error: "x is not a function"}},

		{harness.MessageUpdated, "A piece of a message; never stored", harness.MessageDelta{Delta: "The bu", Kind: "text"}, nil},
		{harness.ToolUpdated, "What a tool has written so far; never stored", harness.ToolOutput{ToolCall: exCall, Output: "cc main.c"}, nil},
		{harness.QueueUpdated, "What the harness has still to tell its model; never stored", harness.Queue{Steering: 1}, nil},
	}
}

// streamed is the media type of a stream of events. Its schema is that of the
// list of all events it carries, as OpenAPI 3.1 has no other way to say it.
func (rs *routes) streamed() *huma.MediaType {
	const shared = "Event"
	if rs.registry.Map()[shared] == nil {
		union := &huma.Schema{Description: "An event of a stream. New kinds of events and fields may come: skip what you do not know."}
		for _, e := range catalog() {
			name := schemaOfEvent(e.name)
			rs.registry.Map()[name] = rs.eventSchema(e)
			union.AnyOf = append(union.AnyOf, &huma.Schema{Ref: schemasPrefix + name})
		}
		rs.registry.Map()[shared] = union
	}
	return &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Ref: schemasPrefix + shared}}}
}

// eventSchema describes a whole event: its id, its name and its data.
func (rs *routes) eventSchema(e eventDoc) *huma.Schema {
	data := &huma.Schema{}
	for _, part := range []any{origin{}, e.payload, e.body} {
		if t := reflect.TypeOf(part); t != nil && t.NumField() > 0 {
			data.AllOf = append(data.AllOf, rs.registry.Schema(t, true, ""))
		}
	}
	live := liveOnly(e.name)
	required := []string{"event", "data"}
	properties := map[string]*huma.Schema{
		"event": {Type: huma.TypeString, Enum: []any{e.name}},
		"data":  data,
	}
	if !live {
		properties["id"] = &huma.Schema{Type: huma.TypeInteger, Minimum: bound(1), Description: "Its number in the ledger; what Last-Event-ID takes"}
		required = append(required, "id")
	}
	return &huma.Schema{Title: e.name, Description: e.doc, Type: huma.TypeObject, Properties: properties, Required: required,
		Examples: []any{e.example(live)}}
}

func liveOnly(name string) bool {
	return name == harness.MessageUpdated || name == harness.ToolUpdated || name == harness.QueueUpdated
}

// example is the event as a client reads it.
func (e eventDoc) example(live bool) any {
	row := ledger.Event{RunID: exRun, AgentID: exAgent, TurnID: exTurn, Event: e.name}
	whole := map[string]any{"event": e.name}
	if !live {
		row.TS = exTime
		whole["id"] = 812
	}
	row.Payload, row.Body = mustJSON(e.payload), mustJSON(e.body)
	whole["data"] = row.Data()
	return whole
}

// mustJSON marshals one of the examples, which are this package's own.
func mustJSON(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("example %T: %v", v, err))
	}
	return b
}

// schemaOfEvent is AgentStateChangedEvent for agent.state_changed.
func schemaOfEvent(name string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '.' || r == '_' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String() + "Event"
}
