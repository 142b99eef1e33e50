// Package alineo keeps coding agents alive inside a Go program: the swarm of
// the daemon alineod, without the daemon.
//
// Each agent works in a sandbox of its own, a Docker container or a process
// group, and goes on working when the program ends or is killed. The next Open
// of the same state directory takes every agent up where it is.
//
// The program's own executable is what runs inside the sandboxes. It has to
// call Init first thing in main, and, for Docker, be static (CGO_ENABLED=0).
package alineo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/daemon"
	"github.com/alineod/alineod/internal/inside"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/alineod/alineod/internal/telemetry"
)

// Init must be called first thing in main. Where this process was started
// inside a sandbox it does that work, and does not return.
func Init() {
	if code, handled := inside.Main(os.Args[1:]); handled {
		os.Exit(code)
	}
}

// Runtimes.
const (
	Auto   = config.Auto
	Docker = config.RuntimeDocker
	Local  = config.RuntimeLocal
)

// Options say how a swarm is kept. StateDir is required; everything else has
// the daemon's default.
type Options struct {
	// StateDir holds the ledger, the checkpoints and the sandboxes' sockets.
	// One program at a time has it.
	StateDir string
	// Runtime is Auto, Docker or Local. Local isolates nothing.
	Runtime string
	// DockerHost is the engine's address, DockerNetwork the network of every
	// sandbox.
	DockerHost, DockerNetwork string
	// AllowUnsandboxed lets real coding agents run on the local runtime.
	AllowUnsandboxed bool
	// Retain is how many checkpoints are kept per sandbox.
	Retain int
	// Binary is the executable for the sandboxes; empty: the program's own.
	Binary string
	// Lookup resolves ${NAME} of specs; nil: the environment.
	Lookup func(name string) (string, bool)
	// Log is written to; nil: nowhere. Values that Lookup gave are masked.
	Log *zap.Logger
}

func (o Options) config() (*config.Config, error) {
	var env []string
	for name, value := range map[string]string{"STATE_DIR": o.StateDir, "RUNTIME": o.Runtime, "DOCKER_HOST": o.DockerHost, "DOCKER_NETWORK": o.DockerNetwork} {
		if value != "" {
			env = append(env, "ALINEOD_"+name+"="+value)
		}
	}
	if o.AllowUnsandboxed {
		env = append(env, "ALINEOD_LOCAL_ALLOW_UNSANDBOXED=true")
	}
	if o.Retain != 0 {
		env = append(env, "ALINEOD_CHECKPOINTS_RETAIN="+strconv.Itoa(o.Retain))
	}
	slices.Sort(env)
	return config.Load(config.Sources{Environ: env})
}

// Swarm is all agents of a state directory. Its methods are safe for
// concurrent use.
type Swarm struct {
	d *daemon.Daemon
	s *swarm.Swarm
}

// Open takes the state directory and begins to bring back every agent that is
// in it. It does not wait for that: see Ready. Errors: ErrInvalid, ErrInUse,
// and others. The caller closes the swarm.
func Open(ctx context.Context, o Options) (*Swarm, error) {
	if o.StateDir == "" {
		return nil, &Error{Kind: ErrInvalid, Message: "StateDir is empty"}
	}
	cfg, err := o.config()
	if err != nil {
		return nil, &Error{Kind: ErrInvalid, Message: err.Error()}
	}
	log, redactor := o.Log, telemetry.NewRedactor()
	if log == nil {
		log = zap.NewNop()
	}
	d, err := daemon.New(ctx, cfg, daemon.Options{Binary: o.Binary, Log: log.WithOptions(redactor.Option()), Redactor: redactor, Lookup: o.Lookup})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", o.StateDir, err)
	}
	s := &Swarm{d: d, s: d.Swarm()}
	if err := s.s.Start(ctx); err != nil {
		d.Close()
		return nil, fmt.Errorf("starting the swarm of %s: %w", o.StateDir, err)
	}
	return s, nil
}

// Close lets go of the state directory. Every sandbox goes on working.
func (s *Swarm) Close() { s.d.Close() }

// Ready waits until every agent has been through the recovery ladder, or is
// held because its runtime does not answer.
func (s *Swarm) Ready(ctx context.Context) error {
	select {
	case <-s.s.Booted():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the agents to be back: %w", ctx.Err())
	}
}

// StartOptions are what Start may be told beside the spec.
type StartOptions struct {
	// Key makes a repetition of the call give the first one's agent, over the
	// death of the program too.
	Key string
}

