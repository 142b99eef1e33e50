package api_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/swarm"
)

func TestWrongBodies(t *testing.T) {
	t.Parallel()
	h := newHandler(t, options(&fake{})) // nothing of the Swarm may be called
	for _, c := range []struct {
		target, body, code string
		fields             map[string]string
	}{
		{"/agents/a/prompt", `{`, "malformed_json", nil},
		{"/agents/a/prompt", `{"text":"x"} {}`, "malformed_json", nil},
		{"/agents/a/prompt", `[]`, "invalid_body", map[string]string{"": "must be an object, not an array"}},
		{"/agents/a/prompt", `null`, "invalid_body", map[string]string{"": "must be an object, not null"}},
		{"/agents/a/prompt", ``, "invalid_body", map[string]string{"text": "is required"}},
		{"/agents/a/prompt", `{"text":null}`, "invalid_body", map[string]string{"text": "is required"}},
		{"/agents/a/prompt", `{"text":""}`, "invalid_body", map[string]string{"text": "must not be empty where there are no images"}},
		{"/agents/a/prompt", `{"text":7,"zzz":1,"Text":"x","images":[{"mimeType":"a","data":"%%"},{"data":"aGk=","x":1},5]}`, "invalid_body",
			map[string]string{
				"text": "must be a string, not a number", "zzz": "is not a known field", "Text": "is not a known field",
				"images[0].data": "must be base64", "images[1].mimeType": "is required", "images[1].x": "is not a known field",
				"images[2]": "must be an object, not a number",
			}},
		{"/agents/a/steer", `{"message":""}`, "invalid_body", map[string]string{"message": "must have at least 1 characters"}},
		{"/agents/a/pause", `{"scope":"run"}`, "invalid_body", map[string]string{"scope": "must be one of agent, subtree"}},
		{"/agents/a/stop", `{"mode":"kill"}`, "invalid_body", map[string]string{"mode": "must be one of abort, drain, stop"}},
		{"/agents/a/exec", `{"command":[],"env":{"A":1},"timeoutSec":3601}`, "invalid_body", map[string]string{
			"command": "must have at least 1 items", "env.A": "must be a string, not a number", "timeoutSec": "must not be more than 3600"}},
		{"/agents/a/exec", `{"command":["a"],"timeoutSec":1.5,"cmd":"k"}`, "invalid_body", map[string]string{
			"timeoutSec": "must be an integer, not a number", "cmd": "is not a known field"}},
		{"/agents/a/permissions/q", `{"decision":"perhaps"}`, "invalid_body", map[string]string{"decision": "must be one of once, always, reject"}},
		{"/runs", `{"prompt":"p"}`, "invalid_body", map[string]string{"spec": "is required"}},
		{"/runs", `{"spec":{},"budget":{"maxAgents":1e300,"depth":1},"closeWhen":true}`, "invalid_body", map[string]string{
			"budget.maxAgents": "must be an integer, not a number", "budget.depth": "is not a known field", "closeWhen": "must be a string, not a boolean"}},
		{"/runs", `{"spec":{},"idempotencyKey":"` + strings.Repeat("k", 256) + `"}`, "invalid_body", map[string]string{"idempotencyKey": "must have at most 255 characters"}},
		{"/reconcile", `{"dryRun":"yes"}`, "invalid_body", map[string]string{"dryRun": "must be a boolean, not a string"}},
	} {
		e := refused(t, ask(h, "POST", c.target, c.body), 400, c.code)
		var got map[string]string
		for _, f := range e.Fields {
			if got == nil {
				got = map[string]string{}
			}
			got[f.Path] = f.Message
		}
		if diff := cmp.Diff(c.fields, got); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.target, c.body, diff)
		}
	}
}

