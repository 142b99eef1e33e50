package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/api/apitest"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

var (
	anAgent = swarm.AgentView{AgentID: "a1", RunID: "r1", State: "idle", SpecName: "n", CreatedAt: 5,
		Harness: "scripted", Runtime: "local", Turn: 2, SandboxID: ptr("s1"),
		Checkpoint:   &swarm.CheckpointView{Turn: 2, SnapshotRef: "x", SandboxID: "s1"},
		SessionStats: &swarm.SessionStats{Harness: "idle", PID: 4}}
	aCheckpoint = swarm.CheckpointView{Turn: 2, TurnID: "t2", SnapshotRef: "ref", SandboxID: "s1", SHA256: "ab", Bytes: 10, Files: 1, TakenAt: 7}
	aPermission = swarm.PermissionView{RequestID: "q1", State: "pending", Request: json.RawMessage(`{"x":1}`), RequestedAt: 3}
)

// working is a Swarm in which everything succeeds and calls are written down.
func working(calls *[]any) *fake {
	note := func(v ...any) { *calls = append(*calls, v...) }
	return &fake{
		startRun: func(r swarm.StartRunRequest) (swarm.StartRunAnswer, error) {
			note("start", string(r.Spec), r.Prompt, r.CloseWhen, r.Budget != nil)
			return swarm.StartRunAnswer{RunID: "r1", RootAgentID: "a1", State: "provisioning"}, nil
		},
		runs: func(state string, limit int, after string) (swarm.RunsView, error) {
			note("runs", state, limit, after)
			return swarm.RunsView{Runs: []swarm.RunSummary{{RunID: "r1", State: "open"}}, Next: "n"}, nil
		},
		run: func(id string) (swarm.RunView, error) {
			note("run", id)
			return swarm.RunView{RunID: id, State: "open", Agents: []swarm.AgentView{anAgent, {}}}, nil
		},
		deleteRun: func(id string) error { note("delete", id); return nil },
		memories: func(id, after string, limit int) (swarm.MemoriesView, error) {
			note("memories", id, after, limit)
			return swarm.MemoriesView{AgentID: id, Next: "n"}, nil
		},
		memory: func(what, id, key string) (swarm.MemoryView, error) {
			note("memory", what, id, key)
			return swarm.MemoryView{Key: key, Value: json.RawMessage(`[1]`)}, nil
		},
		notifyOn: func(id string, agents []string, wake bool) (swarm.Subscription, error) {
			note("notifyOn", id, len(agents), wake)
			return swarm.Subscription{Subscribed: agents, Wake: wake}, nil
		},
		inbox: func(id string) (swarm.InboxView, error) {
			note("inbox", id)
			return swarm.InboxView{AgentID: id, Pending: []swarm.InboxItem{{Item: 9, Kind: "settled", From: "a2", Text: "t"}},
				Delivered: []swarm.InboxItem{}, Watching: []string{}}, nil
		},
		deliver: func(id string) (swarm.InboxDelivery, error) {
			note("deliver", id)
			return swarm.InboxDelivery{Delivery: "held"}, nil
		},
		await: func(r swarm.AwaitRequest) (swarm.AwaitAnswer, error) {
			note("await", r.RunID, len(r.Agents), r.Mode, r.Subtree, r.Wait)
			return swarm.AwaitAnswer{Outcome: "pending", Selected: []string{}, Settled: []ledger.WaitMember{}, Pending: []string{"a2"}}, nil
		},
		awaitSubtree: func(id string, limit time.Duration) (swarm.SubtreeView, error) {
			note("awaitSubtree", id, limit)
			return swarm.SubtreeView{RootAgentID: id, Members: []swarm.SubtreeMember{}, BlockedOnPaused: []string{}}, nil
		},
		scope: func(what, id string, _ idem) (swarm.ScopeAnswer, error) {
			note("scope", what, id)
			return swarm.ScopeAnswer{AsOf: 7, Results: []swarm.ScopeResult{{AgentID: id, Outcome: "skipped", Reason: "r"}}}, nil
		},
		spawn: func(r swarm.SpawnRequest) (swarm.SpawnAnswer, error) {
			note("spawn", r.RunID, r.ParentAgentID, string(r.WaitFor), r.Budget != nil)
			return swarm.SpawnAnswer{AgentID: "a2", State: "spawning"}, nil
		},
		agent:  func(id string) (swarm.AgentView, error) { note("agent", id); return anAgent, nil },
		agents: func() ([]swarm.AgentView, error) { note("agents"); return nil, nil },
		prompt: func(id string, r swarm.PromptRequest) (swarm.PromptAnswer, error) {
			note("prompt", id, r.Text)
			for _, i := range r.Images {
				note(i.MIMEType, string(i.Data))
			}
			return swarm.PromptAnswer{AgentID: id, TurnID: "t3", Turn: 3, State: "queued"}, nil
		},
		steer: func(id, message string, _ idem) (swarm.Accepted, error) {
			note("steer", id, message)
			return swarm.Accepted{AgentID: id, State: "working"}, nil
		},
		act: func(what, id string, _ idem) (swarm.Accepted, error) {
			note(what, id)
			return swarm.Accepted{AgentID: id, State: "x"}, nil
		},
		way: func(what, id string, _ idem) (swarm.WayBack, error) {
			note("way", what, id)
			w := swarm.WayBack{AgentID: "a1", SandboxID: "s2", Rung: "restored", Turn: 2}
			if what != "revive" {
				w.Checkpoint = &ledger.CheckpointSummary{Turn: 2, Ref: "ref"}
			}
			return w, nil
		},
		result: func(id string, wait time.Duration) (swarm.ResultView, error) {
			note("result", id, wait)
			if wait == 0 {
				return swarm.ResultView{AgentID: id, State: "pending"}, nil
			}
			return swarm.ResultView{AgentID: id, State: "settled", Outcome: ptr("completed"), Result: ptr("hi")}, nil
		},
		transcript: func(id string, full bool) (swarm.TranscriptView, error) {
			note("transcript", id, full)
			return swarm.TranscriptView{AgentID: id, Turns: []swarm.TranscriptTurn{{Seq: 4, TurnID: "t1", Turn: 1}}}, nil
		},
		checkpoints: func(id string) ([]swarm.CheckpointView, error) {
			note("checkpoints", id)
			return []swarm.CheckpointView{aCheckpoint}, nil
		},
		takeCheckpoint: func(id string, _ idem) (swarm.CheckpointView, error) { note("take", id); return aCheckpoint, nil },
		restoreCheckpoint: func(id string, turn int, _ idem) (swarm.WayBack, error) {
			note("restore", id, turn)
			return swarm.WayBack{AgentID: id, SandboxID: "s3", Rung: "restored", Turn: turn}, nil
		},
		archive: func(id string, turn int) (io.ReadCloser, error) {
			note("archive", id, turn)
			return io.NopCloser(strings.NewReader("tar bytes")), nil
		},
		importCheckpoint: func(id string, r io.Reader, _ idem) (swarm.CheckpointView, error) {
			n, err := io.Copy(io.Discard, r)
			note("import", id, n)
			return aCheckpoint, err
		},
		permissions: func(id string) ([]swarm.PermissionView, error) {
			note("permissions", id)
			return []swarm.PermissionView{aPermission}, nil
		},
		answerPermission: func(id, requestID, decision, feedback string, _ idem) (swarm.PermissionView, error) {
			note("answer", id, requestID, decision, feedback)
			return aPermission, nil
		},
		exec: func(_ ctx, id string, r swarm.ExecRequest) (swarm.ExecAnswer, error) {
			note("exec", id, len(r.Command), r.Env["A"], r.TimeoutSec)
			return swarm.ExecAnswer{ExitCode: 3, Stdout: "o"}, nil
		},
		reconcile: func(dryRun bool) ([]swarm.Action, error) {
			note("reconcile", dryRun)
			return []swarm.Action{{SandboxID: "s1", Action: "keep", Reason: "r"}}, nil
		},
		readiness: swarm.Readiness{Ready: true, Recovered: 2, Total: 2},
		follow:    func(int64, string) api.Stream { return ended{} },
	}
}

