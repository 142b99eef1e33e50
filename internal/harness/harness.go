// Package harness knows the coding-agent CLIs: how each is installed,
// launched and resumed, and how what it says is read. One small file group per
// CLI; internal/harness/harnesstest is the suite each of them passes.
//
// A harness runs inside a sandbox, below the bridge. The bridge owns the
// process and its pipes; this package is the part that understands them. A
// Protocol is a state machine without any input or output of its own: it is
// given the lines the process wrote and answers with events and with lines to
// write. It lives exactly as long as one process of the harness.
package harness

import (
	"encoding/json"
	"errors"
)

// Kinds of errors.
var (
	ErrUnknown = errors.New("unknown harness")
	// ErrBusy: a turn is in progress.
	ErrBusy = errors.New("harness is busy")
	// ErrNotReady: the harness has not told its session yet, or has exited.
	ErrNotReady = errors.New("harness is not ready")
	// ErrNoTurn: there is no turn to steer or abort.
	ErrNoTurn = errors.New("no turn is in progress")
	// ErrRefused: the harness itself said no.
	ErrRefused = errors.New("harness refused")
	// ErrUnknownRequest: no such permission request is open.
	ErrUnknownRequest = errors.New("no such permission request")
)

// Classes of a turn's failure, as the diagnosis names them.
const (
	ClassModelError         = "model_error"
	ClassQuota              = "quota"
	ClassMissingCredentials = "missing_credentials"
	ClassSessionFailed      = "session_failed"
	ClassProtocolError      = "protocol_error"
)

// Outcomes of a turn that a harness can tell. An interrupted one is told by
// the daemon.
const (
	OutcomeSuccess = "success"
	OutcomeFailed  = "failed"
	OutcomeAborted = "aborted"
)

// Events that are shown to live followers and never stored.
const (
	MessageUpdated = "message.updated"
	ToolUpdated    = "tool.updated"
	QueueUpdated   = "queue.updated"
)

// Event is something the harness did, in alineod's words. Name is an event
// name of the ledger (session.started, message.ended, tool.started, …,
// turn.ended) or one of the ephemeral names above.
//
// Data and Body become the payload and the body of the ledger's entry:
//
//	session.started       ledger.SessionPayload
//	session.ended         ledger.SessionPayload
//	message.updated       MessageDelta
//	message.ended         Message             MessageBody
//	tool.started          ledger.ToolCall     ToolArgs
//	tool.updated          ToolOutput
//	tool.ended            ToolEnd             ToolResult
//	queue.updated         Queue
//	permission.requested  ledger.PermissionRequestedPayload  PermissionAsk
//	permission.resolved   ledger.PermissionResolvedPayload
//	retry.started         Retry
//	retry.ended           RetryEnd
//	compaction.started    Compaction
//	compaction.ended      CompactionEnd       CompactionBody
//	extension.error       ExtensionError      ExtensionErrorBody
//	turn.ended            TurnEnd             TurnResult
//	agent.quota_exhausted Quota
//	diagnostic.stored     {"class": "protocol_error", "error"} Body {"line": what could not be read, cut}
type Event struct {
	Name string          `json:"name"`
	Data json.RawMessage `json:"data,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
}

// TurnEnd is the Data of turn.ended as a harness tells it.
type TurnEnd struct {
	Outcome   string `json:"outcome"`
	Class     string `json:"class,omitempty"`
	Error     string `json:"error,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
	Messages  int    `json:"messages"`
}

// Quota is one observation of a provider's limit.
type Quota struct {
	Provider string   `json:"provider"`
	Window   string   `json:"window,omitempty"`
	Status   string   `json:"status"` // ok, warning, exhausted, unknown
	Used     *float64 `json:"used,omitempty"`
	ResetsAt int64    `json:"resetsAt,omitempty"` // Unix milliseconds; 0 is unknown
	Source   string   `json:"source,omitempty"`   // the text it was read from
}

// SetupStep is one step of installing a harness in a sandbox. A step whose
// Check exits 0 is skipped: its result is there already.
type SetupStep struct {
	Name  string
	Check string // shell command
	Run   string // shell command
}

