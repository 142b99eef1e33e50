package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon serves h and returns a client of it.
func daemon(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	c := client.New(s.URL, "secret")
	t.Cleanup(func() {
		c.Close()
		s.CloseClientConnections()
		s.Close()
	})
	return c
}

func TestEveryRoute(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tt := range []struct {
		name   string
		call   func(c *client.Client) (any, error)
		asks   string // method, path and query
		sends  string
		answer string
		want   any
	}{
		{"start", func(c *client.Client) (any, error) {
			return c.StartRun(ctx, client.RunRequest{Spec: json.RawMessage(`{"x":1}`), Prompt: "hi"})
		}, "POST /runs", `{"spec":{"x":1},"prompt":"hi"}`, `{"runId":"r_1","rootAgentId":"a_1","state":"provisioning"}`,
			swarm.StartRunAnswer{RunID: "r_1", RootAgentID: "a_1", State: "provisioning"}},
		{"runs", func(c *client.Client) (any, error) {
			return c.Runs(ctx, client.RunsQuery{State: "open", Limit: 3, After: "r_0"})
		}, "GET /runs?after=r_0&limit=3&state=open", "", `{"runs":[{"runId":"r_1"}],"next":"r_1"}`,
			swarm.RunsView{Runs: []swarm.RunSummary{{RunID: "r_1"}}, Next: "r_1"}},
		{"run", func(c *client.Client) (any, error) { return c.Run(ctx, "r_1") },
			"GET /runs/r_1", "", `{"runId":"r_1","asOf":7}`, swarm.RunView{RunID: "r_1", AsOf: 7}},
		{"close", func(c *client.Client) (any, error) { return nil, c.CloseRun(ctx, "r_1") }, "DELETE /runs/r_1", "", ``, nil},
		{"agents", func(c *client.Client) (any, error) { return c.Agents(ctx) },
			"GET /agents", "", `{"agents":[{"agentId":"a_1"}]}`, []swarm.AgentView{{AgentID: "a_1"}}},
		{"agent escaped", func(c *client.Client) (any, error) { return c.Agent(ctx, "../a b") },
			"GET /agents/..%2Fa%20b", "", `{"agentId":"a_1"}`, swarm.AgentView{AgentID: "a_1"}},
		{"prompt", func(c *client.Client) (any, error) {
			return c.Prompt(ctx, "a_1", client.PromptRequest{Text: "hi", IdempotencyKey: "k"})
		}, "POST /agents/a_1/prompt", `{"text":"hi","idempotencyKey":"k"}`, `{"agentId":"a_1","turnId":"t_1","turn":2}`,
			swarm.PromptAnswer{AgentID: "a_1", TurnID: "t_1", Turn: 2}},
		{"steer", func(c *client.Client) (any, error) {
			return c.Steer(ctx, "a_1", client.SteerRequest{Message: "left"})
		}, "POST /agents/a_1/steer", `{"message":"left"}`, `{"deliveredAs":"steer"}`, client.SteerAnswer{DeliveredAs: "steer"}},
		{"stop", func(c *client.Client) (any, error) {
			return c.Stop(ctx, "a_1", client.StopRequest{Mode: client.StopDrain})
		}, "POST /agents/a_1/stop", `{"mode":"drain"}`, `{"agentId":"a_1","state":"running"}`, swarm.Accepted{AgentID: "a_1", State: "running"}},
		{"pause", func(c *client.Client) (any, error) { return c.Pause(ctx, "a_1") },
			"POST /agents/a_1/pause", `{}`, `{"state":"paused"}`, swarm.Accepted{State: "paused"}},
		{"unpause", func(c *client.Client) (any, error) { return c.Unpause(ctx, "a_1") },
			"POST /agents/a_1/resume", `{}`, `{"state":"done"}`, swarm.Accepted{State: "done"}},
		{"revive", func(c *client.Client) (any, error) { return c.Revive(ctx, "a_1") },
			"POST /agents/a_1/revive", `{}`, `{"rung":"restarted"}`, swarm.WayBack{Rung: "restarted"}},
		{"recover", func(c *client.Client) (any, error) { return c.Recover(ctx, "a_1") },
			"POST /agents/a_1/recover", `{}`, `{"rung":"restored"}`, swarm.WayBack{Rung: "restored"}},
		{"result", func(c *client.Client) (any, error) { return c.Result(ctx, "a_1", 1500*time.Millisecond) },
			"GET /agents/a_1/result?wait=2", "", `{"state":"pending"}`, swarm.ResultView{State: "pending"}},
		{"result bounded", func(c *client.Client) (any, error) { return c.Result(ctx, "a_1", time.Hour) },
			"GET /agents/a_1/result?wait=240", "", `{"state":"settled"}`, swarm.ResultView{State: "settled"}},
		{"transcript", func(c *client.Client) (any, error) { return c.Transcript(ctx, "a_1", true) },
			"GET /agents/a_1/transcript?full=1", "", `{"agentId":"a_1"}`, swarm.TranscriptView{AgentID: "a_1"}},
		{"permissions", func(c *client.Client) (any, error) { return c.Permissions(ctx, "a_1") },
			"GET /agents/a_1/permissions", "", `{"permissions":[{"requestId":"q"}]}`, []swarm.PermissionView{{RequestID: "q"}}},
		{"answer", func(c *client.Client) (any, error) {
			return c.Answer(ctx, "a_1", "q", client.AnswerRequest{Decision: "once"})
		}, "POST /agents/a_1/permissions/q", `{"decision":"once"}`, `{"requestId":"q"}`, swarm.PermissionView{RequestID: "q"}},
		{"exec", func(c *client.Client) (any, error) {
			return c.Exec(ctx, "a_1", swarm.ExecRequest{Command: []string{"ls"}})
		}, "POST /agents/a_1/exec", `{"command":["ls"]}`, `{"exitCode":3,"stdout":"x"}`, swarm.ExecAnswer{ExitCode: 3, Stdout: "x"}},
		{"checkpoints", func(c *client.Client) (any, error) { return c.Checkpoints(ctx, "a_1") },
			"GET /agents/a_1/checkpoints", "", `{"checkpoints":[{"turn":1}]}`, []swarm.CheckpointView{{Turn: 1}}},
		{"take", func(c *client.Client) (any, error) { return c.TakeCheckpoint(ctx, "a_1") },
			"POST /agents/a_1/checkpoints", `{}`, `{"turn":1}`, swarm.CheckpointView{Turn: 1}},
		{"restore", func(c *client.Client) (any, error) { return c.RestoreCheckpoint(ctx, "a_1", 2) },
			"POST /agents/a_1/checkpoints/2/restore", `{}`, `{"turn":2}`, swarm.WayBack{Turn: 2}},
		{"import", func(c *client.Client) (any, error) {
			return c.ImportCheckpoint(ctx, "a_1", strings.NewReader("tar"))
		}, "POST /agents/a_1/checkpoints/import", `tar`, `{"turn":4}`, swarm.CheckpointView{Turn: 4}},
		{"export", func(c *client.Client) (any, error) {
			r, err := c.ExportCheckpoint(ctx, "a_1", 2)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			data, err := io.ReadAll(r)
			return string(data), err
		}, "GET /agents/a_1/checkpoints/2/archive", "", `tar`, "tar"},
		{"reattach", func(c *client.Client) (any, error) { return c.Reattach(ctx, "s_1") },
			"POST /sandboxes/s_1/reattach", `{}`, `{"rung":"reattached"}`, swarm.WayBack{Rung: "reattached"}},
		{"resume", func(c *client.Client) (any, error) { return c.Resume(ctx, "s_1") },
			"POST /sandboxes/s_1/resume", `{}`, `{"rung":"resumed"}`, swarm.WayBack{Rung: "resumed"}},
		{"attach", func(c *client.Client) (any, error) { return c.Attach(ctx, "s_1") },
			"POST /sandboxes/s_1/attach", `{}`, `{"rung":"attached"}`, swarm.WayBack{Rung: "attached"}},
		{"reconcile", func(c *client.Client) (any, error) { return c.Reconcile(ctx, true) },
			"POST /reconcile", `{"dryRun":true}`, `{"actions":[{"sandboxId":"s_1"}]}`, []swarm.Action{{SandboxID: "s_1"}}},
		{"health", func(c *client.Client) (any, error) { return nil, c.Health(ctx) }, "GET /health", "", `{"ok":true}`, nil},
		{"ready", func(c *client.Client) (any, error) { return c.Ready(ctx) },
			"GET /readyz", "", `{"ready":true,"total":2}`, swarm.Readiness{Ready: true, Total: 2}},
		{"metrics", func(c *client.Client) (any, error) {
			data, err := c.Metrics(ctx)
			return string(data), err
		}, "GET /metrics", "", "up 1\n", "up 1\n"},
		{"openapi", func(c *client.Client) (any, error) { return c.OpenAPI(ctx) },
			"GET /openapi.json", "", `{"openapi":"3.1.0"}`, json.RawMessage(`{"openapi":"3.1.0"}`)},
		{"version", func(c *client.Client) (any, error) { return c.Version(ctx) },
			"GET /version", "", `{"version":"v1","go":"g"}`, client.Version{Version: "v1", Raw: json.RawMessage(`{"version":"v1","go":"g"}`)}},
		{"verify", func(c *client.Client) (any, error) {
			r, err := c.VerifyLedger(ctx)
			return r.Events, err
		}, "POST /ledger/verify", `{}`, `{"events":9,"ok":true}`, int64(9)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var asks, sends, auth string
			c := daemon(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asks, sends, auth = r.Method+" "+r.RequestURI, string(body), r.Header.Get("Authorization")
				if tt.answer == "" {
					w.WriteHeader(http.StatusNoContent)
				}
				io.WriteString(w, tt.answer)
			})
			got, err := tt.call(c)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.asks, tt.sends, "Bearer secret"}, []string{asks, sends, auth}); diff != "" {
				t.Errorf("the request (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("the answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsHaveKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status    int
		body      string
		kind      error
		temporary bool
		want      client.Error
	}{
		{400, `{"error":"bad","code":"invalid_body","fields":[{"path":"spec.name","message":"is empty"}]}`, client.ErrInvalid, false,
			client.Error{Status: 400, Code: "invalid_body", Message: "bad", Fields: []spec.Problem{{Path: "spec.name", Message: "is empty"}}}},
		{401, `{"error":"who"}`, client.ErrAuth, false, client.Error{Status: 401, Message: "who"}},
		{404, `{"error":"no"}`, client.ErrNotFound, false, client.Error{Status: 404, Message: "no"}},
		{409, `{"error":"busy","code":"c"}`, client.ErrConflict, false, client.Error{Status: 409, Code: "c", Message: "busy"}},
		{503, `{"error":"later"}`, client.ErrUnavailable, true, client.Error{Status: 503, Message: "later"}},
		{502, "<html>\nproxy", nil, true, client.Error{Status: 502, Message: `the daemon answered 502 Bad Gateway: "<html>"`}},
		{307, "", nil, false, client.Error{Status: 307, Message: "the daemon answered 307 Temporary Redirect"}},
	} {
		c := daemon(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.body)
		})
		_, err := c.Agent(t.Context(), "a_1")
		var got *client.Error
		if !errors.As(err, &got) {
			t.Fatalf("%d: %v is no *Error", tt.status, err)
		}
		if diff := cmp.Diff(tt.want, *got); diff != "" {
			t.Errorf("%d (-want +got):\n%s", tt.status, diff)
		}
		for _, kind := range []error{client.ErrInvalid, client.ErrAuth, client.ErrNotFound, client.ErrConflict, client.ErrUnavailable} {
			if errors.Is(err, kind) != (kind == tt.kind) {
				t.Errorf("%d: errors.Is(%v) is %v", tt.status, kind, errors.Is(err, kind))
			}
		}
		if client.Temporary(err) != tt.temporary {
			t.Errorf("%d: Temporary is %v", tt.status, !tt.temporary)
		}
	}
}

