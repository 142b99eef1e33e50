package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/swarm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	idem = swarm.Idempotency
	ctx  = context.Context
)

// fake is a Swarm of functions. A call of one that is not set panics, which
// the handler answers with 500.
type fake struct {
	startRun          func(swarm.StartRunRequest) (swarm.StartRunAnswer, error)
	runs              func(state string, limit int, after string) (swarm.RunsView, error)
	run               func(id string) (swarm.RunView, error)
	deleteRun         func(id string) error
	spawn             func(swarm.SpawnRequest) (swarm.SpawnAnswer, error)
	await             func(swarm.AwaitRequest) (swarm.AwaitAnswer, error)
	awaitSubtree      func(id string, limit time.Duration) (swarm.SubtreeView, error)
	scope             func(what, id string, i idem) (swarm.ScopeAnswer, error)
	agent             func(id string) (swarm.AgentView, error)
	agents            func() ([]swarm.AgentView, error)
	prompt            func(id string, req swarm.PromptRequest) (swarm.PromptAnswer, error)
	steer             func(id, message string, i idem) (swarm.Accepted, error)
	act               func(what, id string, i idem) (swarm.Accepted, error)
	way               func(what, id string, i idem) (swarm.WayBack, error)
	result            func(id string, wait time.Duration) (swarm.ResultView, error)
	transcript        func(id string, full bool) (swarm.TranscriptView, error)
	checkpoints       func(id string) ([]swarm.CheckpointView, error)
	takeCheckpoint    func(id string, i idem) (swarm.CheckpointView, error)
	restoreCheckpoint func(id string, turn int, i idem) (swarm.WayBack, error)
	archive           func(id string, turn int) (io.ReadCloser, error)
	importCheckpoint  func(id string, r io.Reader, i idem) (swarm.CheckpointView, error)
	memories          func(id, after string, limit int) (swarm.MemoriesView, error)
	memory            func(what, id, key string) (swarm.MemoryView, error)
	notifyOn          func(id string, agents []string, wake bool) (swarm.Subscription, error)
	inbox             func(id string) (swarm.InboxView, error)
	deliver           func(id string) (swarm.InboxDelivery, error)
	permissions       func(id string) ([]swarm.PermissionView, error)
	answerPermission  func(id, requestID, decision, feedback string, i idem) (swarm.PermissionView, error)
	exec              func(c ctx, id string, req swarm.ExecRequest) (swarm.ExecAnswer, error)
	reconcile         func(dryRun bool) ([]swarm.Action, error)
	readiness         swarm.Readiness
	follow            func(after int64, runID string) api.Stream
}

