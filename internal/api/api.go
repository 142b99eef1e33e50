// Package api is the daemon's HTTP interface: JSON routes, the event streams,
// authentication, and the OpenAPI document.
//
// A route is declared once, with the Go type of its body and of its answer.
// From that declaration come the decoding of a request, the naming of each
// field that is wrong with it, and the OpenAPI document, so that the three
// cannot differ. The package decides nothing about agents: it hands requests
// to a Swarm and turns its answers and errors into HTTP.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// Stream is a subscription to events. It is an alias of an unnamed interface,
// so that a Swarm needs no type of this package to return one.
type Stream = interface {
	// Next waits for the next event. It fails when ctx ends, when the stream
	// was closed, or when the reader fell too far behind; no event follows an
	// error.
	Next(ctx context.Context) (swarm.StreamEvent, error)
	Close()
}

// Swarm is what the routes work on. Errors a client caused are *swarm.Error,
// *spec.Error or kinds of the ledger.
type Swarm interface {
	StartRun(ctx context.Context, req swarm.StartRunRequest) (swarm.StartRunAnswer, error)
	Runs(ctx context.Context, state string, limit int, after string) (swarm.RunsView, error)
	Run(ctx context.Context, id string) (swarm.RunView, error)
	DeleteRun(ctx context.Context, id string, idem swarm.Idempotency) error
	Spawn(ctx context.Context, req swarm.SpawnRequest) (swarm.SpawnAnswer, error)
	Await(ctx context.Context, req swarm.AwaitRequest) (swarm.AwaitAnswer, error)
	AwaitSubtree(ctx context.Context, id string, limit time.Duration) (swarm.SubtreeView, error)

	Agent(ctx context.Context, id string) (swarm.AgentView, error)
	Agents(ctx context.Context) ([]swarm.AgentView, error)
	Prompt(ctx context.Context, id string, req swarm.PromptRequest) (swarm.PromptAnswer, error)
	Steer(ctx context.Context, id, message string, idem swarm.Idempotency) (swarm.Accepted, error)
	Pause(ctx context.Context, id string, idem swarm.Idempotency) (swarm.Accepted, error)
	Resume(ctx context.Context, id string, idem swarm.Idempotency) (swarm.Accepted, error)
	Stop(ctx context.Context, id, mode string, idem swarm.Idempotency) (swarm.Accepted, error)
	SteerSubtree(ctx context.Context, id, message string, idem swarm.Idempotency) (swarm.ScopeAnswer, error)
	PauseSubtree(ctx context.Context, id string, idem swarm.Idempotency) (swarm.ScopeAnswer, error)
	ResumeSubtree(ctx context.Context, id string, idem swarm.Idempotency) (swarm.ScopeAnswer, error)
	StopSubtree(ctx context.Context, id, mode string, idem swarm.Idempotency) (swarm.ScopeAnswer, error)
	Recover(ctx context.Context, id string, idem swarm.Idempotency) (swarm.WayBack, error)
	Revive(ctx context.Context, id string, idem swarm.Idempotency) (swarm.WayBack, error)
	// Result waits up to wait for the last turn to settle.
	Result(ctx context.Context, id string, wait time.Duration) (swarm.ResultView, error)
	Transcript(ctx context.Context, id string, full bool) (swarm.TranscriptView, error)

	Checkpoints(ctx context.Context, id string) ([]swarm.CheckpointView, error)
	TakeCheckpoint(ctx context.Context, id string, idem swarm.Idempotency) (swarm.CheckpointView, error)
	RestoreCheckpoint(ctx context.Context, id string, turn int, idem swarm.Idempotency) (swarm.WayBack, error)
	// CheckpointArchive is a plain tar.
	CheckpointArchive(ctx context.Context, id string, turn int) (io.ReadCloser, error)
	ImportCheckpoint(ctx context.Context, id string, r io.Reader, idem swarm.Idempotency) (swarm.CheckpointView, error)

	Memories(ctx context.Context, id, after string, limit int) (swarm.MemoriesView, error)
	Memory(ctx context.Context, id, key string) (swarm.MemoryView, error)
	Remember(ctx context.Context, id, key string, value json.RawMessage, idem swarm.Idempotency) (swarm.MemoryView, error)
	Forget(ctx context.Context, id, key string, idem swarm.Idempotency) error
	NotifyOn(ctx context.Context, id string, agents []string, wake bool, idem swarm.Idempotency) (swarm.Subscription, error)
	Inbox(ctx context.Context, id string) (swarm.InboxView, error)
	DeliverInbox(ctx context.Context, id string, idem swarm.Idempotency) (swarm.InboxDelivery, error)

	Permissions(ctx context.Context, id string) ([]swarm.PermissionView, error)
	AnswerPermission(ctx context.Context, id, requestID, decision, feedback string, idem swarm.Idempotency) (swarm.PermissionView, error)
	Exec(ctx context.Context, id string, req swarm.ExecRequest, idem swarm.Idempotency) (swarm.ExecAnswer, error)

	SandboxReattach(ctx context.Context, sandboxID string, idem swarm.Idempotency) (swarm.WayBack, error)
	SandboxResume(ctx context.Context, sandboxID string, idem swarm.Idempotency) (swarm.WayBack, error)
	SandboxAttach(ctx context.Context, sandboxID string, idem swarm.Idempotency) (swarm.WayBack, error)

	ReconcileOnce(ctx context.Context, dryRun bool, idem swarm.Idempotency) ([]swarm.Action, error)
	Readiness() swarm.Readiness
	// Follow replays what is stored after the seq after and goes on live,
	// without gap or double; after < 0 is only from now on. An empty runID is
	// all runs.
	Follow(after int64, runID string) Stream
}