func TestWrongParameters(t *testing.T) {
	t.Parallel()
	h := newHandler(t, options(&fake{}))
	for target, paths := range map[string][]string{
		"/agents/a/result?wait=241":                 {"wait"},
		"/agents/a/result?wait=-1":                  {"wait"},
		"/agents/a/result?wait=NaN":                 {"wait"},
		"/agents/a/result?wait=soon":                {"wait"},
		"/agents/a/transcript?full=2":               {"full"},
		"/runs?state=half&limit=0":                  {"state", "limit"},
		"/runs?limit=1001":                          {"limit"},
		"/runs?limit=2.5":                           {"limit"},
		"/agents/a/checkpoints/-1/archive":          {"turn"},
		"/agents/a/checkpoints/1e3/archive":         {"turn"},
		"/agents/a/checkpoints/99999999999/archive": {"turn"},
	} {
		e := refused(t, ask(h, "GET", target, ""), 400, "invalid_parameter")
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(paths, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", target, diff)
		}
	}
	for _, id := range []string{"x", "-3", "1.5"} {
		refused(t, ask(h, "GET", "/events", "", "Last-Event-ID", id), 400, "invalid_parameter")
		refused(t, ask(h, "GET", "/events?lastEventId="+id, ""), 400, "invalid_parameter")
	}
}

// TestLimits: 4 MiB for a body, 24 for a prompt, none for an upload.
func TestLimits(t *testing.T) {
	t.Parallel()
	var got int
	f := &fake{
		prompt: func(_ string, r swarm.PromptRequest) (swarm.PromptAnswer, error) {
			got = len(r.Text)
			return swarm.PromptAnswer{}, nil
		},
		importCheckpoint: func(_ string, r io.Reader, _ idem) (swarm.CheckpointView, error) {
			n, err := io.Copy(io.Discard, r)
			got = int(n)
			return swarm.CheckpointView{}, err
		},
	}
	h := newHandler(t, options(f))
	const mib = 1 << 20
	big := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	refused(t, ask(h, "POST", "/agents/a/steer", `{"message":`+big(4*mib)+`}`), http.StatusRequestEntityTooLarge, "too_large")
	refused(t, ask(h, "POST", "/runs", `{"spec":`+big(5*mib)+`}`), http.StatusRequestEntityTooLarge, "too_large")
	refused(t, ask(h, "POST", "/agents/a/prompt", `{"text":`+big(24*mib)+`}`), http.StatusRequestEntityTooLarge, "too_large")
	if w := ask(h, "POST", "/agents/a/prompt", `{"text":`+big(5*mib)+`}`); w.Code != 202 || got != 5*mib {
		t.Errorf("a prompt of 5 MiB: %d, %d bytes", w.Code, got)
	}
	r := httptest.NewRequest("POST", "http://localhost/agents/a/checkpoints/import", io.LimitReader(zeros{}, 32*mib))
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 200 || got != 32*mib {
		t.Errorf("an upload of 32 MiB: %d, %d bytes", w.Code, got)
	}
}

// TestBrokenBody: a client that stalls or breaks off is told so, and is not a
// fault of the daemon.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	o := options(&fake{})
	o.ReadTimeout = 50 * time.Millisecond
	server := httptest.NewServer(newHandler(t, o))
	defer server.Close()
	for code, request := range map[int]string{
		http.StatusRequestTimeout: "Content-Length: 20\r\n\r\n{",
		http.StatusBadRequest:     "Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /agents/a/steer HTTP/1.1\r\nHost: localhost\r\n"+request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != code {
			body, _ := io.ReadAll(answer.Body)
			t.Errorf("%q: %d %s, want %d", request, answer.StatusCode, body, code)
		}
		conn.Close()
	}
}