// ended is a stream that is over.
type ended struct{}

func (ended) Next(context.Context) (swarm.StreamEvent, error) { return swarm.StreamEvent{}, io.EOF }
func (ended) Close()                                          {}

func options(f *fake) api.Options {
	report := func(ok bool) func(context.Context) (ledger.Report, error) {
		return func(context.Context) (ledger.Report, error) {
			return ledger.Report{Events: 9, OK: ok, Notes: []string{"odd"}}, nil
		}
	}
	return api.Options{
		Swarm: f, Listen: "127.0.0.1:4600", Schema: []byte(`{"type":"object"}`),
		Version: "1.2.3",
		Describe: func(context.Context) api.VersionInfo {
			return api.VersionInfo{Version: "1.2.3", Go: "go1.26", Runtime: "local", Notice: "isolates nothing"}
		},
		MetricsHandler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "up 1\n")
		}),
		Verify: report(true), Rebuild: report(false),
	}
}

// happy is every route with a request it accepts. pattern is the route's path
// in the OpenAPI document.
var happy = []struct {
	method, target, pattern, body string
	status                        int
	want                          string // found in the answer
	calls                         []any
}{
	{"POST", "/runs", "/runs", `{"spec":{"name":"n","strange":[1]},"prompt":"p","closeWhen":"quiescent","budget":{"maxAgents":3}}`, 202,
		`"rootAgentId":"a1"`, []any{"start", `{"name":"n","strange":[1]}`, "p", "quiescent", true}},
	{"POST", "/runs/r1/agents", "/runs/{id}/agents", `{"parentAgentId":"a1","spec":{"harness":"scripted"},"waitFor":["a3"]}`, 202,
		`"agentId":"a2"`, []any{"spawn", "r1", "a1", `["a3"]`, false}},
	{"POST", "/runs/r1/await", "/runs/{id}/await", `{"agents":["a2"],"mode":"all","wait":1.5}`, 200, `"pending":["a2"]`,
		[]any{"await", "r1", 1, "all", "", 1500 * time.Millisecond}},
	{"GET", "/agents/a1/await?scope=subtree&wait=2", "/agents/{id}/await", "", 200, `"quiescent":false`, []any{"awaitSubtree", "a1", 2 * time.Second}},
	{"POST", "/agents/a1/stop", "/agents/{id}/stop", `{"mode":"drain","scope":"subtree"}`, 200, `"outcome":"skipped"`, []any{"scope", "stop drain", "a1"}},
	{"GET", "/agents/a1/memory?limit=2&after=k", "/agents/{id}/memory", "", 200, `"entries":[],"next":"n"`, []any{"memories", "a1", "k", 2}},
	{"GET", "/agents/a1/memory/a%2Fb", "/agents/{id}/memory/{key}", "", 200, `"value":[1]`, []any{"memory", "get", "a1", "a/b"}},
	{"PUT", "/agents/a1/memory/k", "/agents/{id}/memory/{key}", `{"value":{"a":1}}`, 200, `"key":"k"`, []any{"memory", `put {"a":1}`, "a1", "k"}},
	{"POST", "/agents/a1/notify-on", "/agents/{id}/notify-on", `{"agents":["a2","a3"],"wake":true}`, 200, `"subscribed":["a2","a3"],"wake":true`, []any{"notifyOn", "a1", 2, true}},
	{"GET", "/agents/a1/inbox", "/agents/{id}/inbox", "", 200, `"item":9`, []any{"inbox", "a1"}},
	{"POST", "/agents/a1/inbox/deliver", "/agents/{id}/inbox/deliver", "", 200, `"delivery":"held"`, []any{"deliver", "a1"}},
	{"DELETE", "/agents/a1/memory/k", "/agents/{id}/memory/{key}", "", 204, "", []any{"memory", "delete", "a1", "k"}},
	{"GET", "/runs?state=open&limit=7&after=c", "/runs", "", 200, `"next":"n"`, []any{"runs", "open", 7, "c"}},
	{"GET", "/runs", "/runs", "", 200, `"closedAt":null`, []any{"runs", "", 100, ""}},
	{"GET", "/runs/r1", "/runs/{id}", "", 200, `"runId":"r1"`, []any{"run", "r1"}},
	{"DELETE", "/runs/r1", "/runs/{id}", "", 204, "", []any{"delete", "r1"}},
	{"GET", "/agents", "/agents", "", 200, `{"agents":[]}`, []any{"agents"}},
	{"GET", "/agents/a1", "/agents/{id}", "", 200, `"parentAgentId":null`, []any{"agent", "a1"}},
	{"POST", "/agents/a1/prompt", "/agents/{id}/prompt", `{"text":"go","images":[{"mimeType":"image/png","data":"aGk="}],"idempotencyKey":null}`, 202,
		`"turnId":"t3"`, []any{"prompt", "a1", "go", "image/png", "hi"}},
	{"POST", "/agents/a1/steer", "/agents/{id}/steer", `{"message":"left","scope":"agent"}`, 202, `"agentId":"a1"`, []any{"steer", "a1", "left"}},
	{"POST", "/agents/a1/pause", "/agents/{id}/pause", "", 202, `"state":"x"`, []any{"pause", "a1"}},
	{"POST", "/agents/a1/resume", "/agents/{id}/resume", "{}", 202, `"state":"x"`, []any{"resume", "a1"}},
	{"POST", "/agents/a1/stop", "/agents/{id}/stop", "", 202, `"state":"x"`, []any{"stop abort", "a1"}},
	{"POST", "/agents/a1/stop", "/agents/{id}/stop", `{"mode":"drain"}`, 202, `"state":"x"`, []any{"stop drain", "a1"}},
	{"POST", "/agents/a1/recover", "/agents/{id}/recover", "", 200, `"checkpoint":{"turn":2,"ref":"ref"}`, []any{"way", "recover", "a1"}},
	{"POST", "/agents/a1/revive", "/agents/{id}/revive", "", 200, `"checkpoint":null`, []any{"way", "revive", "a1"}},
	{"GET", "/agents/a1/result", "/agents/{id}/result", "", 202, `"outcome":null,"resultRef":null,"result":null`, []any{"result", "a1", time.Duration(0)}},
	{"GET", "/agents/a1/result?wait=1.5", "/agents/{id}/result", "", 200, `"result":"hi"`, []any{"result", "a1", 1500 * time.Millisecond}},
	{"GET", "/agents/a1/result?wait=240", "/agents/{id}/result", "", 200, `"settled"`, []any{"result", "a1", 240 * time.Second}},
	{"GET", "/agents/a1/transcript", "/agents/{id}/transcript", "", 200, `"messages":[]`, []any{"transcript", "a1", false}},
	{"GET", "/agents/a1/transcript?full=1", "/agents/{id}/transcript", "", 200, `"turns":[`, []any{"transcript", "a1", true}},
	{"GET", "/agents/a1/checkpoints", "/agents/{id}/checkpoints", "", 200, `{"checkpoints":[{`, []any{"checkpoints", "a1"}},
	{"POST", "/agents/a1/checkpoints", "/agents/{id}/checkpoints", "", 200, `"snapshotRef":"ref"`, []any{"take", "a1"}},
	{"POST", "/agents/a1/checkpoints/4/restore", "/agents/{id}/checkpoints/{turn}/restore", "", 200, `"turn":4`, []any{"restore", "a1", 4}},
	{"GET", "/agents/a1/checkpoints/4/archive", "/agents/{id}/checkpoints/{turn}/archive", "", 200, "tar bytes", []any{"archive", "a1", 4}},
	{"POST", "/agents/a1/checkpoints/import", "/agents/{id}/checkpoints/import", "tarry", 200, `"turn":2`, []any{"import", "a1", int64(5)}},
	{"PUT", "/agents/a1/checkpoints/import", "/agents/{id}/checkpoints/import", "tarry", 200, `"turn":2`, []any{"import", "a1", int64(5)}},
	{"GET", "/agents/a1/permissions", "/agents/{id}/permissions", "", 200, `"request":{"x":1}`, []any{"permissions", "a1"}},
	{"POST", "/agents/a1/permissions/q1", "/agents/{id}/permissions/{requestId}", `{"decision":"once","feedback":"ok"}`, 200, `"requestId":"q1"`, []any{"answer", "a1", "q1", "once", "ok"}},
	{"POST", "/agents/a1/exec", "/agents/{id}/exec", `{"command":["ls","-l"],"env":{"A":"b"},"timeoutSec":9}`, 200, `"exitCode":3`, []any{"exec", "a1", 2, "b", 9}},
	{"POST", "/sandboxes/s1/reattach", "/sandboxes/{id}/reattach", "", 200, `"rung":"restored"`, []any{"way", "reattach", "s1"}},
	{"POST", "/sandboxes/s1/resume", "/sandboxes/{id}/resume", "", 200, `"sandboxId":"s2"`, []any{"way", "resume", "s1"}},
	{"POST", "/sandboxes/s1/attach", "/sandboxes/{id}/attach", "{}", 200, `"sandboxId":"s2"`, []any{"way", "attach", "s1"}},
	{"POST", "/reconcile", "/reconcile", `{"dryRun":true}`, 200, `"dryRun":true,"actions":[{"sandboxId":"s1"`, []any{"reconcile", true}},
	{"POST", "/ledger/verify", "/ledger/verify", "", 200, `{"ok":true,"events":9,"differences":[],"notes":["odd"]}`, nil},
	{"POST", "/ledger/rebuild", "/ledger/rebuild", "", 200, `"ok":false`, nil},
	{"GET", "/health", "/health", "", 200, `{"ok":true}`, nil},
	{"GET", "/readyz", "/readyz", "", 200, `"status":"ready"`, nil},
	{"GET", "/metrics", "/metrics", "", 200, "up 1", nil},
	{"GET", "/version", "/version", "", 200, `"isolated":false,"notice":"isolates nothing"`, nil},
	{"GET", "/openapi.json", "/openapi.json", "", 200, `"openapi": "3.1.0"`, nil},
	{"GET", "/schemas/spec.json", "/schemas/spec.json", "", 200, `{"type":"object"}`, nil},
	{"GET", "/events", "/events", "", 200, "", nil},
	{"GET", "/runs/r1/events", "/runs/{id}/events", "", 200, "", []any{"run", "r1"}},
}

