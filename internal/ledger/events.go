package ledger

import "encoding/json"

// Names of the events in the ledger. The public ones reach the clients of the
// API; the internal ones carry what a boot needs to know.
const (
	RunStarted   = "run.started"
	RunQuiescent = "run.quiescent"
	RunClosed    = "run.closed"

	AgentSpawned          = "agent.spawned"
	AgentProvisioned      = "agent.provisioned"
	AgentStateChanged     = "agent.state_changed"
	AgentSteered          = "agent.steered"
	AgentEnded            = "agent.ended"
	AgentReleased         = "agent.released"
	AgentCheckpointed     = "agent.checkpointed"
	AgentCheckpointFailed = "agent.checkpoint_failed"
	AgentRecovered        = "agent.recovered"
	AgentTurnFailed       = "agent.turn_failed"
	AgentTurnInterrupted  = "agent.turn_interrupted"
	AgentStopped          = "agent.stopped"
	AgentRevived          = "agent.revived"
	AgentDiagnosed        = "agent.diagnosed"
	AgentQuotaExhausted   = "agent.quota_exhausted"
	AgentForked           = "agent.forked"

	WaitResolved = "wait.resolved"
	WaitBlocked  = "wait.blocked"
	BudgetDenied = "budget.denied"

	AdmissionQueued  = "agent.admission_queued"  // its sandbox is to be made when it is its turn
	AdmissionGranted = "agent.admission_granted" // it is
	AdmissionTimeout = "agent.admission_timeout" // it did not come in time

	NotifyRegistered = "notify.registered" // an agent wants to be told when others settle
	InboxQueued      = "inbox.queued"      // there is something to tell it
	InboxDelivered   = "inbox.delivered"
	InboxDropped     = "inbox.dropped" // it is over: nobody is told

	TurnRequested = "turn.requested"
	TurnStarted   = "turn.started"
	TurnEnded     = "turn.ended"
	HandleSettled = "handle.settled"

	SnapshotCreated = "snapshot.created"
	SandboxOrphaned = "sandbox.orphaned"
	SandboxRemoved  = "sandbox.removed"

	// From the harness, by way of the bridge.
	SessionStarted      = "session.started"
	SessionEnded        = "session.ended"
	MessageEnded        = "message.ended"
	ToolStarted         = "tool.started"
	ToolEnded           = "tool.ended"
	PermissionRequested = "permission.requested"
	PermissionResolved  = "permission.resolved"
	CompactionStarted   = "compaction.started"
	CompactionEnded     = "compaction.ended"
	RetryStarted        = "retry.started"
	RetryEnded          = "retry.ended"
	ExtensionError      = "extension.error"

	// Internal.
	SandboxIntended    = "sandbox.intended"    // before a sandbox is made
	SandboxCreated     = "sandbox.created"     // it answers to its id
	SandboxReleased    = "sandbox.released"    // no longer its agent's; to be removed
	CheckpointPruned   = "checkpoint.pruned"   // its file may be removed
	CheckpointDamaged  = "checkpoint.damaged"  // skipped by a restore, with the reason
	SnapshotIntended   = "snapshot.intended"   // before a setup snapshot is built
	SnapshotGone       = "snapshot.gone"       // its image has vanished
	RequestAccepted    = "request.accepted"    // an idempotency key and its answer
	CheckpointIntended = "checkpoint.intended" // a turn that ended cleanly owes a checkpoint
	PermissionAnswered = "permission.answered" // an answer, before it is handed over
	DiagnosticStored   = "diagnostic.stored"   // a line of a sandbox that could not be read
	IntentStop         = "intent.stop"         // a stop that was asked for, before it is done
	WaitOpened         = "wait.opened"         // what a held agent waits for
	MemorySet          = "memory.set"          // an agent remembers a value
	MemoryDeleted      = "memory.deleted"      // it forgets one
	InboxSending       = "inbox.sending"       // what is about to be said into a turn
)

// internalEvents never leave the daemon.
var internalEvents = map[string]bool{
	SandboxIntended: true, SandboxCreated: true, SandboxReleased: true,
	CheckpointPruned: true, CheckpointDamaged: true, CheckpointIntended: true,
	SnapshotIntended: true, SnapshotGone: true, RequestAccepted: true,
	PermissionAnswered: true, DiagnosticStored: true, IntentStop: true, WaitOpened: true,
	MemorySet: true, MemoryDeleted: true, InboxSending: true,
}

// Public reports whether clients of the API see events of that name.
func Public(event string) bool { return !internalEvents[event] }

