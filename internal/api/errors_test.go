package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	problems := []spec.Problem{{Path: "setup[2].run", Message: "is empty"}, {Path: "name", Message: "is missing"}}
	for _, c := range []struct {
		err    error
		status int
		code   string
		fields int
	}{
		{&swarm.Error{Kind: swarm.ErrInvalid, Code: "bad_thing", Message: "m", Fields: problems}, 400, "bad_thing", 2},
		{&swarm.Error{Kind: swarm.ErrInvalid, Message: "m"}, 400, "invalid", 0},
		{&swarm.Error{Kind: swarm.ErrNotFound, Code: "no_agent", Message: "m"}, 404, "no_agent", 0},
		{&swarm.Error{Kind: swarm.ErrConflict, Code: "not_promptable", Message: "m"}, 409, "not_promptable", 0},
		{&swarm.Error{Kind: swarm.ErrRefused, Code: "refused", Message: "m"}, 502, "refused", 0},
		{&swarm.Error{Kind: swarm.ErrUnavailable, Code: "recovering", Message: "m"}, 503, "recovering", 0},
		{&swarm.Error{Kind: errors.New("odd"), Message: "m"}, 500, "internal", 0},
		{swarm.ErrNotFound, 404, "not_found", 0},
		{&spec.Error{Problems: problems}, 400, "invalid_spec", 2},
		{&spec.UnsetVarError{Names: []string{"TOKEN"}}, 400, "unset_variable", 0},
		{ledger.ErrKeyReused, 409, "key_reused", 0},
		{ledger.ErrConflict, 409, "conflict", 0},
		{ledger.ErrFull, 507, "disk_full", 0},
		{ledger.ErrNotFound, 404, "not_found", 0},
		{ledger.ErrClosed, 503, "shutting_down", 0},
		{context.DeadlineExceeded, 503, "timeout", 0},
		{errors.New("who knows"), 500, "internal", 0},
	} {
		f := &fake{agent: func(string) (swarm.AgentView, error) {
			return swarm.AgentView{}, fmt.Errorf("reading an agent: %w", c.err)
		}}
		w := ask(newHandler(t, options(f)), "GET", "/agents/a", "")
		e := refused(t, w, c.status, c.code)
		if len(e.Fields) != c.fields {
			t.Errorf("%v: fields %v", c.err, e.Fields)
		}
		if retry := w.Header().Get("Retry-After"); (retry != "") != (c.status == 503) {
			t.Errorf("%v: Retry-After %q", c.err, retry)
		}
	}
}

// TestErrorsKeepSecrets: what an engine or a harness said may hold one.
func TestErrorsKeepSecrets(t *testing.T) {
	t.Parallel()
	o := options(&fake{agent: func(string) (swarm.AgentView, error) { return swarm.AgentView{}, errors.New("the key sesame is wrong") }})
	o.Redact = func(s string) string { return strings.ReplaceAll(s, "sesame", "***") }
	w := ask(newHandler(t, o), "GET", "/agents/a", "")
	if body := w.Body.String(); strings.Contains(body, "sesame") || !strings.Contains(body, "***") {
		t.Errorf("answered %s", body)
	}
}

// TestErrorsOfEveryRoute: no route forgets to map an error, and none answers
// with anything of a good answer beside it.
func TestErrorsOfEveryRoute(t *testing.T) {
	t.Parallel()
	gone := &swarm.Error{Kind: swarm.ErrNotFound, Code: "gone", Message: "no such thing"}
	f := &fake{
		startRun:          func(swarm.StartRunRequest) (a swarm.StartRunAnswer, _ error) { return a, gone },
		runs:              func(string, int, string) (a swarm.RunsView, _ error) { return a, gone },
		run:               func(string) (a swarm.RunView, _ error) { return a, gone },
		deleteRun:         func(string) error { return gone },
		memories:          func(string, string, int) (a swarm.MemoriesView, _ error) { return a, gone },
		memory:            func(string, string, string) (a swarm.MemoryView, _ error) { return a, gone },
		await:             func(swarm.AwaitRequest) (a swarm.AwaitAnswer, _ error) { return a, gone },
		awaitSubtree:      func(string, time.Duration) (a swarm.SubtreeView, _ error) { return a, gone },
		scope:             func(string, string, idem) (a swarm.ScopeAnswer, _ error) { return a, gone },
		spawn:             func(swarm.SpawnRequest) (a swarm.SpawnAnswer, _ error) { return a, gone },
		agent:             func(string) (a swarm.AgentView, _ error) { return a, gone },
		agents:            func() (a []swarm.AgentView, _ error) { return a, gone },
		prompt:            func(string, swarm.PromptRequest) (a swarm.PromptAnswer, _ error) { return a, gone },
		steer:             func(string, string, idem) (a swarm.Accepted, _ error) { return a, gone },
		act:               func(string, string, idem) (a swarm.Accepted, _ error) { return a, gone },
		way:               func(string, string, idem) (a swarm.WayBack, _ error) { return a, gone },
		result:            func(string, time.Duration) (a swarm.ResultView, _ error) { return a, gone },
		transcript:        func(string, bool) (a swarm.TranscriptView, _ error) { return a, gone },
		checkpoints:       func(string) (a []swarm.CheckpointView, _ error) { return a, gone },
		takeCheckpoint:    func(string, idem) (a swarm.CheckpointView, _ error) { return a, gone },
		restoreCheckpoint: func(string, int, idem) (a swarm.WayBack, _ error) { return a, gone },
		archive:           func(string, int) (a io.ReadCloser, _ error) { return a, gone },
		importCheckpoint:  func(string, io.Reader, idem) (a swarm.CheckpointView, _ error) { return a, gone },
		notifyOn:          func(string, []string, bool) (a swarm.Subscription, _ error) { return a, gone },
		inbox:             func(string) (a swarm.InboxView, _ error) { return a, gone },
		deliver:           func(string) (a swarm.InboxDelivery, _ error) { return a, gone },
		permissions:       func(string) (a []swarm.PermissionView, _ error) { return a, gone },
		answerPermission:  func(_, _, _, _ string, _ idem) (a swarm.PermissionView, _ error) { return a, gone },
		exec:              func(ctx, string, swarm.ExecRequest) (a swarm.ExecAnswer, _ error) { return a, gone },
		reconcile:         func(bool) (a []swarm.Action, _ error) { return a, gone },
	}
	o := options(f)
	o.Verify = func(context.Context) (r ledger.Report, _ error) { return r, gone }
	o.Rebuild = o.Verify
	h := newHandler(t, o)
	doc := document(t, h)
	for _, c := range happy {
		switch c.pattern {
		case "/health", "/readyz", "/metrics", "/version", "/openapi.json", "/schemas/spec.json", "/events":
			continue
		}
		w := ask(h, c.method, c.target, c.body)
		refused(t, w, 404, "gone")
		if err := doc.Answer(c.method, c.target, w.Code, w.Header().Get("Content-Type"), w.Body.Bytes()); err != nil {
			t.Error(err)
		}
	}
}

