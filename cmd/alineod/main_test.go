package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	time.Local = time.UTC // the golden files' times
	goleak.VerifyTestMain(m)
}

// now is when the golden tests run.
var now = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// answer is what a fake daemon says to one route.
type answer struct {
	status int // 0: 200
	body   string
}

// fake is a daemon that says what it is told to. A route with more than one
// answer gives them one after another, and the last one for ever.
type fake struct {
	t      *testing.T
	url    string
	mu     sync.Mutex
	routes map[string][]answer // by method, path and query
	asked  []string            // with bodies
}

func newFake(t *testing.T, routes map[string][]answer) *fake {
	f := &fake{t: t, routes: routes}
	s := httptest.NewServer(f)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	f.url = s.URL
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	route := r.Method + " " + r.RequestURI
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimSpace(route+" "+string(body)))
	answers := f.routes[route]
	if len(answers) > 1 {
		f.routes[route] = answers[1:]
	}
	f.mu.Unlock()
	if len(answers) == 0 {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"error":"no route %s","code":"not_found"}`, route)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/events") {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if answers[0].status != 0 {
		w.WriteHeader(answers[0].status)
	}
	io.WriteString(w, answers[0].body)
}

// did lists the requests so far, with bodies.
func (f *fake) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// ran is how a command line ended.
type ran struct {
	code     int
	out, err string
}

// command runs one command line against a host.
func command(t *testing.T, host, stdin string, clock clockwork.Clock, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	env := map[string]string{envHost: host}
	a := &app{
		in: strings.NewReader(stdin), out: &out, err: &errs, clock: clock,
		getenv:  func(name string) string { return env[name] },
		environ: func() []string { return []string{"HOME=/home/u"} },
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := a.execute(ctx, args)
	hide := func(s string) string { return s }
	if host != "" {
		hide = strings.NewReplacer(host, "http://DAEMON").Replace
	}
	return ran{code, hide(out.String()), hide(errs.String())}
}

func (f *fake) run(args ...string) ran {
	f.t.Helper()
	return command(f.t, f.url, "", clockwork.NewRealClock(), args...)
}

// golden compares with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

const (
	agent1 = "a_11aa22bb33cc"
	agent2 = "a_11ff00000000"
	run1   = "r_aa0000000001"
	box1   = "s_b00000000001"
)

var (
	view1 = `{"agentId":"` + agent1 + `","runId":"` + run1 + `","parentAgentId":null,"depth":0,"spawnIndex":0,"state":"done",
		"specName":"fixer","sandboxId":"` + box1 + `","createdAt":1772625300000,"endedAt":null,"outcome":"success","pausedBy":null,
		"harness":"scripted","model":"m1","runtime":"local","isolated":false,"turn":3,
		"checkpoint":{"turn":3,"turnId":"t_3","snapshotRef":"c3","sandboxId":"` + box1 + `","sha256":"ab","bytes":2048,"files":7,"takenAt":1772625400000},
		"sessionStats":{"sessionId":"sess","messages":6,"harness":"idle","pid":42}}`
	view2 = `{"agentId":"` + agent2 + `","runId":"` + run1 + `","state":"recovering","recovering":"runtime_unreachable","createdAt":1772625301000,
		"harness":"pi","runtime":"docker","isolated":true,"specName":"evil\u001b[2J\nname","turn":1}`
	view3  = `{"agentId":"a_dead00000000","runId":"` + run1 + `","state":"aborted","outcome":"aborted","createdAt":1772538900000,"harness":"pi","runtime":"docker","turn":1}`
	agents = `{"agents":[` + view2 + `,` + view1 + `,` + view3 + `]}`

	resultOK = `{"agentId":"` + agent1 + `","state":"settled","outcome":"success","resultRef":"turn:t_3","result":"all\ndone\u001b[31m","turnId":"t_3"}`
	back     = `{"agentId":"` + agent1 + `","sandboxId":"s_new","rung":"restored","turn":3,"checkpoint":{"turn":3,"ref":"c3"}}`
	accepted = `{"agentId":"` + agent1 + `","state":"stopped"}`

	events = "id: 1\nevent: run.started\ndata: {\"runId\":\"" + run1 + "\",\"ts\":1772625300000}\n\n" +
		event(2, "agent.spawned", `"specName":"fixer","harness":"scripted"`) +
		event(3, "agent.state_changed", `"from":"provisioning","to":"done","reason":"ready"`) +
		event(4, "turn.requested", `"turn":3,"text":"count\nplease"`) +
		event(5, "message.ended", `"role":"assistant","text":"count: 4\u001b[31m"`) +
		event(6, "tool.started", `"id":"1","name":"run","args":{"command":"ls"}`) +
		"event: message.updated\ndata: {\"agentId\":\"" + agent1 + "\",\"delta\":\"co\"}\n\n" +
		event(7, "tool.ended", `"id":"1","name":"run","result":"a.txt\nb.txt"`) +
		event(8, "agent.future", `"shape":{"deep":[1]}`) +
		event(9, "turn.ended", `"turn":3,"outcome":"success","tookMs":1500`) +
		event(10, "agent.checkpointed", `"turn":3,"files":7,"bytes":2048,"tookMs":12`) +
		event(11, "agent.recovered", `"rung":"restored","sandboxId":"s_new","previousSandboxId":"`+box1+`","checkpoint":{"turn":3,"ref":"c3"},"tookMs":90`) +
		event(12, "handle.settled", `"outcome":"success","resultRef":"turn:t_3"`)
)

func event(seq int, name, fields string) string {
	return fmt.Sprintf("id: %d\nevent: %s\ndata: {\"agentId\":%q,\"ts\":1772625300000,%s}\n\n", seq, name, agent1, fields)
}

// everything answers all routes well.
func everything() map[string][]answer {
	one := func(body string) []answer { return []answer{{body: body}} }
	at := func(rest string) string { return "/agents/" + agent1 + rest }
	return map[string][]answer{
		"GET /agents":           one(agents),
		"GET " + at(""):         one(view1),
		"GET /runs/" + run1:     one(`{"runId":"` + run1 + `","asOf":12,"state":"open"}`),
		"POST /runs":            one(`{"runId":"` + run1 + `","rootAgentId":"` + agent1 + `","state":"provisioning","warnings":[{"path":"colour","message":"is unknown"}]}`),
		"POST " + at("/prompt"): one(`{"agentId":"` + agent1 + `","turnId":"t_3","turn":3,"state":"queued"}`),
		"POST " + at("/steer"):  one(`{"agentId":"` + agent1 + `","deliveredAs":"steer"}`),
		"POST " + at("/stop"):   one(accepted), "POST " + at("/pause"): one(accepted), "POST " + at("/resume"): one(accepted),
		"POST " + at("/revive"): one(back), "POST " + at("/recover"): one(back),
		"POST /sandboxes/" + box1 + "/reattach": one(back), "POST /sandboxes/" + box1 + "/resume": one(back),
		"POST /sandboxes/" + box1 + "/attach": one(back),
		"GET " + at("/result"):                one(resultOK), "GET " + at("/result?wait=240"): one(resultOK),
		"GET " + at("/transcript"): one(`{"agentId":"` + agent1 + `","turns":[{"seq":4,"ts":1772625300000,"turnId":"t_3","turn":3,"outcome":"success",
			"messages":[{"role":"user","text":"count"},{"role":"assistant","text":"count: 4","truncated":true}]},{"seq":13,"ts":1772625301000,"turnId":"t_4","turn":4,"messages":[]}]}`),
		"GET " + at("/checkpoints"): one(`{"checkpoints":[{"turn":2,"snapshotRef":"c2","sandboxId":"` + box1 + `","bytes":100,"files":1,"takenAt":1772625200000,"damaged":"wrong hash"},
			{"turn":3,"snapshotRef":"c3","sandboxId":"` + box1 + `","bytes":2048,"files":7,"takenAt":1772625400000,"imported":true}]}`),
		"POST " + at("/checkpoints"):           one(`{"turn":3,"snapshotRef":"c3","bytes":2048,"files":7}`),
		"POST " + at("/checkpoints/2/restore"): one(back),
		"GET " + at("/checkpoints/3/archive"):  one("a tar"),
		"POST " + at("/checkpoints/import"):    one(`{"turn":3,"snapshotRef":"c9","bytes":5,"files":1,"imported":true}`),
		"GET " + at("/permissions"):            one(`{"permissions":[{"requestId":"q17","title":"May I?","state":"pending","requestedAt":1772625590000}]}`),
		"POST " + at("/permissions/q17"):       one(`{"requestId":"q17","state":"answered","decision":"once"}`),
		"POST " + at("/exec"):                  one(`{"exitCode":7,"stdout":"out\n","stderr":"err\n"}`),
		"POST /reconcile":                      one(`{"actions":[{"sandboxId":"s_x","action":"remove","reason":"no agent claims it"}]}`),
		"GET /health":                          one(`{"ok":true}`),
		"GET /readyz":                          one(`{"ready":true,"recovered":2,"total":2}`),
		"GET /version":                         one(`{"version":"v9","runtime":"local","isolated":false}`),
		"GET /runs/" + run1 + "/events":        one(events),
	}
}

// valid fails unless every line, or the whole, is JSON.
func valid(t *testing.T, out string) {
	t.Helper()
	if json.Valid([]byte(out)) {
		return
	}
	for l := range strings.Lines(out) {
		if !json.Valid([]byte(l)) {
			t.Errorf("not JSON: %q", l)
		}
	}
}
