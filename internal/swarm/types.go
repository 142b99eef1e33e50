package swarm

import (
	"encoding/json"
	"errors"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// Kinds of errors. Every error of this package that a client caused or can
// act on is an *Error of one of these kinds.
var (
	ErrInvalid     = errors.New("invalid request")      // 400
	ErrNotFound    = errors.New("not found")            // 404
	ErrConflict    = errors.New("conflict")             // 409
	ErrRefused     = errors.New("harness refused")      // 502
	ErrUnavailable = errors.New("unavailable just now") // 503, try again
)

// Error is an answer a client can act on.
type Error struct {
	Kind    error
	Code    string // stable, as not_promptable
	Message string
	Fields  []spec.Problem
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Idempotency names a request so that its repetition gets the first answer and
// has no second effect. The zero value names none.
type Idempotency struct {
	Scope    string // method and path
	Key      string
	BodyHash string
}

// order names the order that carries the request to a harness; empty without
// a key.
func (i Idempotency) order() string {
	if i.Key == "" {
		return ""
	}
	return i.Scope + " " + i.Key
}

// Budget bounds what an agent may spawn.
type Budget struct {
	SpawnDepth     *int `json:"spawnDepth,omitempty"`
	MaxAgents      *int `json:"maxAgents,omitempty"`
	MaxAgentsTotal *int `json:"maxAgentsTotal,omitempty"`
}

// StartRunRequest asks for a new run with a root agent.
type StartRunRequest struct {
	Spec      json.RawMessage
	Prompt    string // empty: the agent waits for one
	Budget    *Budget
	CloseWhen string // explicit (default) or quiescent
	Idempotency
}

// StartRunAnswer is the answer to StartRunRequest.
type StartRunAnswer struct {
	RunID       string         `json:"runId"`
	RootAgentID string         `json:"rootAgentId"`
	State       string         `json:"state"`
	Warnings    []spec.Warning `json:"warnings,omitempty"`
}

// check says what is wrong with a budget.
func (b *Budget) check() error {
	for _, f := range []struct {
		path  string
		value *int
	}{{"budget.spawnDepth", b.SpawnDepth}, {"budget.maxAgents", b.MaxAgents}, {"budget.maxAgentsTotal", b.MaxAgentsTotal}} {
		if f.value != nil && *f.value < 0 {
			return invalid(f.path, "must not be negative")
		}
	}
	return nil
}

// SpawnRequest asks for an agent below another one, in a sandbox forked from
// that one's.
type SpawnRequest struct {
	RunID         string
	ParentAgentID string
	Spec          json.RawMessage
	Prompt        string          // empty: the agent waits for one
	WaitFor       json.RawMessage // a list of agents, or an object; see internal/wait
	NotifyOn      json.RawMessage // a list of agents, or {agents, wake}; see NotifyOn
	Budget        *Budget
	Idempotency
}

// SpawnAnswer is the answer to SpawnRequest.
type SpawnAnswer struct {
	AgentID  string         `json:"agentId"`
	State    string         `json:"state"` // provisioning, or spawning where it is held first
	Warnings []spec.Warning `json:"warnings,omitempty"`
}

// RunView is a run with its agents.
type RunView struct {
	RunID       string      `json:"runId"`
	RootAgentID string      `json:"rootAgentId"`
	AsOf        int64       `json:"asOf"` // highest seq reflected
	CloseWhen   string      `json:"closeWhen"`
	State       string      `json:"state"` // open, closed
	CreatedAt   int64       `json:"createdAt"`
	Agents      []AgentView `json:"agents"`
}

// RunsView is one page of runs. Next is the cursor of the page after it.
type RunsView struct {
	Runs []RunSummary `json:"runs"`
	Next string       `json:"next,omitempty"`
}

// RunSummary is a run in a list.
type RunSummary struct {
	RunID       string `json:"runId"`
	RootAgentID string `json:"rootAgentId"`
	State       string `json:"state"`
	CreatedAt   int64  `json:"createdAt"`
	ClosedAt    *int64 `json:"closedAt"`
	Agents      int    `json:"agents"`
}

// AgentView is what a client sees of an agent. Times are Unix milliseconds.
type AgentView struct {
	AgentID       string          `json:"agentId"`
	RunID         string          `json:"runId"`
	ParentAgentID *string         `json:"parentAgentId"`
	Depth         int             `json:"depth"`
	SpawnIndex    int             `json:"spawnIndex"`
	State         string          `json:"state"`
	SpecName      string          `json:"specName"`
	SandboxID     *string         `json:"sandboxId"`
	CreatedAt     int64           `json:"createdAt"`
	EndedAt       *int64          `json:"endedAt"`
	Outcome       *string         `json:"outcome"`
	PausedBy      *string         `json:"pausedBy"`
	Harness       string          `json:"harness"`
	Model         string          `json:"model,omitempty"`
	Runtime       string          `json:"runtime"`
	Isolated      bool            `json:"isolated"` // false: nothing keeps it from the host
	Turn          int             `json:"turn"`
	Reason        string          `json:"reason,omitempty"`     // of its last change of state
	Recovering    string          `json:"recovering,omitempty"` // why it is held in recovering
	Error         string          `json:"error,omitempty"`
	QueuedAt      int64           `json:"queuedAt,omitempty"`   // since when it waits for its sandbox to be made
	Inbox         int             `json:"inbox,omitempty"`      // what it has still to be told
	Checkpoint    *CheckpointView `json:"checkpoint,omitempty"` // the newest kept
	Transport     string          `json:"transport,omitempty"`
	SessionStats  *SessionStats   `json:"sessionStats,omitempty"`
}

// SessionStats is what the bridge says of the harness just now.
type SessionStats struct {
	SessionID string `json:"sessionId,omitempty"`
	Messages  int    `json:"messages"`
	Harness   string `json:"harness"` // none, starting, idle, busy, exited
	PID       int    `json:"pid"`
	TurnID    string `json:"turnId,omitempty"`
}

// PromptRequest asks for a turn.
type PromptRequest struct {
	Text   string
	Images []harness.Image
	Idempotency
}

// PromptAnswer names the turn that was accepted.
type PromptAnswer struct {
	AgentID string `json:"agentId"`
	TurnID  string `json:"turnId"`
	Turn    int    `json:"turn"`
	State   string `json:"state"` // queued or running
}

// Accepted answers a request that only needs a yes.
type Accepted struct {
	AgentID string `json:"agentId"`
	State   string `json:"state"`
}

// ResultView is the result of an agent's last turn. While it is open, State is
// "pending" and the rest is nil.
type ResultView struct {
	AgentID   string  `json:"agentId"`
	State     string  `json:"state"` // settled, pending
	Outcome   *string `json:"outcome"`
	ResultRef *string `json:"resultRef"`
	Result    *string `json:"result"`
	Error     string  `json:"error,omitempty"`
	TurnID    string  `json:"turnId,omitempty"`
}

// TranscriptView is what was said in an agent's turns.
type TranscriptView struct {
	AgentID string           `json:"agentId"`
	Turns   []TranscriptTurn `json:"turns"`
}

// TranscriptTurn is one turn of a transcript.
type TranscriptTurn struct {
	Seq      int64               `json:"seq"` // of turn.requested
	TS       int64               `json:"ts"`
	TurnID   string              `json:"turnId"`
	Turn     int                 `json:"turn"`
	Outcome  string              `json:"outcome,omitempty"`
	Messages []TranscriptMessage `json:"messages"`
}

// TranscriptMessage is one message. Truncated: Text was cut to 2,000 characters.
type TranscriptMessage struct {
	Role      string          `json:"role"`
	Text      string          `json:"text"`
	Truncated bool            `json:"truncated,omitempty"`
	Message   json.RawMessage `json:"message,omitempty"` // whole, where full was asked for
}

// CheckpointView is one checkpoint.
type CheckpointView struct {
	Turn        int    `json:"turn"`
	TurnID      string `json:"turnId,omitempty"`
	SnapshotRef string `json:"snapshotRef"`
	SandboxID   string `json:"sandboxId"`
	SHA256      string `json:"sha256"`
	Bytes       int64  `json:"bytes"`
	Files       int64  `json:"files"`
	TakenAt     int64  `json:"takenAt"`
	Imported    bool   `json:"imported,omitempty"`
	Damaged     string `json:"damaged,omitempty"`
}

// PermissionView is a request of the harness that waits for an answer.
type PermissionView struct {
	RequestID   string          `json:"requestId"`
	TurnID      string          `json:"turnId,omitempty"`
	Title       string          `json:"title,omitempty"`
	State       string          `json:"state"` // pending, answered, resolved
	Decision    string          `json:"decision,omitempty"`
	Request     json.RawMessage `json:"request,omitempty"`
	RequestedAt int64           `json:"requestedAt"`
}

// ExecRequest is a command to be run in an agent's sandbox.
type ExecRequest struct {
	Command    []string          `json:"command" minItems:"1"`
	Cwd        string            `json:"cwd,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	TimeoutSec int               `json:"timeoutSec,omitempty" minimum:"0" maximum:"3600"`
}

// ExecAnswer is how it ended. Output past 1 MiB each is cut.
type ExecAnswer struct {
	ExitCode  int    `json:"exitCode"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"`
}

// WayBack answers the four ways back into a sandbox.
type WayBack struct {
	AgentID    string                    `json:"agentId"`
	SandboxID  string                    `json:"sandboxId"`
	Rung       string                    `json:"rung"` // reattached, resumed, restarted, restored, attached
	Turn       int                       `json:"turn"`
	Checkpoint *ledger.CheckpointSummary `json:"checkpoint"`
}

// Readiness says how far the boot has come.
type Readiness struct {
	Ready     bool `json:"ready"`
	Recovered int  `json:"recovered"`
	Total     int  `json:"total"`
}

// Action is one thing a reconciliation did, or would do.
type Action struct {
	SandboxID string `json:"sandboxId"`
	AgentID   string `json:"agentId,omitempty"`
	Action    string `json:"action"` // adopt, recover, keep, remove, forget
	Reason    string `json:"reason"`
}

// StreamEvent is one event of a Stream. Seq is 0 for one that is not stored.
type StreamEvent struct {
	Seq   int64
	Event string
	Data  json.RawMessage
}