func TestNoSuchRoute(t *testing.T) {
	t.Parallel()
	h := newHandler(t, options(&fake{}))
	for _, target := range []string{"/", "/nothing", "/runs/", "/agents/a/nothing", "/runs/a/b/c", "//runs", "/agents/../runs", "//health"} {
		refused(t, ask(h, "GET", target, ""), 404, "unknown_route")
	}
	for target, allow := range map[string]string{
		"/runs":                        "GET, HEAD, POST",
		"/agents/a/prompt":             "POST",
		"/runs/r":                      "GET, HEAD, DELETE",
		"/agents/a/checkpoints/import": "POST, PUT",
		"/health":                      "GET, HEAD",
	} {
		w := ask(h, "PATCH", target, "")
		refused(t, w, 405, "method_not_allowed")
		if got := w.Header().Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", target, got, allow)
		}
	}
	// Routes that were not asked for do not exist.
	o := options(&fake{})
	o.MetricsHandler, o.Schema, o.Verify, o.Rebuild = nil, nil, nil, nil
	h = newHandler(t, o)
	for _, target := range []string{"/metrics", "/schemas/spec.json"} {
		refused(t, ask(h, "GET", target, ""), 404, "unknown_route")
	}
	refused(t, ask(h, "POST", "/ledger/verify", ""), 404, "unknown_route")
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	w := ask(newHandler(t, options(&fake{readiness: swarm.Readiness{Recovered: 3, Total: 9}})), "GET", "/readyz", "")
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"ready": false, "status": "recovering 3/9", "recovered": 3.0, "total": 9.0}
	if diff := cmp.Diff(want, got); diff != "" || w.Code != 503 {
		t.Errorf("%d (-want +got):\n%s", w.Code, diff)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	m := &metrics{}
	o := options(&fake{})
	o.Log, o.Metrics = zap.New(core), m
	h := newHandler(t, o)
	e := refused(t, ask(h, "GET", "/agents/secret-id", ""), 500, "internal")
	if strings.Contains(e.Error, "nil pointer") {
		t.Errorf("the client is told of the inside: %q", e.Error)
	}
	if n := logs.FilterMessage("a request panicked").FilterField(zap.String("path", "/agents/secret-id")).Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
	ask(h, "GET", "/nowhere/at/all", "")
	ask(h, "BREW", "/runs", "")
	want := []string{"GET GET /agents/{id} Internal Server Error", "GET other Not Found", "other other Method Not Allowed"}
	if diff := cmp.Diff(want, m.served); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// TestBrokenArchive: half a tar must not look like a whole one.
func TestBrokenArchive(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	f := &fake{archive: func(string, int) (io.ReadCloser, error) {
		return &broken{Reader: io.MultiReader(io.LimitReader(zeros{}, 1<<20), failing{}), closed: closed}, nil
	}}
	server := httptest.NewServer(newHandler(t, options(f)))
	defer server.Close()
	r, err := http.Get(server.URL + "/agents/a/checkpoints/1/archive")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); err == nil {
		t.Errorf("%d bytes read without an error", n)
	}
	<-closed
}

type broken struct {
	io.Reader
	closed chan struct{}
}

func (b *broken) Close() error { close(b.closed); return nil }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk error") }