// Launch says how a process of the harness is to be started.
type Launch struct {
	// Continue goes on with a session of the home directory: SessionID where
	// it is known, else the newest of the working directory.
	Continue  bool   `json:"continue"`
	SessionID string `json:"sessionId,omitempty"`
	Provider  string `json:"provider,omitempty"`
	Model     string `json:"model,omitempty"`
	Home      string `json:"home,omitempty"`
	Workdir   string `json:"workdir,omitempty"`
	// Self is the path of alineod's own executable inside the sandbox.
	Self string `json:"self,omitempty"`
}

// Command is what the bridge executes. Env is added to the sandbox's own
// environment and is overridden by the spec's.
type Command struct {
	Args []string
	Env  map[string]string
}

// Image is a picture that goes with a prompt.
type Image struct {
	MIMEType string `json:"mimeType"`
	Data     []byte `json:"data"` // base64 in JSON
}

// Prompt is what begins a turn.
type Prompt struct {
	Text   string  `json:"text"`
	Images []Image `json:"images,omitempty"`
}

// Exit says how the process ended.
type Exit struct {
	Code   int    `json:"code"`             // -1 when killed by a signal
	Signal string `json:"signal,omitempty"` // as "SIGKILL"
	// OOMHint: the kernel's counter of memory kills rose while it lived.
	OOMHint bool   `json:"oomHint,omitempty"`
	Stderr  string `json:"stderr,omitempty"` // its last lines
}

// State is what a Protocol knows of its process.
type State string

// The states of a harness, as the bridge tells them.
const (
	StateNone     State = "none"     // never started in this bridge
	StateStarting State = "starting" // has not told its session yet
	StateIdle     State = "idle"
	StateBusy     State = "busy"
	StateExited   State = "exited"
)

// Status is a snapshot of a Protocol.
type Status struct {
	State     State  `json:"state"`
	SessionID string `json:"sessionId,omitempty"`
	Messages  int    `json:"messages"`
}

// Reply answers an order (Steer, FollowUp, Abort, Answer) by its id. Err is
// empty where the harness took it.
type Reply struct {
	Order string
	Err   string
}

// Output is what a Protocol wants done: events to be recorded, in order, lines
// to be written to the process (without their newline), orders answered.
type Output struct {
	Events  []Event
	Write   [][]byte
	Replies []Reply
}

// Protocol speaks with one process of a harness. It is not safe for
// concurrent use: the bridge calls it from one goroutine.
//
// An order either fails at once with an error of the kinds above, and nothing
// is written; or it is written and answered later by a Reply of that order.
type Protocol interface {
	// Open is called once the process runs.
	Open() Output
	// Prompt begins a turn: ErrBusy while one is in progress, ErrNotReady
	// before the session is known. Exactly one turn.ended follows every turn,
	// at the latest from Exited.
	Prompt(p Prompt) (Output, error)
	Steer(order, text string) (Output, error)
	FollowUp(order, text string) (Output, error)
	Abort(order string) (Output, error)
	// Answer decides an open permission request: once, always or reject.
	Answer(order, requestID, decision, feedback string) (Output, error)
	// Line takes one line of the process's standard output. A line that cannot
	// be read becomes a diagnostic.stored event; it is never an error.
	Line(line []byte) Output
	// Exited takes the end of the process: open orders are answered, a turn in
	// progress ends as failed (class session_failed).
	Exited(e Exit) Output
	Status() Status
}

// Harness is one coding-agent CLI. Implementations are stateless and safe for
// concurrent use.
type Harness interface {
	Name() string
	// Trusted: it runs no model's code, so it may run on a runtime that does
	// not isolate.
	Trusted() bool
	// Setup lists the steps that install it. version may be empty: the default.
	Setup(version string) []SetupStep
	// Launch says what to execute.
	Launch(l Launch) (Command, error)
	// NewProtocol makes the state machine for a process launched with l.
	NewProtocol(l Launch) Protocol
}
