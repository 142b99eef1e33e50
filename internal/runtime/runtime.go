// Package runtime says what a place to run agents must offer. Its drivers
// stand in the packages below it; internal/runtime/runtimetest is the suite
// each of them passes.
//
// A sandbox is the isolated place one agent lives in. Its identifier is chosen
// and recorded by the caller before Create is called, so that a creation cut
// short by a crash is found again by List and adopted by the next Create.
//
// Inside every sandbox the first process is `alineod bridge init`. It starts
// the bridge, reaps what is left behind, and starts the bridge anew when asked
// to by Kick. A sandbox runs as long as that first process does.
package runtime

import (
	"context"
	"errors"
	"io"
	"time"
)

// Kinds of errors. Drivers wrap them; callers ask with errors.Is.
var (
	// ErrNotFound: no such sandbox or image. A definite answer.
	ErrNotFound = errors.New("not found")
	// ErrUnreachable: the runtime did not answer, or not in time. Nothing is
	// known about its sandboxes; in particular they are not dead.
	ErrUnreachable = errors.New("runtime unreachable")
	// ErrNotRunning: the sandbox exists but is stopped.
	ErrNotRunning = errors.New("sandbox is not running")
	// ErrPaused: the sandbox lives and is frozen. What needs its processes to
	// move (Exec, Kick, Dial over exec) waits for Unpause.
	ErrPaused = errors.New("sandbox is paused")
	// ErrUnsupported: this runtime cannot do that; see Capabilities.
	ErrUnsupported = errors.New("not supported by this runtime")
	// ErrForeign: something of that name exists and is not ours.
	ErrForeign = errors.New("exists, but does not belong to this instance")
	// ErrInvalid: the request itself is wrong (image name, resources, path).
	ErrInvalid = errors.New("invalid request")
)

// State is what the runtime says of a sandbox.
type State string

// The states of a sandbox. One that is gone has no state: ErrNotFound.
const (
	StateCreated State = "created" // made, never started
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateStopped State = "stopped" // file system kept, can be started again
)

// Labels tie a sandbox to the agent it was made for.
type Labels struct {
	SandboxID  string
	RunID      string // empty for a sandbox that builds a setup snapshot
	AgentID    string
	Generation int // 1 for an agent's first sandbox, then counting up
}

// Info is what one List or Inspect tells about one sandbox.
type Info struct {
	Labels
	State State
	// Handle is the driver's own name for it (container id, directory).
	Handle string
	// Image is the reference the sandbox was made from.
	Image string
	// ExitCode, OOMKilled and FinishedAt describe the last end of the first
	// process; ExitCode is -1 where no one saw that end. OOMKilled is the engine's flag: sticky and container-wide, an
	// observation and never a verdict.
	ExitCode   int
	OOMKilled  bool
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
}

// Bridge says how the sandbox's processes are to be run.
type Bridge struct {
	// User runs the harness: a name or uid[:gid]. Empty: the image's user, or
	// locally the daemon's own.
	User string
	// Workdir is where the harness starts; empty: the home directory. A
	// relative path is below the home directory.
	Workdir string
}

// CreateRequest describes a sandbox to be made and started.
type CreateRequest struct {
	Labels
	// Image is an image reference or the Ref of an Image this runtime made.
	// Empty: the runtime's empty image, where it has one (local).
	Image string
	// Env is put into the container's own environment, where anyone who can
	// inspect it can read it: never a secret.
	Env map[string]string
	// CPU in thousandths of a core, Memory in bytes; 0 is no limit.
	CPUMillis   int64
	MemoryBytes int64
	Bridge      Bridge
}

// ExecRequest is one command run in a running sandbox, to its end.
type ExecRequest struct {
	Args []string
	// Env is added to the sandbox's own.
	Env     map[string]string
	Workdir string
	User    string
	// Stdin may still be read from for a moment after the command's end.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil discards it.
	Stdout, Stderr io.Writer
}

// Image is a snapshot of a sandbox's file system that sandboxes can be made
// from.
type Image struct {
	Ref       string
	Labels    map[string]string
	Bytes     int64
	CreatedAt time.Time
}

// Stats is one sample of a sandbox's resource use. A figure the runtime does
// not know is -1.
type Stats struct {
	Time             time.Time
	CPUNanos         int64 // since the sandbox started
	MemoryBytes      int64
	MemoryPeakBytes  int64
	MemoryLimitBytes int64
	OOMKills         int64 // the cgroup's oom_kill counter
	Processes        int64
}

// EventType says what happened to a sandbox.
type EventType string

// What a runtime reports. Events are hints: the reconciliation, which lists
// and compares, is what the daemon relies on.
const (
	EventStarted  EventType = "started"
	EventDied     EventType = "died" // the first process ended
	EventOOM      EventType = "oom"  // the kernel killed something in it for memory
	EventPaused   EventType = "paused"
	EventUnpaused EventType = "unpaused"
	EventRemoved  EventType = "removed"
	// EventResync: the stream was (re)connected and may have missed events;
	// SandboxID is empty. Also the first event of every subscription.
	EventResync EventType = "resync"
	// EventDown: the runtime stopped answering; SandboxID is empty.
	EventDown EventType = "down"
)

