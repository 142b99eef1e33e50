// Package config is what the operator tells the daemon. A setting comes from a
// flag, else from the environment, else from the configuration file, else it
// has its default. Load reads all four, refuses what it does not know, and
// answers with everything that is wrong at once; Describe says for each value
// where it came from.
//
// The settings themselves stand in one table (settings.go): the file's keys,
// the names of variables and flags, and the help texts all follow from it.
package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Names of runtimes, transports and log formats that settings may take.
const (
	Auto = "auto"

	RuntimeDocker = "docker"
	RuntimeLocal  = "local"

	TransportSocket = "socket"
	TransportExec   = "exec"

	LogJSON    = "json"
	LogConsole = "console"
)

// Config is the daemon's configuration. It is not changed after Load and may
// be read from many goroutines.
type Config struct {
	// StateDir holds the ledger, the checkpoints and the sandboxes' sockets.
	StateDir string
	// Listen is the TCP address of the API, Socket the path of its unix
	// socket; an empty Socket is <StateDir>/alineod.sock and filled in by Load.
	Listen string
	Socket string
	// Runtime is auto, docker or local.
	Runtime string
	// DefaultImage is what a spec without an image starts from.
	DefaultImage string

	Docker      Docker
	Local       Local
	Log         Log
	Checkpoints Checkpoints
	Admission   Admission
	Recovery    Recovery
	Timeouts    Timeouts
	Auth        Auth
	Metrics     Metrics

	origins map[string]string // by key; absent is a default
}

// Docker is how the Docker Engine is reached and used.
type Docker struct {
	// Host is the engine's address; empty: the platform's usual socket.
	Host string
	// Network is the network mode or the network's name of every sandbox.
	Network string
	// Transport is how bridges are reached: auto, socket or exec.
	Transport string
}

// Local is the runtime of plain processes.
type Local struct {
	// AllowUnsandboxed lets real coding agents run on the bare host.
	AllowUnsandboxed bool
}

// Log is what is logged and in which form.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // auto, json, console
}

// Checkpoints is what is kept of agents.
type Checkpoints struct {
	// Retain is how many are kept per sandbox where a spec does not say.
	Retain int
}

// Recovery is the ladder and the reconciliation.
type Recovery struct {
	// Parallelism is how many agents are on the ladder at once.
	Parallelism int
	// ReconcileEvery is the time between two comparisons of the runtime's
	// sandboxes with the ledger.
	ReconcileEvery time.Duration
	// OrphanGrace is how long a sandbox no agent claims is kept.
	OrphanGrace time.Duration
}

// Admission is how sandboxes of new agents are made.
type Admission struct {
	// Parallelism is how many are made at once; 0: one less than there are
	// cores, at least one.
	Parallelism int
	// Timeout is how long an agent waits for its turn.
	Timeout time.Duration
}

// Timeouts bound what the daemon waits for.
type Timeouts struct {
	// BridgeHello is how long a bridge may take to answer.
	BridgeHello time.Duration
	// Provision is how long a sandbox, its setup included, may take.
	Provision time.Duration
	// Stop is how long a harness, and then a sandbox, may take to end by
	// itself.
	Stop time.Duration
	// Engine bounds one request to the Docker Engine that is not a transfer.
	Engine time.Duration
	// Checkpoint bounds one taking or laying out of a checkpoint.
	Checkpoint time.Duration
	// TurnIdle ends a turn in which the harness says nothing for so long;
	// 0: never, for a tool call may rightly take hours.
	TurnIdle time.Duration
	// Shutdown is how long requests in flight may take at the daemon's end.
	Shutdown time.Duration
}

// Auth is who may use the API.
type Auth struct {
	// Token is asked of every client where it is set. Load fills it in from
	// TokenFile.
	Token     string
	TokenFile string
	// ReadOnlyTokens may look and change nothing.
	ReadOnlyTokens []string
}

// Metrics is the listener for /metrics; empty: the API's.
type Metrics struct{ Listen string }

// Default is the configuration of a user (0 is root) without file, variables
// or flags. lookup reads the environment, for HOME and XDG_STATE_HOME.
func Default(uid int, lookup func(string) string) *Config {
	c := &Config{
		StateDir:     defaultStateDir(uid, lookup),
		Listen:       "127.0.0.1:4600",
		Runtime:      Auto,
		DefaultImage: "node:22-bookworm-slim",
		Docker:       Docker{Network: "bridge", Transport: Auto},
		Log:          Log{Level: "info", Format: Auto},
		Checkpoints:  Checkpoints{Retain: 3},
		Admission:    Admission{Timeout: time.Hour},
		Recovery: Recovery{
			// A restore is mostly waiting for the engine and the disk.
			Parallelism:    8,
			ReconcileEvery: 2 * time.Minute,
			OrphanGrace:    time.Hour,
		},
		Timeouts: Timeouts{
			BridgeHello: 5 * time.Second,
			Provision:   10 * time.Minute,
			Stop:        10 * time.Second,
			Engine:      30 * time.Second,
			Checkpoint:  10 * time.Minute,
			Shutdown:    10 * time.Second,
		},
	}
	return c
}

func defaultStateDir(uid int, lookup func(string) string) string {
	if uid == 0 {
		return "/var/lib/alineod"
	}
	// The XDG rules: a relative XDG_STATE_HOME is to be ignored.
	if dir := lookup("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "alineod")
	}
	if home := lookup("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state/alineod")
	}
	return "" // Validate asks for one
}

// ErrInvalid is the kind of every error of a configuration that cannot be
// used. The error itself is an *Error.
var ErrInvalid = errors.New("invalid configuration")

// Problem is one thing that is wrong.
type Problem struct {
	// Field is the setting's key, as docker.network, or the name of a variable
	// that is no setting.
	Field string `json:"field"`
	// Source is where the value came from, as "alineod.yaml:12".
	Source  string `json:"source,omitempty"`
	Message string `json:"message"`
}

func (p Problem) String() string {
	if p.Source == "" {
		return p.Field + ": " + p.Message
	}
	return fmt.Sprintf("%s (%s): %s", p.Field, p.Source, p.Message)
}

// Error is all that is wrong with a configuration.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.String()
	}
	return ErrInvalid.Error() + ": " + strings.Join(texts, "; ")
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// Setting is one value and where it came from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// secretMask stands for a secret that is set.
const secretMask = "********"

// Describe lists every setting in the order of the file, with secrets masked.
func (c *Config) Describe() []Setting {
	out := make([]Setting, 0, len(settings))
	for _, s := range settings {
		d := Setting{Key: s.key, Value: format(s.field(c)), Source: "default"}
		if s.secret && d.Value != "" {
			d.Value = secretMask
		}
		if from, ok := c.origins[s.key]; ok {
			d.Source = from
		}
		out = append(out, d)
	}
	return out
}

// Secrets returns the tokens, for the redactor.
func (c *Config) Secrets() []string {
	var out []string
	if c.Auth.Token != "" {
		out = append(out, c.Auth.Token)
	}
	return append(out, c.Auth.ReadOnlyTokens...)
}