// TestLongWork: the deadline of a body is gone when the work begins.
func TestLongWork(t *testing.T) {
	t.Parallel()
	o := options(&fake{exec: func(c ctx, _ string, _ swarm.ExecRequest) (swarm.ExecAnswer, error) {
		select {
		case <-c.Done():
			return swarm.ExecAnswer{}, c.Err()
		case <-time.After(300 * time.Millisecond): // many times the deadline
			return swarm.ExecAnswer{}, nil
		}
	}})
	o.ReadTimeout = 20 * time.Millisecond
	server := httptest.NewServer(newHandler(t, o))
	defer server.Close()
	answer, err := http.Post(server.URL+"/agents/a/exec", "application/json", strings.NewReader(`{"command":["make"]}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("got %d", answer.StatusCode)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestIdempotency(t *testing.T) {
	t.Parallel()
	var got idem
	f := &fake{
		steer: func(_, _ string, i idem) (swarm.Accepted, error) { got = i; return swarm.Accepted{}, nil },
		startRun: func(r swarm.StartRunRequest) (swarm.StartRunAnswer, error) {
			got = r.Idempotency
			return swarm.StartRunAnswer{}, nil
		},
		importCheckpoint: func(_ string, _ io.Reader, i idem) (swarm.CheckpointView, error) {
			got = i
			return swarm.CheckpointView{}, nil
		},
	}
	h := newHandler(t, options(f))
	send := func(target, body string, headers ...string) idem {
		t.Helper()
		got = idem{}
		if w := ask(h, "POST", target, body, headers...); w.Code >= 300 {
			t.Fatalf("%s %s: %d %s", target, body, w.Code, w.Body)
		}
		return got
	}
	first := send("/agents/a/steer", `{"message":"m","idempotencyKey":"k"}`)
	if first.Key != "k" || first.Scope != "POST /agents/a/steer" || len(first.BodyHash) != 64 {
		t.Fatalf("got %+v", first)
	}
	for name, same := range map[string]idem{
		"other order and spacing": send("/agents/a/steer", ` { "idempotencyKey" : "k", "message":"m" }`),
		"header":                  send("/agents/a/steer", `{"message":"m"}`, "Idempotency-Key", "k"),
		"header and field":        send("/agents/a/steer", `{"message":"m","idempotencyKey":"k"}`, "Idempotency-Key", "k"),
	} {
		if same != first {
			t.Errorf("%s: got %+v, want %+v", name, same, first)
		}
	}
	if other := send("/agents/a/steer", `{"message":"n","idempotencyKey":"k"}`); other.BodyHash == first.BodyHash {
		t.Error("another message has the same hash")
	}
	if other := send("/agents/b/steer", `{"message":"m","idempotencyKey":"k"}`); other.Scope == first.Scope {
		t.Error("another agent has the same scope")
	}
	if no := send("/agents/a/steer", `{"message":"m"}`); no != (idem{}) {
		t.Errorf("without a key: %+v", no)
	}
	// Numbers that a float64 cannot tell apart are still two bodies.
	a := send("/runs", `{"spec":{"n":9007199254740993},"idempotencyKey":"k"}`)
	b := send("/runs", `{"spec":{"n":9007199254740992},"idempotencyKey":"k"}`)
	if a.BodyHash == b.BodyHash {
		t.Error("large numbers are rounded before hashing")
	}
	if up := send("/agents/a/checkpoints/import", "tar", "Idempotency-Key", "k"); up.Key != "k" {
		t.Errorf("upload: %+v", up)
	}
	refused(t, ask(h, "POST", "/agents/a/steer", `{"message":"m","idempotencyKey":"k"}`, "Idempotency-Key", "l"), 400, "invalid_key")
	refused(t, ask(h, "POST", "/agents/a/steer", `{"message":"m"}`, "Idempotency-Key", strings.Repeat("k", 256)), 400, "invalid_key")
}

// FuzzBody: whatever is sent, the answer is JSON and never the daemon's fault.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{`{}`, `{"text":"x","images":[{}]}`, `{"text":{}}`, `[1e999]`, "\xff", `{"text":"a","text":1}`, `{"images":null,"text":"x"}`} {
		f.Add([]byte(seed))
	}
	h := newHandler(&testing.T{}, options(&fake{prompt: func(string, swarm.PromptRequest) (swarm.PromptAnswer, error) {
		return swarm.PromptAnswer{}, nil
	}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest("POST", "http://localhost/agents/a/prompt", bytes.NewReader(body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == 202 {
			return
		}
		if e := refused(t, w, 400, codeOf(w)); e.Code != "invalid_body" && e.Code != "malformed_json" {
			t.Fatalf("%q: %+v", body, e)
		}
	})
}

func codeOf(w *httptest.ResponseRecorder) string {
	for _, code := range []string{"invalid_body", "malformed_json"} {
		if strings.Contains(w.Body.String(), `"code":"`+code+`"`) {
			return code
		}
	}
	return "?"
}