// Metrics observes the requests. Route is the pattern of a route, never a
// path: no id becomes a label.
type Metrics interface {
	HTTPServed(route, method string, code int, took time.Duration)
	SSEClients(delta int)
}

// VersionInfo answers GET /version.
type VersionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	BuiltAt  string `json:"builtAt,omitempty"`
	Go       string `json:"go"`
	Runtime  string `json:"runtime"`
	Isolated bool   `json:"isolated"`         // false: nothing keeps agents from the host
	Notice   string `json:"notice,omitempty"` // what an operator should know about that
}

// Options is what the handler is made of. Swarm is required.
type Options struct {
	Swarm Swarm

	// Token is asked of every request but GET /health; empty: none is needed,
	// which New only accepts where Listen is on loopback or empty.
	Token string
	// ReadOnlyTokens may read only. They need a Token beside them.
	ReadOnlyTokens []string
	// Listen is the host:port of the TCP listener; empty: unix socket only.
	Listen string
	// AllowedHosts are names besides loopback and Listen's under which the
	// daemon may be addressed, as behind a proxy.
	AllowedHosts []string

	Version string
	// Describe says what runs here just now; nil: the version alone.
	Describe       func(context.Context) VersionInfo
	Metrics        Metrics      // nil: none
	MetricsHandler http.Handler // nil: no route /metrics
	Schema         []byte       // JSON Schema of specs; nil: no route

	// Verify compares the ledger with its projections, Rebuild makes them
	// anew; nil: no such route.
	Verify  func(context.Context) (ledger.Report, error)
	Rebuild func(context.Context) (ledger.Report, error)

	// Redact masks secrets in the texts of errors; nil: there are none.
	Redact func(string) string

	Clock clockwork.Clock // nil: the real one
	Log   *zap.Logger     // nil: none
	// WriteTimeout is how long a streaming client may take to accept one
	// piece before its connection is closed. Zero: 10 s.
	WriteTimeout time.Duration
	// ReadTimeout is how long a client may be silent within a body. Zero: 1
	// minute.
	ReadTimeout time.Duration
}

// Generous for a slow network, and still they free the connection of a client
// that went to sleep.
const (
	defaultWriteTimeout = 10 * time.Second
	defaultReadTimeout  = time.Minute
)

type server struct {
	Options
	guard   guard
	mux     *http.ServeMux
	routes  *routes
	openapi []byte
}

// New returns the handler of the whole API. It fails on options that would
// leave the daemon open to others.
func New(o Options) (http.Handler, error) {
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	return s.observed(http.HandlerFunc(s.dispatch)), nil
}

func newServer(o Options) (*server, error) {
	if o.Swarm == nil {
		return nil, errors.New("api: no swarm given")
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.Describe == nil {
		o.Describe = func(context.Context) VersionInfo { return VersionInfo{Version: o.Version} }
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = defaultWriteTimeout
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = defaultReadTimeout
	}
	g, err := newGuard(o)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s := &server{Options: o, guard: g, mux: http.NewServeMux()}
	s.routes = newRoutes(s)
	s.runRoutes()
	s.agentRoutes()
	s.checkpointRoutes()
	s.memoryRoutes()
	s.inboxRoutes()
	s.sandboxRoutes()
	s.daemonRoutes()
	if s.openapi, err = s.routes.document(o); err != nil {
		return nil, fmt.Errorf("api: making the OpenAPI document: %w", err)
	}
	return s, nil
}

// dispatch guards the routes and answers in JSON where there is none.
func (s *server) dispatch(w http.ResponseWriter, r *http.Request) {
	pattern := s.pattern(r)
	// /health says nothing but "up": probes need no token and no name.
	if pattern != healthPattern {
		if p := s.guard.check(r); p != nil {
			writeProblem(w, p)
			return
		}
	}
	if pattern != "" {
		// Through the mux itself, which sets the path's values.
		s.mux.ServeHTTP(w, r)
		return
	}
	if allowed := s.allowed(r); allowed != "" {
		w.Header().Set("Allow", allowed)
		writeProblem(w, &problem{status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
			Message: fmt.Sprintf("%s is not a method of %s; it has %s", r.Method, r.URL.Path, allowed)})
		return
	}
	writeProblem(w, &problem{status: http.StatusNotFound, Code: "unknown_route",
		Message: fmt.Sprintf("no route %s", r.URL.Path)})
}

type noMetrics struct{}

func (noMetrics) HTTPServed(string, string, int, time.Duration) {}
func (noMetrics) SSEClients(int)                                {}

// loopback says whether host names this machine to itself only.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