// Event is one report of the runtime.
type Event struct {
	Type      EventType
	SandboxID string
	Time      time.Time
	ExitCode  int // of EventDied, where known; else -1
}

// Capabilities says what a runtime can do. What it cannot is done another way
// or refused with a reason; nothing above this package asks for a driver's
// name to decide that.
type Capabilities struct {
	Isolated       bool // sandboxes are kept from the host and each other
	Commit         bool // Commit makes an image of a sandbox
	Pause          bool
	RestartInPlace bool // a stopped sandbox can be started again
	Resources      bool // CPU and memory limits are enforced
	StoppedArchive bool // CopyOut works on a stopped sandbox
	BaseImages     bool // a sandbox is made from an image reference; without one it starts empty
}

// Runtime is a place to run agents. All methods are safe for concurrent use,
// honour their context, and wrap the kinds of errors above. Every method that
// names a sandbox touches only sandboxes of this instance.
type Runtime interface {
	// Name is "docker" or "local": recorded with each agent.
	Name() string
	Capabilities() Capabilities
	// Ping says whether the runtime answers: nil or ErrUnreachable.
	Ping(ctx context.Context) error

	// Create makes and starts a sandbox. It is idempotent by SandboxID: one
	// that exists already with the same labels is adopted, started if it is
	// not running, and returned. One that bears the name but not our labels is
	// ErrForeign. A failed Create leaves nothing behind, save where the
	// runtime stopped answering.
	Create(ctx context.Context, req CreateRequest) (Info, error)
	// List returns every sandbox of this instance in any state, in one round
	// trip to the runtime however many there are.
	List(ctx context.Context) ([]Info, error)
	Inspect(ctx context.Context, sandboxID string) (Info, error)
	// Start starts a stopped sandbox; a running one is left as it is.
	Start(ctx context.Context, sandboxID string) error
	// Stop ends the first process: SIGTERM, and SIGKILL after grace. A stopped
	// one is left as it is. The file system stays.
	Stop(ctx context.Context, sandboxID string, grace time.Duration) error
	// Pause freezes every process; Unpause lets them go on. Both are
	// idempotent; both are ErrNotRunning on a stopped sandbox.
	Pause(ctx context.Context, sandboxID string) error
	Unpause(ctx context.Context, sandboxID string) error
	// Remove kills and deletes the sandbox with its socket directory. One that
	// is gone already, or is being removed, is no error.
	Remove(ctx context.Context, sandboxID string) error

	// Kick has the sandbox's first process kill the bridge, if one still
	// lives, and start a new one.
	Kick(ctx context.Context, sandboxID string) error
	// Dial opens a stream to the sandbox's bridge. That a listener is there
	// does not mean that it answers. ErrNotRunning where the sandbox or its
	// bridge is not running.
	Dial(ctx context.Context, sandboxID string) (io.ReadWriteCloser, error)
	// Transport says what Dial uses: "socket" or "exec".
	Transport() string
	// JournalDir is the host directory of the bridge's journal, for reading
	// what a dead sandbox had still written. Empty where the host has no such
	// directory. It is deleted by Remove.
	JournalDir(sandboxID string) string

	// Exec runs a command to its end and returns its exit code. The context
	// ending kills the command where the runtime can; a command's non-zero
	// exit is no error.
	Exec(ctx context.Context, sandboxID string, req ExecRequest) (int, error)
	// CopyOut streams path as a tar archive whose names are relative to path's
	// parent. The caller closes it.
	CopyOut(ctx context.Context, sandboxID, path string) (io.ReadCloser, error)
	// CopyIn unpacks a tar archive into the directory path, which exists.
	CopyIn(ctx context.Context, sandboxID, path string, archive io.Reader) error
	Stats(ctx context.Context, sandboxID string) (Stats, error)

	// Commit makes an image of the sandbox's file system. name is chosen by
	// the caller ([a-z0-9-]) and makes the call repeatable: the newest wins.
	Commit(ctx context.Context, sandboxID, name string, labels map[string]string) (Image, error)
	// Image describes an image by reference: ErrNotFound where there is none.
	Image(ctx context.Context, ref string) (Image, error)
	// Images lists the images Commit made for this instance.
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage deletes an image Commit made; one that is gone is no error.
	RemoveImage(ctx context.Context, ref string) error

	// Events reports until ctx ends, then closes the channel; the driver
	// reconnects by itself, with backoff. The first event is EventResync: what
	// a List made after it does not show, a later event will. Only EventDown
	// comes before it, where the runtime does not answer at the beginning.
	Events(ctx context.Context) <-chan Event
	// Close frees the driver's resources and waits for its goroutines. It
	// leaves every sandbox as it is.
	Close() error
}