// TestRoutes asks every route once in a way it accepts, and holds each answer
// in JSON to the OpenAPI document.
func TestRoutes(t *testing.T) {
	t.Parallel()
	var calls []any
	h := newHandler(t, options(working(&calls)))
	doc := document(t, h)
	seen := map[string]bool{}
	for _, c := range happy {
		calls = nil
		w := ask(h, c.method, c.target, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.target, w.Code, w.Body, c.status, c.want)
			continue
		}
		if diff := cmp.Diff(c.calls, calls); diff != "" {
			t.Errorf("%s %s: calls (-want +got):\n%s", c.method, c.target, diff)
		}
		seen[c.method+" "+c.pattern] = true
		if err := doc.Answer(c.method, c.target, w.Code, w.Header().Get("Content-Type"), w.Body.Bytes()); err != nil {
			t.Error(err)
		}
	}
	for _, route := range doc.Routes() {
		if !seen[route] {
			t.Errorf("%s is documented and not tried", route)
		}
		delete(seen, route)
	}
	if doc.At("components", "schemas", "PromptBody", "additionalProperties") != false ||
		doc.At("components", "schemas", "Image", "additionalProperties") != false ||
		doc.At("components", "schemas", "AgentView", "additionalProperties") != nil {
		t.Error("bodies must be closed in the document, answers open")
	}
	for route := range seen {
		t.Errorf("%s is served and not documented", route)
	}
}

func document(t *testing.T, h http.Handler) *apitest.Document {
	t.Helper()
	d, err := apitest.Parse(ask(h, "GET", "/openapi.json", "").Body)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