// Start makes a new agent in a new sandbox and waits until it takes prompts.
// spec is JSON, or a value that marshals to it. Errors: ErrInvalid with the
// fields, and an *Error of kind ErrConflict where the sandbox could not be made.
func (s *Swarm) Start(ctx context.Context, spec any, o StartOptions) (*Agent, error) {
	raw, err := specOf(spec)
	if err != nil {
		return nil, err
	}
	req := swarm.StartRunRequest{Spec: raw}
	if o.Key != "" {
		req.Idempotency = swarm.Idempotency{Scope: "alineo.Start", Key: o.Key, BodyHash: hash(raw)}
	}
	answer, err := s.s.StartRun(ctx, req)
	if err != nil {
		return nil, wrap("starting an agent", err)
	}
	a := &Agent{s: s, id: answer.RootAgentID, runID: answer.RunID}
	state, err := a.settled(ctx)
	if err != nil {
		return nil, err
	}
	if !state.Promptable() {
		return nil, &Error{Kind: ErrConflict, Code: state.Reason, Message: fmt.Sprintf("agent %s could not be started: it is %s: %s", a.id, state.State, state.Error)}
	}
	return a, nil
}

// specOf makes JSON of a spec that is JSON already or marshals to it.
func specOf(spec any) (json.RawMessage, error) {
	switch s := spec.(type) {
	case []byte:
		return s, nil
	case json.RawMessage:
		return s, nil
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, &Error{Kind: ErrInvalid, Message: fmt.Sprintf("the spec cannot be marshalled: %v", err)}
	}
	return raw, nil
}

// lookTime is how long one look for a result waits; one that ends without it is
// followed by the next.
const lookTime = time.Minute

// Agent finds an agent by its id. Errors: ErrNotFound.
func (s *Swarm) Agent(ctx context.Context, id string) (*Agent, error) {
	v, err := s.s.Agent(ctx, id)
	if err != nil {
		return nil, wrap("finding an agent", err)
	}
	return &Agent{s: s, id: v.AgentID, runID: v.RunID}, nil
}

// Agents lists all agents, oldest first.
func (s *Swarm) Agents(ctx context.Context) ([]*Agent, error) {
	views, err := s.s.Agents(ctx)
	if err != nil {
		return nil, wrap("listing agents", err)
	}
	all := make([]*Agent, len(views))
	for i, v := range views {
		all[i] = &Agent{s: s, id: v.AgentID, runID: v.RunID}
	}
	return all, nil
}

// Back says how an agent came back.
type Back struct {
	// Rung is reattached, resumed, restarted, restored or attached.
	Rung string
	// SandboxID is the new one where the agent was restored.
	SandboxID string
	// CheckpointTurn is the turn of the checkpoint that was restored; 0: none.
	CheckpointTurn int
}

// Reattach binds to the bridge that runs in a sandbox; a turn that runs goes
// on. Where the sandbox is gone the agent is restored. Errors: ErrNotFound, and
// ErrConflict where the bridge does not answer and the sandbox is alive.
func (s *Swarm) Reattach(ctx context.Context, sandboxID string) (*Agent, Back, error) {
	return s.way(ctx, "reattaching", sandboxID, s.s.SandboxReattach)
}

// Resume restarts the bridge in a sandbox and continues the session; a turn
// that runs is interrupted. Where the sandbox is gone the agent is restored.
func (s *Swarm) Resume(ctx context.Context, sandboxID string) (*Agent, Back, error) {
	return s.way(ctx, "resuming", sandboxID, s.s.SandboxResume)
}

// Attach says whose a sandbox is and touches nothing in it.
func (s *Swarm) Attach(ctx context.Context, sandboxID string) (*Agent, Back, error) {
	return s.way(ctx, "attaching", sandboxID, s.s.SandboxAttach)
}

func (s *Swarm) way(ctx context.Context, doing, sandboxID string, how func(context.Context, string, swarm.Idempotency) (swarm.WayBack, error)) (*Agent, Back, error) {
	w, err := how(ctx, sandboxID, swarm.Idempotency{})
	if err != nil {
		return nil, Back{}, wrap(doing+" "+sandboxID, err)
	}
	a, err := s.Agent(ctx, w.AgentID)
	return a, back(w), err
}

func back(w swarm.WayBack) Back {
	b := Back{Rung: w.Rung, SandboxID: w.SandboxID}
	if w.Checkpoint != nil {
		b.CheckpointTurn = w.Checkpoint.Turn
	}
	return b
}