func TestNotReadyIsAnAnswer(t *testing.T) {
	t.Parallel()
	c := daemon(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"ready":false,"recovered":1,"total":3}`)
	})
	got, err := c.Ready(t.Context())
	if want := (swarm.Readiness{Recovered: 1, Total: 3}); err != nil || got != want {
		t.Errorf("Ready: %+v, %v; want %+v", got, err, want)
	}
}

func TestNoDaemon(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there now
	dir := t.TempDir()
	for _, base := range []string{
		"http://" + l.Addr().String(),
		"unix://" + filepath.Join(dir, "none.sock"),
		"unix://" + filepath.Join(dir, strings.Repeat("d", 120), "none.sock"),
	} {
		c := client.New(base, "")
		_, err := c.Agents(t.Context())
		var none *client.NoDaemonError
		if !errors.Is(err, client.ErrNoDaemon) || !errors.As(err, &none) || none.Address != base {
			t.Errorf("%s: %v", base, err)
		} else if msg := err.Error(); strings.Contains(msg, "\n") || !strings.Contains(msg, base) || !strings.Contains(msg, "alineod serve") {
			t.Errorf("the message is %q", msg)
		}
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "127.0.0.1:4600", "ftp://x", "unix://relative", "http://", "http://a b"} {
		if err := client.New(base, "").Health(t.Context()); !errors.Is(err, client.ErrAddress) {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func TestUnixSocketWithALongPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, sub := range []string{"short", strings.Repeat("long", 30)} {
		// Listened on by its short name, then moved to where no address reaches.
		at := filepath.Join(dir, sub)
		l := listenDeep(t, at)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"ok":true}`) })}
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		c := client.New("unix://"+filepath.Join(at, "d.sock"), "")
		if err := c.Health(t.Context()); err != nil {
			t.Errorf("%s: %v", sub, err)
		}
		c.Close()
		s.Close()
		<-done
	}
}

func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	c := daemon(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"ok":`)
			return
		}
		panic(http.ErrAbortHandler)
	})
	_, posted := c.Prompt(t.Context(), "a_1", client.PromptRequest{Text: "x"})
	for _, err := range []error{posted, c.Health(t.Context())} {
		if !errors.Is(err, client.ErrBroken) || errors.Is(err, client.ErrNoDaemon) || !client.Temporary(err) {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Health(ctx); !errors.Is(err, context.Canceled) || client.Temporary(err) {
		t.Errorf("cancelled: %v", err)
	}
}
