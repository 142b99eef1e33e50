// Package swarm is the supervisor loop: runs, agents, turns and their
// lifecycle.
//
// Every agent is owned by exactly one goroutine with a bounded mailbox. All
// that happens to the agent happens there, one thing after another; clients,
// the boot and the runtime's events only post to it. What an owner decides, it
// writes to the ledger first; what the ledger says, it works towards. So a boot
// is no special case: an owner that starts with an agent's row takes the same
// steps as one whose connection just broke.
package swarm

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
)

// Metrics is told what is to be counted.
type Metrics interface {
	Recovered(rung, outcome string, took time.Duration)
	Booted(took time.Duration)
	Checkpointed(outcome string, took time.Duration, bytes int64)
	TurnEnded(outcome string)
	RuntimeUp(name string, up bool)
	Orphans(n int)
	Reconciled(outcome string, took time.Duration)
}

// Secrets learns values that must never be shown.
type Secrets interface{ Add(values ...string) }

// Config is what a Swarm works with. Ledger, Runtimes, Choose, Harness and
// Store are needed; durations that are zero take the defaults.
type Config struct {
	Ledger *ledger.Ledger
	// Runtimes are those at hand. An agent of another one is held.
	Runtimes []runtime.Runtime
	// Choose names the runtime of a new agent.
	Choose  func(ctx context.Context) (runtime.Runtime, error)
	Harness func(name string) (harness.Harness, error)
	Store   checkpoint.Store
	Clock   clockwork.Clock
	Log     *zap.Logger
	Metrics Metrics
	// Lookup resolves ${VAR}; Secrets learns what it resolved to.
	Lookup  func(string) (string, bool)
	Secrets Secrets

	DefaultImage     string
	Retain           int
	AllowUnsandboxed bool

	Parallelism int // climbs at the same time
	Admitted    int // sandboxes made at the same time; 0: one less than cores
	// AdmissionTimeout is how long an agent waits for its own to be made.
	AdmissionTimeout time.Duration
	ReconcileEvery   time.Duration
	OrphanGrace      time.Duration
	Backoff          time.Duration // first pause before an agent is tried again
	BackoffMax       time.Duration
	HelloTimeout     time.Duration
	StartTimeout     time.Duration // of a harness
	StopGrace        time.Duration
	TakeTimeout      time.Duration // of one checkpoint
	Provisioning     time.Duration // of one sandbox with its setup snapshot
	// Guests lets programs in the sandboxes reach the daemon.
	Guests Guests
	// TurnIdle is how long a harness may say nothing in a turn; 0: for ever.
	TurnIdle time.Duration
}

func (c Config) withDefaults() Config {
	orDuration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Secrets == nil {
		c.Secrets = noSecrets{}
	}
	if c.Lookup == nil {
		c.Lookup = func(string) (string, bool) { return "", false }
	}
	if c.Retain <= 0 {
		c.Retain = checkpoint.DefaultRetain
	}
	if c.Parallelism <= 0 {
		c.Parallelism = 16
	}
	if c.Admitted <= 0 {
		c.Admitted = max(1, goruntime.NumCPU()-1)
	}
	orDuration(&c.AdmissionTimeout, time.Hour)
	orDuration(&c.ReconcileEvery, 3*time.Minute)
	orDuration(&c.OrphanGrace, 10*time.Minute)
	orDuration(&c.Backoff, 2*time.Second)
	orDuration(&c.BackoffMax, 2*time.Minute)
	orDuration(&c.HelloTimeout, 5*time.Second)
	orDuration(&c.StartTimeout, 2*time.Minute)
	orDuration(&c.StopGrace, 10*time.Second)
	orDuration(&c.TakeTimeout, 10*time.Minute)
	orDuration(&c.Provisioning, 15*time.Minute)
	return c
}

type noMetrics struct{}

func (noMetrics) Recovered(string, string, time.Duration)   {}
func (noMetrics) Booted(time.Duration)                      {}
func (noMetrics) Checkpointed(string, time.Duration, int64) {}
func (noMetrics) TurnEnded(string)                          {}
func (noMetrics) RuntimeUp(string, bool)                    {}
func (noMetrics) Orphans(int)                               {}
func (noMetrics) Reconciled(string, time.Duration)          {}

type noSecrets struct{}

func (noSecrets) Add(...string) {}

// Swarm owns all agents. Its methods are safe for concurrent use.
type Swarm struct {
	Config
	setup     *setup.Builder
	ladder    *recovery.Ladder
	runtimes  map[string]runtime.Runtime
	climbs    chan struct{} // one token for each climb in progress
	admission *admission
	climbing  atomic.Int64 // owners that climb or wait for a token
	live      *hub

	ctx    context.Context
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	owners  map[string]*owner
	held    map[string]*owner // that wait for others
	started bool
	stopped bool

	ready     readiness
	orphans   orphanage
	spawns    runtime.Locks // by run
	forks     runtime.Locks // by the sandbox forked from
	memories  runtime.Locks // by agent
	reconcile chan struct{} // one token: one reconciliation at a time
}

var errStopping = errors.New("the daemon is stopping")