func (f *fake) StartRun(_ ctx, r swarm.StartRunRequest) (swarm.StartRunAnswer, error) {
	return f.startRun(r)
}
func (f *fake) Runs(_ ctx, state string, limit int, after string) (swarm.RunsView, error) {
	return f.runs(state, limit, after)
}
func (f *fake) Run(_ ctx, id string) (swarm.RunView, error) { return f.run(id) }
func (f *fake) DeleteRun(_ ctx, id string, _ idem) error    { return f.deleteRun(id) }
func (f *fake) Spawn(_ ctx, r swarm.SpawnRequest) (swarm.SpawnAnswer, error) {
	return f.spawn(r)
}
func (f *fake) Await(_ ctx, r swarm.AwaitRequest) (swarm.AwaitAnswer, error) { return f.await(r) }
func (f *fake) AwaitSubtree(_ ctx, id string, limit time.Duration) (swarm.SubtreeView, error) {
	return f.awaitSubtree(id, limit)
}
func (f *fake) SteerSubtree(_ ctx, id, message string, i idem) (swarm.ScopeAnswer, error) {
	return f.scope("steer "+message, id, i)
}
func (f *fake) PauseSubtree(_ ctx, id string, i idem) (swarm.ScopeAnswer, error) {
	return f.scope("pause", id, i)
}
func (f *fake) ResumeSubtree(_ ctx, id string, i idem) (swarm.ScopeAnswer, error) {
	return f.scope("resume", id, i)
}
func (f *fake) StopSubtree(_ ctx, id, mode string, i idem) (swarm.ScopeAnswer, error) {
	return f.scope("stop "+mode, id, i)
}
func (f *fake) Agent(_ ctx, id string) (swarm.AgentView, error) { return f.agent(id) }
func (f *fake) Agents(ctx) ([]swarm.AgentView, error)           { return f.agents() }
func (f *fake) Prompt(_ ctx, id string, r swarm.PromptRequest) (swarm.PromptAnswer, error) {
	return f.prompt(id, r)
}
func (f *fake) Steer(_ ctx, id, message string, i idem) (swarm.Accepted, error) {
	return f.steer(id, message, i)
}
func (f *fake) Pause(_ ctx, id string, i idem) (swarm.Accepted, error) { return f.act("pause", id, i) }
func (f *fake) Resume(_ ctx, id string, i idem) (swarm.Accepted, error) {
	return f.act("resume", id, i)
}
func (f *fake) Stop(_ ctx, id, mode string, i idem) (swarm.Accepted, error) {
	return f.act("stop "+mode, id, i)
}
func (f *fake) Recover(_ ctx, id string, i idem) (swarm.WayBack, error) {
	return f.way("recover", id, i)
}
func (f *fake) Revive(_ ctx, id string, i idem) (swarm.WayBack, error) { return f.way("revive", id, i) }
func (f *fake) Result(_ ctx, id string, wait time.Duration) (swarm.ResultView, error) {
	return f.result(id, wait)
}
func (f *fake) Transcript(_ ctx, id string, full bool) (swarm.TranscriptView, error) {
	return f.transcript(id, full)
}
func (f *fake) Checkpoints(_ ctx, id string) ([]swarm.CheckpointView, error) {
	return f.checkpoints(id)
}
func (f *fake) TakeCheckpoint(_ ctx, id string, i idem) (swarm.CheckpointView, error) {
	return f.takeCheckpoint(id, i)
}
func (f *fake) RestoreCheckpoint(_ ctx, id string, turn int, i idem) (swarm.WayBack, error) {
	return f.restoreCheckpoint(id, turn, i)
}
func (f *fake) CheckpointArchive(_ ctx, id string, turn int) (io.ReadCloser, error) {
	return f.archive(id, turn)
}
func (f *fake) ImportCheckpoint(_ ctx, id string, r io.Reader, i idem) (swarm.CheckpointView, error) {
	return f.importCheckpoint(id, r, i)
}
func (f *fake) Memories(_ ctx, id, after string, limit int) (swarm.MemoriesView, error) {
	return f.memories(id, after, limit)
}
func (f *fake) Memory(_ ctx, id, key string) (swarm.MemoryView, error) {
	return f.memory("get", id, key)
}
func (f *fake) Remember(_ ctx, id, key string, value json.RawMessage, _ idem) (swarm.MemoryView, error) {
	return f.memory("put "+string(value), id, key)
}
func (f *fake) Forget(_ ctx, id, key string, _ idem) error {
	_, err := f.memory("delete", id, key)
	return err
}
func (f *fake) NotifyOn(_ ctx, id string, agents []string, wake bool, _ idem) (swarm.Subscription, error) {
	return f.notifyOn(id, agents, wake)
}
func (f *fake) Inbox(_ ctx, id string) (swarm.InboxView, error) { return f.inbox(id) }
func (f *fake) DeliverInbox(_ ctx, id string, _ idem) (swarm.InboxDelivery, error) {
	return f.deliver(id)
}
func (f *fake) Permissions(_ ctx, id string) ([]swarm.PermissionView, error) {
	return f.permissions(id)
}
func (f *fake) AnswerPermission(_ ctx, id, requestID, decision, feedback string, i idem) (swarm.PermissionView, error) {
	return f.answerPermission(id, requestID, decision, feedback, i)
}
func (f *fake) Exec(c ctx, id string, r swarm.ExecRequest, _ idem) (swarm.ExecAnswer, error) {
	return f.exec(c, id, r)
}
func (f *fake) SandboxReattach(_ ctx, id string, i idem) (swarm.WayBack, error) {
	return f.way("reattach", id, i)
}
func (f *fake) SandboxResume(_ ctx, id string, i idem) (swarm.WayBack, error) {
	return f.way("resume", id, i)
}
func (f *fake) SandboxAttach(_ ctx, id string, i idem) (swarm.WayBack, error) {
	return f.way("attach", id, i)
}
func (f *fake) ReconcileOnce(_ ctx, dryRun bool, _ idem) ([]swarm.Action, error) {
	return f.reconcile(dryRun)
}
func (f *fake) Readiness() swarm.Readiness                  { return f.readiness }
func (f *fake) Follow(after int64, runID string) api.Stream { return f.follow(after, runID) }

// metrics remembers what was observed.
type metrics struct {
	mu      sync.Mutex
	served  []string
	clients int
	changed chan int // each new number of clients; may be nil
}

func (m *metrics) HTTPServed(route, method string, code int, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.served = append(m.served, method+" "+route+" "+http.StatusText(code))
}

func (m *metrics) SSEClients(delta int) {
	m.mu.Lock()
	m.clients += delta
	n := m.clients
	m.mu.Unlock()
	if m.changed != nil {
		m.changed <- n
	}
}

func newHandler(t *testing.T, o api.Options) http.Handler {
	t.Helper()
	h, err := api.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ask sends one request to a handler. Headers are pairs.
func ask(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:4600"
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type answerError struct {
	Error  string `json:"error"`
	Code   string `json:"code"`
	Fields []struct {
		Path    string `json:"path"`
		Message string `json:"message"`
	} `json:"fields"`
}

// refused reads an answer that must be an error in JSON.
func refused(t *testing.T, w *httptest.ResponseRecorder, status int, code string) answerError {
	t.Helper()
	var e answerError
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		t.Fatalf("answer is not JSON: %v: %q", err, w.Body)
	}
	if w.Code != status || e.Code != code || e.Error == "" || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %q %q (%s), want %d %q", w.Code, e.Code, e.Error, w.Header().Get("Content-Type"), status, code)
	}
	return e
}

func ptr[T any](v T) *T { return &v }
