// Package bridge is alineod inside a sandbox, and the daemon's way to it.
//
// The server owns the harness's process and a journal of all that the process
// said and was told. It survives whatever the daemon does: a daemon that comes
// back subscribes from the position it had stored last and misses nothing.
//
// # Wire
//
// One stream carries JSON frames, one per line, at most MaxFrame bytes. The
// client's first frame is a Hello request; the server answers with Hello. A
// client that does not get that answer within HelloTimeout takes the bridge
// for one that does not answer. A stream is either a control stream or carries
// one archive (pack or unpack); its mode stands in the first frame.
package bridge

import (
	"errors"
	"time"

	"github.com/alineod/alineod/internal/harness"
)

// ProtocolVersion is the version of the wire format. A server answers any
// client; a client refuses a server of another version (ErrVersion).
const ProtocolVersion = 1

const (
	// MaxFrame bounds one frame, on both sides. It is twice MaxLine, because
	// quoting may lengthen a line of the harness.
	MaxFrame = 2*MaxLine + 1<<16
	// MaxLine bounds one line of the harness; a longer one is cut, recorded as
	// a diagnostic and its rest thrown away.
	MaxLine = 8 << 20
	// HelloTimeout is how long a bridge may take to say hello (api.md: 5 s).
	HelloTimeout = 5 * time.Second
)

// Kinds of errors of the client.
var (
	ErrNoAnswer = errors.New("bridge does not answer")
	ErrVersion  = errors.New("bridge speaks another protocol version")
	ErrProtocol = errors.New("bridge broke the protocol")
	// ErrClosed: the stream ended; what became of the request is unknown.
	ErrClosed = errors.New("connection to the bridge is closed")
	// ErrHarness: the harness could not be started or continued.
	ErrHarness = errors.New("harness failed")
	// ErrGap: positions up to the one asked for were dropped from the journal.
	ErrGap = errors.New("journal no longer holds that position")
	// ErrArchive: the archive stream was cut short, or an end refused it.
	ErrArchive = errors.New("archive stream failed")
)

// Record is one entry of the journal: one line of the harness, or one order
// given to it, with all the events it amounts to.
type Record struct {
	// Pos increases by one from record to record, over restarts of the bridge.
	Pos   int64  `json:"pos"`
	Epoch string `json:"epoch"`
	TS    int64  `json:"ts"` // Unix milliseconds, the sandbox's clock
	// Kind is one of the Kind constants.
	Kind   string          `json:"kind"`
	TurnID string          `json:"turnId,omitempty"` // turn in progress
	Events []harness.Event `json:"events,omitempty"`
	Order  *Order          `json:"order,omitempty"`
	// Taken are the orders with an ID that the harness took with this line.
	Taken []string      `json:"taken,omitempty"`
	Exit  *harness.Exit `json:"exit,omitempty"`
	PID   int           `json:"pid,omitempty"`
	// Dropped: that many earlier records were lost because the journal hit its
	// size bound before the daemon had read them.
	Dropped int64 `json:"dropped,omitempty"`
}

// Kinds of records.
const (
	KindBoot    = "boot"    // the bridge started: a new epoch
	KindStarted = "started" // a process of the harness was started
	KindLine    = "line"    // the harness said something
	KindOrder   = "order"   // it was told something
	KindExit    = "exit"    // its process ended
	// KindTurn: a turn was accepted, before it is written to the harness.
	KindTurn    = "turn"
	KindDropped = "dropped"
)

// Order is what the daemon told the harness.
type Order struct {
	// ID makes the order one that the harness is told once in a turn, however
	// often it is given; empty for one that has no name.
	ID       string `json:"id,omitempty"`
	Op       string `json:"op"` // steer, follow-up, abort, answer
	Text     string `json:"text,omitempty"`
	Request  string `json:"requestId,omitempty"`
	Decision string `json:"decision,omitempty"`
	Feedback string `json:"feedback,omitempty"`
}

// Hello is the server's answer to the first frame, and to Status.
type Hello struct {
	Version   int    `json:"version"`
	SandboxID string `json:"sandboxId"`
	Epoch     string `json:"epoch"`
	// Harness is the process's state; PID is 0 where none runs.
	Harness harness.Status `json:"harness"`
	Name    string         `json:"name,omitempty"` // of the harness
	PID     int            `json:"pid"`
	// TurnID is the turn in progress.
	TurnID string `json:"turnId,omitempty"`
	// LastTurnID is the last turn accepted; Head the last position written,
	// Oldest the first one still held.
	LastTurnID string        `json:"lastTurnId,omitempty"`
	Head       int64         `json:"head"`
	Oldest     int64         `json:"oldest"`
	Home       string        `json:"home"`
	Workdir    string        `json:"workdir"`
	Exit       *harness.Exit `json:"exit,omitempty"` // of the last process, where none runs
}

// StartRequest starts the harness. Env holds resolved secrets: the bridge
// keeps them in memory, hands them to the process and writes them nowhere.
type StartRequest struct {
	Harness string            `json:"harness"`
	Launch  harness.Launch    `json:"launch"`
	Env     map[string]string `json:"env,omitempty"`
}

// Turn is a prompt with its identifier. The server accepts an identifier once.
type Turn struct {
	ID     string         `json:"id"`
	Prompt harness.Prompt `json:"prompt"`
}

// PackRequest asks for an archive of the home directory and of more paths.
type PackRequest struct {
	// Home is filled in by the server: the home it serves.
	Home    string   `json:"-"`
	Paths   []string `json:"paths,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

// UnpackRequest announces an archive that takes the place of what stands in
// the home directory.
type UnpackRequest struct {
	// Home is filled in by the server: the home it serves.
	Home  string   `json:"-"`
	Paths []string `json:"paths,omitempty"`
}

// Process is one process of the sandbox.
type Process struct {
	PID       int    `json:"pid"`
	PPID      int    `json:"ppid"`
	User      string `json:"user"`
	State     string `json:"state"`
	CPUMillis int64  `json:"cpuMs"`
	RSSBytes  int64  `json:"rssBytes"`
	StartedAt int64  `json:"startedAt"` // Unix milliseconds
	Command   string `json:"command"`
}