// The payloads that projections are folded from. Times are Unix milliseconds,
// durations milliseconds. What no projection needs goes into an entry's Body.

// RunStartedPayload of run.started.
type RunStartedPayload struct {
	RootAgentID string `json:"rootAgentId"`
	CloseWhen   string `json:"closeWhen"` // explicit or quiescent
	// MaxAgentsTotal is how many agents the run may ever have; nil: no ceiling.
	MaxAgentsTotal *int `json:"maxAgentsTotal,omitempty"`
}

// RunQuiescentPayload of run.quiescent: at AsOf, nothing of the run was at work.
type RunQuiescentPayload struct {
	AsOf int64 `json:"asOf"`
}

// RunClosedPayload of run.closed.
type RunClosedPayload struct {
	Reason string `json:"reason"`
}

// AgentSpawnedPayload of agent.spawned. The entry's Body is {"spec": …}.
type AgentSpawnedPayload struct {
	ParentAgentID string `json:"parentAgentId,omitempty"`
	Depth         int    `json:"depth"`
	SpawnIndex    int    `json:"spawnIndex"`
	SpecName      string `json:"specName"`
	Harness       string `json:"harness"`
	Model         string `json:"model,omitempty"`
	Runtime       string `json:"runtime"`
	State         string `json:"state"` // provisioning or spawning
	Checkpointing bool   `json:"checkpointing"`
	SpawnDepth    *int   `json:"spawnDepth,omitempty"` // levels that may be spawned below it
	MaxAgents     *int   `json:"maxAgents,omitempty"`  // that may live below it
	SetupHash     string `json:"setupHash"`
}

// AgentForkedPayload of agent.forked: the image of another agent's sandbox that
// the agent's own sandboxes are made from.
type AgentForkedPayload struct {
	From      string `json:"from"` // the agent
	SandboxID string `json:"sandboxId"`
	Image     string `json:"image"`
	SetupHash string `json:"setupHash"` // of the agent forked from
	// Marked: files were written just before the copy, to be found in it. A
	// frozen sandbox cannot be marked.
	Marked bool  `json:"marked"`
	TookMs int64 `json:"tookMs"`
}

// WaitOpenedPayload of wait.opened. The agent stays in the state spawning until
// it is resolved.
type WaitOpenedPayload struct {
	Agents     []string `json:"agents"`
	Mode       string   `json:"mode"` // settled, all, any, quorum
	K          int      `json:"k,omitempty"`
	OnDepFail  string   `json:"onDepFailure"`         // fail, proceed
	DeadlineAt int64    `json:"deadlineAt,omitempty"` // Unix milliseconds; 0: none
	OnDeadline string   `json:"onDeadline,omitempty"` // proceed, fail
}

// MemoryPayload of memory.set and, without a value, memory.deleted.
type MemoryPayload struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
}

// AdmissionPayload of agent.admission_queued, _granted and _timeout.
type AdmissionPayload struct {
	// Ahead are those before it in the queue of its run, at that moment.
	Ahead    int   `json:"ahead,omitempty"`
	WaitedMs int64 `json:"waitedMs,omitempty"`
}

// NotifyRegisteredPayload of notify.registered. Each of the agents is told of
// once, when its handle is settled the next time; at once where it is.
type NotifyRegisteredPayload struct {
	Agents []string `json:"agents"`
	// Wake: an idle agent is told in a turn of its own.
	Wake bool `json:"wake"`
}

// Kinds of items in an inbox.
const (
	InboxSettled = "settled" // an agent it asked to be told about
	InboxBlocked = "blocked" // a child of it waits for a person
)

