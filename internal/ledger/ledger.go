// Package ledger is the append-only log that is the daemon's only truth, and
// the projections derived from it.
//
// It stands in one SQLite file. One writer commits in groups: all appends that
// wait at that moment go into one transaction, with the projections they
// change, and each caller is answered after that commit. What Append has
// answered, no crash undoes.
//
// Nothing outside this package sees SQL. The package knows no Docker, no HTTP
// and no harness.
package ledger

import (
	"encoding/json"
	"errors"
)

// Kinds of errors. Callers ask with errors.Is.
var (
	ErrNotFound = errors.New("not in the ledger")
	// ErrLocked: another daemon holds the state directory.
	ErrLocked = errors.New("state directory is in use by another daemon")
	// ErrNewer: the database was written by a newer alineod. It is left
	// untouched.
	ErrNewer = errors.New("database is newer than this alineod")
	// ErrFull: the disk is full. Nothing of the batch was stored; the ledger
	// goes on and a later append may succeed.
	ErrFull = errors.New("disk full")
	// ErrCursor: the batch's cursor does not lie ahead of the stored one: its
	// events are stored already. Nothing of the batch was stored.
	ErrCursor = errors.New("cursor is not ahead of the stored one")
	// ErrKeyReused: the idempotency key was used with another body.
	ErrKeyReused = errors.New("idempotency key was used with a different body")
	// ErrDuplicate: the idempotency key is stored already, with the same
	// body. Nothing of the batch was stored.
	ErrDuplicate = errors.New("request was accepted before")
	// ErrConflict: a guard of the batch did not hold (a turn ended twice, an
	// agent that is not in the expected state).
	ErrConflict = errors.New("conflicts with what the ledger says")
	ErrClosed   = errors.New("ledger is closed")
	// ErrDamaged: the file cannot be read as a ledger.
	ErrDamaged = errors.New("ledger is damaged")
)

// Entry is one event to be appended. Payload is marshalled to JSON and is what
// the projections are folded from; Body is marshalled too and kept in a side
// table that listing and folding never touch. A client sees both merged into
// one object.
type Entry struct {
	RunID     string
	AgentID   string
	SandboxID string
	TurnID    string
	Event     string
	Payload   any
	Body      any
	// By is the agent whose program did it, where it was one: it becomes "by"
	// in the payload.
	By string
}

// Cursor is how far a sandbox's journal has been taken into the ledger: up to
// and including position Pos. Epoch is the bridge start it was read from.
type Cursor struct {
	SandboxID string
	Epoch     string
	Pos       int64
}

// Batch is what Append stores in one transaction: all of it or nothing.
type Batch struct {
	Entries []Entry
	// Cursor moves in the same transaction; ErrCursor unless its position is
	// greater than the stored one.
	Cursor *Cursor
	// Request stores an idempotency key and its answer with the entries.
	Request *Request
}

// Request is an idempotency key. See RequestAcceptedPayload.
type Request struct {
	Scope    string
	Key      string
	BodyHash string
	Status   int
	Answer   []byte
}

// Event is one stored entry.
type Event struct {
	Seq       int64
	TS        int64 // Unix milliseconds
	RunID     string
	AgentID   string
	SandboxID string
	TurnID    string
	Event     string
	Payload   json.RawMessage
	// Body is filled only where it was asked for.
	Body json.RawMessage
}

// Run is a row of the projection of runs.
type Run struct {
	RunID       string
	RootAgentID string
	CloseWhen   string
	State       string // open, closed
	CreatedAt   int64
	ClosedAt    int64
	Agents      int // number of its agents
	// MaxAgentsTotal is how many it may have; nil: no ceiling.
	MaxAgentsTotal *int
	Turns          int  // that were ever requested in it
	Quiescent      bool // nothing of it is at work
}

// Agent is a row of the projection of agents.
type Agent struct {
	AgentID       string
	RunID         string
	ParentAgentID string
	Depth         int
	SpawnIndex    int
	SpecName      string
	Harness       string
	Model         string
	Runtime       string
	SetupHash     string
	Checkpointing bool
	SpawnDepth    *int
	MaxAgents     *int
	SpawnedSeq    int64 // its Body holds the spec
	State         string
	Reason        string // of the last state change
	Recovering    string // why it is held in recovering
	PausedBy      string
	Outcome       string // of its last turn, or its end
	Error         string // of its last failed turn or end
	SandboxID     string // current one; empty before the first
	Generation    int    // the highest a sandbox of it was intended with
	Turn          int    // number of the last turn requested
	SessionID     string // as last told by the harness
	Messages      int    // as last told by the harness when idle
	StopMode      string // of an intent.stop not yet carried out
	CreatedAt     int64
	EndedAt       int64
	ForkImage     string // what its sandboxes are made from, where it was forked
	ForkSetup     string // the setup hash that image has
	ForkMarked    bool   // it holds the marks of its copy
	Inbox         int    // items it has not been told of
	Failures      int    // turns in a row that failed
	Blocked       string // why it waits for a person; kept while it is paused or on the ladder
	QueuedAt      int64  // since when it waits for its sandbox to be made; 0: it does not
	UpdatedSeq    int64  // seq of the last event that changed this row
}

// Sandbox is a row of the projection of sandboxes.
type Sandbox struct {
	SandboxID  string
	AgentID    string
	RunID      string
	Runtime    string
	Generation int
	Purpose    string
	Image      string
	State      string // intended, created, current, released, removed
	Handle     string
	Transport  string
	IntendedAt int64
	RemovedAt  int64
}

// Turn is a row of the projection of turns.
type Turn struct {
	TurnID         string
	AgentID        string
	RunID          string
	Number         int
	State          string // requested, started, ended
	SandboxID      string // where it started
	RetryOf        string
	Attempt        int
	RequestedSeq   int64 // its Body holds the text
	StartedSeq     int64
	EndedSeq       int64 // its Body holds the result
	Outcome        string
	Class          string
	Error          string
	OwesCheckpoint bool // and none was taken, nor failed, since
	RequestedAt    int64
	StartedAt      int64
	EndedAt        int64
}

// Checkpoint is a row of the projection of checkpoints.
type Checkpoint struct {
	Seq         int64
	AgentID     string
	RunID       string
	SandboxID   string
	Turn        int
	TurnID      string
	SnapshotRef string
	SHA256      string
	Bytes       int64
	Files       int64
	SessionID   string
	Messages    int
	Imported    bool
	State       string // kept, pruned
	Damaged     string // why a restore skipped it; empty: not known to be damaged
	TakenAt     int64
}

// Snapshot is a row of the projection of setup_snapshots.
type Snapshot struct {
	Runtime   string
	Hash      string
	Ref       string
	State     string // intended, created, gone
	Skipped   []string
	CreatedAt int64
}

// Handle is a row of the projection of handles: the agent's last result.
type Handle struct {
	AgentID   string
	State     string // open, settled
	Outcome   string
	ResultRef string
	TurnID    string
	SettledAt int64
}

// Permission is a row of the projection of permissions.
type Permission struct {
	AgentID     string
	RequestID   string
	SandboxID   string
	TurnID      string
	Title       string
	State       string // pending, answered, resolved, parked
	Decision    string
	Feedback    string
	RequestSeq  int64 // its Body holds what is asked
	RequestedAt int64
}