// New makes a Swarm. Nothing happens before Start.
func New(c Config) *Swarm {
	c = c.withDefaults()
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Swarm{
		Config: c, runtimes: map[string]runtime.Runtime{}, owners: map[string]*owner{}, held: map[string]*owner{},
		climbs: make(chan struct{}, c.Parallelism), reconcile: make(chan struct{}, 1),
		admission: newAdmission(c.Admitted),
		live:      newHub(), ctx: ctx, cancel: cancel,
		setup: setup.NewBuilder(c.Ledger, c.Clock, c.Log),
	}
	for _, rt := range c.Runtimes {
		s.runtimes[rt.Name()] = rt
	}
	s.ladder = &recovery.Ladder{
		Ledger: c.Ledger, Setup: s.setup, Store: c.Store, Clock: c.Clock, Log: c.Log,
		Intend: s.intend, Abandoned: s.abandoned, Env: s.env,
		Furnish: s.furnish, Places: s.places,
		HelloTimeout: c.HelloTimeout, StartTimeout: c.StartTimeout,
	}
	return s
}

// Start reads the agents from the ledger, gives each its owner and begins the
// boot pass in the background: see Readiness. It returns once every agent can
// be asked.
func (s *Swarm) Start(ctx context.Context) error {
	agents, err := s.Ledger.Agents(ctx, ledger.AgentFilter{ExceptStates: final})
	if err != nil {
		return fmt.Errorf("reading the agents: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return nil
	}
	s.started = true
	s.ready.begin(len(agents), s.Clock.Now())
	for _, a := range agents {
		s.own(a, true)
	}
	last := s.Ledger.LastSeq()
	s.work.Go(func() { s.stir(last) })
	s.work.Go(s.boot)
	return nil
}

// Close ends all owners and waits for them. Every sandbox goes on.
func (s *Swarm) Close() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel(errStopping)
	s.setup.Close()
	s.work.Wait()
	s.live.close()
}

// own starts the owner of an agent; s.mu is held.
func (s *Swarm) own(a ledger.Agent, booting bool) *owner {
	o := newOwner(s, a, booting)
	if booting && a.State == StateProvisioning {
		o.join() // here: in the order they were spawned
	}
	s.owners[a.AgentID] = o
	s.work.Go(o.run)
	return o
}

func (s *Swarm) disown(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owners, id)
}

// owner finds an agent's owner. An agent that is known and final has none:
// ErrConflict with its state.
func (s *Swarm) owner(ctx context.Context, id, action string) (*owner, error) {
	a, err := s.agentRow(ctx, id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	o := s.owners[id]
	s.mu.Unlock()
	if o != nil {
		return o, nil
	}
	return nil, refused(action, a.State)
}

func (s *Swarm) agentRow(ctx context.Context, id string) (ledger.Agent, error) {
	a, err := s.Ledger.Agent(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return a, notFound("agent", id)
	}
	if err != nil {
		return a, err
	}
	if seen, err := s.sees(ctx, a); err != nil || !seen {
		return a, errors.Join(err, notFound("agent", id))
	}
	return a, nil
}

func notFound(what, id string) error {
	return &Error{Kind: ErrNotFound, Code: what + "_not_found", Message: fmt.Sprintf("no %s %q", what, id)}
}

func refused(action, state string) error {
	return &Error{Kind: ErrConflict, Code: "wrong_state", Message: fmt.Sprintf("cannot %s an agent that is %s", action, state)}
}

// env resolves a spec's environment and has its secrets kept out of sight.
func (s *Swarm) env(sp *spec.Spec) (map[string]string, error) {
	env, err := sp.ResolveEnv(s.Lookup)
	if err != nil {
		return nil, err
	}
	for name, value := range env {
		if sp.Env[name] != value { // it came from the daemon's environment
			s.Secrets.Add(value)
		}
	}
	for _, name := range sp.Vars() {
		if value, ok := s.Lookup(name); ok {
			s.Secrets.Add(value)
		}
	}
	return env, nil
}

// intend records that a sandbox is about to be made. A provisioning that a
// crash cut short is taken up again under the sandbox id it had chosen.
func (s *Swarm) intend(ctx context.Context, a ledger.Agent, purpose, image string) (string, int, error) {
	if purpose == recovery.PurposeProvision {
		open, err := s.Ledger.Sandboxes(ctx, ledger.SandboxFilter{AgentID: a.AgentID, States: []string{"intended"}})
		if err != nil {
			return "", 0, err
		}
		for _, sb := range open {
			if sb.Purpose == purpose && sb.Image == image && sb.Runtime == a.Runtime {
				return sb.SandboxID, sb.Generation, nil
			}
		}
	}
	fresh, err := s.Ledger.Agent(ctx, a.AgentID)
	if err != nil {
		return "", 0, err
	}
	id, generation := ids.New(ids.Sandbox), fresh.Generation+1
	_, err = s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{
		RunID: a.RunID, AgentID: a.AgentID, SandboxID: id, Event: ledger.SandboxIntended,
		Payload: ledger.SandboxIntendedPayload{Runtime: a.Runtime, Generation: generation, Purpose: purpose, Image: image},
	}}})
	hit("swarm.sandbox-intended")
	return id, generation, err
}

func (s *Swarm) abandoned(ctx context.Context, a ledger.Agent, sandboxID, reason string) error {
	return s.sandboxRemoved(ctx, a.RunID, a.AgentID, sandboxID, reason)
}

func (s *Swarm) sandboxRemoved(ctx context.Context, runID, agentID, sandboxID, reason string) error {
	_, err := s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{
		RunID: runID, AgentID: agentID, SandboxID: sandboxID, Event: ledger.SandboxRemoved,
		Payload: ledger.ReasonPayload{Reason: reason},
	}}})
	return err
}