// InboxQueuedPayload of inbox.queued, whose seq is the item's number. Its body
// holds the text.
type InboxQueuedPayload struct {
	Kind     string `json:"kind"` // settled, blocked
	From     string `json:"from"`
	FromTurn string `json:"fromTurn,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Wake     bool   `json:"wake,omitempty"`
}

// InboxItemsPayload of inbox.sending, inbox.delivered and inbox.dropped.
type InboxItemsPayload struct {
	Items []int64 `json:"items"`
	// Delivery is how they were told: steer, prompt (with one) or turn (in one
	// of their own).
	Delivery string `json:"delivery,omitempty"`
}

// WaitResolvedPayload of wait.resolved and wait.blocked.
type WaitResolvedPayload struct {
	Outcome  string       `json:"outcome"`  // satisfied, partial, depfail
	Selected []string     `json:"selected"` // those that decided it
	Settled  []WaitMember `json:"settled"`
	Pending  []string     `json:"pending"`
	Reason   string       `json:"reason,omitempty"`
}

// WaitMember is an agent that was waited for and has settled.
type WaitMember struct {
	AgentID string `json:"agentId"`
	Outcome string `json:"outcome"`
}

// BudgetDeniedPayload of budget.denied.
type BudgetDeniedPayload struct {
	Dimension string `json:"dimension"` // spawnDepth, maxAgents, maxAgentsTotal
	Limit     int    `json:"limit"`
	Holder    string `json:"holder,omitempty"` // the agent whose budget it is
}

// SandboxIntendedPayload of sandbox.intended. The entry's SandboxID is the one
// chosen; AgentID is empty for the builder of a setup snapshot.
type SandboxIntendedPayload struct {
	Runtime    string `json:"runtime"`
	Generation int    `json:"generation"`
	Purpose    string `json:"purpose"` // provision, restore, rollback, setup
	Image      string `json:"image,omitempty"`
}

// SandboxCreatedPayload of sandbox.created.
type SandboxCreatedPayload struct {
	Handle    string `json:"handle"`
	Transport string `json:"transport"`
}

// AgentProvisionedPayload of agent.provisioned: from here on the entry's
// SandboxID is the agent's sandbox. SessionID and Messages are what its
// harness said of its session.
type AgentProvisionedPayload struct {
	SandboxID string `json:"sandboxId"`
	SessionID string `json:"sessionId,omitempty"`
	Messages  int    `json:"messages"`
}

// ReasonPayload of events that only say why: sandbox.released,
// sandbox.removed, sandbox.orphaned, agent.released, agent.stopped,
// agent.revived.
type ReasonPayload struct {
	Reason string `json:"reason"`
}

// AgentStateChangedPayload of agent.state_changed.
type AgentStateChangedPayload struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
	// PausedBy is set with To "paused".
	PausedBy string `json:"pausedBy,omitempty"`
	// Recovering is set with To "recovering": why it is held there, as
	// runtime_unreachable.
	Recovering string `json:"recovering,omitempty"`
	// Forgiven: its failures so far count no more.
	Forgiven bool `json:"forgiven,omitempty"`
}

// AgentEndedPayload of agent.ended.
type AgentEndedPayload struct {
	Outcome string `json:"outcome"`
	EndedAt int64  `json:"endedAt"`
	Error   string `json:"error,omitempty"`
}

// TurnRequestedPayload of turn.requested. The entry's Body is
// {"text": …, "images": […]}.
type TurnRequestedPayload struct {
	Turn    int    `json:"turn"`
	RetryOf string `json:"retryOf,omitempty"` // the turn this one repeats
	Attempt int    `json:"attempt,omitempty"` // 1 for the first repetition
}

// TurnStartedPayload of turn.started.
type TurnStartedPayload struct {
	Turn int `json:"turn"`
}

// TurnEndedPayload of turn.ended. The entry's Body is {"result": …}.
type TurnEndedPayload struct {
	Turn    int    `json:"turn"`
	Outcome string `json:"outcome"`         // success, failed, aborted, interrupted, lost
	Class   string `json:"class,omitempty"` // of a failure, a class of the diagnosis
	Error   string `json:"error,omitempty"`
	// SessionID and Messages are what the harness said of its session when it
	// was idle again.
	SessionID string `json:"sessionId,omitempty"`
	Messages  int    `json:"messages"`
	// ToolCalls are the calls that were in flight in an interrupted turn.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
	TookMs    int64      `json:"tookMs"`
	// OwesCheckpoint: the turn ended cleanly and its agent takes checkpoints.
	OwesCheckpoint bool `json:"owesCheckpoint,omitempty"`
	// Retried: its prompt is asked again; it counts as no failure of the agent.
	Retried bool `json:"retried,omitempty"`
	// Blocked is why the agent takes no prompt until a person lets it go on.
	Blocked string `json:"blocked,omitempty"`
	// Parks: what it asked and nobody settled may be asked again, and answered
	// meanwhile.
	Parks bool `json:"parks,omitempty"`
}

// AgentTurnFailedPayload of agent.turn_failed.
type AgentTurnFailedPayload struct {
	Turn  int    `json:"turn"`
	Class string `json:"class"` // of the diagnosis; empty where there is none
	Error string `json:"error"`
}

// AgentTurnInterruptedPayload of agent.turn_interrupted.
type AgentTurnInterruptedPayload struct {
	Turn      int        `json:"turn"`
	Error     string     `json:"error"`
	ToolCalls []ToolCall `json:"toolCalls"` // that were in flight
}

// ToolCall names one call of a tool.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// HandleSettledPayload of handle.settled: how the agent's last turn ended.
type HandleSettledPayload struct {
	Outcome   string `json:"outcome"`
	ResultRef string `json:"resultRef,omitempty"` // "turn:" and the turn's id
}

// AgentCheckpointedPayload of agent.checkpointed.
type AgentCheckpointedPayload struct {
	Turn        int    `json:"turn"`
	TurnID      string `json:"turnId,omitempty"`
	SnapshotRef string `json:"snapshotRef"`
	SHA256      string `json:"sha256"`
	Bytes       int64  `json:"bytes"` // as stored
	Files       int64  `json:"files"`
	TookMs      int64  `json:"tookMs"`
	SessionID   string `json:"sessionId,omitempty"`
	Messages    int    `json:"messages"`
	// Imported: brought in by a person, not taken from the sandbox.
	Imported bool `json:"imported,omitempty"`
}

// CheckpointRefPayload of checkpoint.pruned and checkpoint.damaged.
type CheckpointRefPayload struct {
	SnapshotRef string `json:"snapshotRef"`
	Reason      string `json:"reason,omitempty"`
}

// AgentCheckpointFailedPayload of agent.checkpoint_failed.
type AgentCheckpointFailedPayload struct {
	Turn  int    `json:"turn"`
	Error string `json:"error"`
}

// AgentRecoveredPayload of agent.recovered.
type AgentRecoveredPayload struct {
	Rung              string             `json:"rung"` // reattached, resumed, restarted, restored
	SandboxID         string             `json:"sandboxId"`
	PreviousSandboxID string             `json:"previousSandboxId,omitempty"`
	Checkpoint        *CheckpointSummary `json:"checkpoint"`
	Blank             bool               `json:"blank,omitempty"` // no conversation came back
	InterruptedTurnID string             `json:"interruptedTurnId,omitempty"`
	TookMs            int64              `json:"tookMs"`
	Attempts          []RungAttempt      `json:"attempts"`
	SessionID         string             `json:"sessionId,omitempty"`
	Messages          int                `json:"messages"`
}

// CheckpointSummary names a checkpoint.
type CheckpointSummary struct {
	Turn int    `json:"turn"`
	Ref  string `json:"ref"`
}

// RungAttempt is one rung that was tried and failed.
type RungAttempt struct {
	Rung  string `json:"rung"`
	Error string `json:"error"`
}

// SessionPayload of session.started and session.ended.
type SessionPayload struct {
	SessionID string `json:"sessionId"`
	Messages  int    `json:"messages"`
	Continued bool   `json:"continued,omitempty"`
}

// PermissionRequestedPayload of permission.requested. What is asked stands in
// the Body.
type PermissionRequestedPayload struct {
	RequestID string `json:"requestId"`
	Title     string `json:"title,omitempty"`
}

// PermissionResolvedPayload of permission.answered and permission.resolved.
type PermissionResolvedPayload struct {
	RequestID string `json:"requestId"`
	Decision  string `json:"decision"` // once, always, reject, cancelled
	// Of is the parked request whose answer is given again.
	Of       string `json:"of,omitempty"`
	Feedback string `json:"feedback,omitempty"`
}

// SnapshotPayload of snapshot.intended, snapshot.created and snapshot.gone: a
// setup snapshot. Skipped names the steps whose result was there already.
type SnapshotPayload struct {
	Runtime string   `json:"runtime"`
	Hash    string   `json:"hash"`
	Ref     string   `json:"ref,omitempty"`
	TookMs  int64    `json:"tookMs,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// AgentDiagnosedPayload of agent.diagnosed. The evidence stands in the Body.
type AgentDiagnosedPayload struct {
	Class string `json:"class"`
	Error string `json:"error,omitempty"`
}

// IntentStopPayload of intent.stop.
type IntentStopPayload struct {
	Mode string `json:"mode"` // abort, stop, drain
}

// RequestAcceptedPayload of request.accepted. Scope is the route with its
// identifiers; BodyHash tells a repetition from another use of the key.
type RequestAcceptedPayload struct {
	Scope    string `json:"scope"`
	Key      string `json:"key"`
	BodyHash string `json:"bodyHash"`
	Status   int    `json:"status"`
	Answer   []byte `json:"answer,omitempty"`
}
