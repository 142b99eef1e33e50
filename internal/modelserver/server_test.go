package modelserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/modelserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type message = map[string]any

func user(text string) message { return message{"role": "user", "content": text} }
func tool(text string) message {
	return message{"role": "tool", "tool_call_id": "x", "content": []message{{"type": "text", "text": text}}}
}

// answer is a streamed answer, put together.
type answer struct {
	Status         int
	Text, Thinking string
	Tool, Args     string
	Finish         string
	Deltas         int
	Done           bool // the stream ended as it should
	Body           string
}

func start(t *testing.T, log io.Writer) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(modelserver.New(log))
	srv.Config.ErrorLog = nil
	t.Cleanup(func() {
		srv.Client().CloseIdleConnections()
		srv.Close()
	})
	return srv
}

func post(ctx context.Context, srv *httptest.Server, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return srv.Client().Do(req)
}

func ask(t *testing.T, srv *httptest.Server, messages ...message) (a answer) {
	t.Helper()
	resp, err := post(t.Context(), srv, map[string]any{"model": "fake-1", "stream": true, "messages": messages})
	if err != nil {
		return answer{} // cut before it began
	}
	defer resp.Body.Close()
	a.Status = resp.StatusCode
	if a.Status != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		a.Body = string(b)
		return a
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if data == "[DONE]" {
			a.Done = true
		}
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Content   string
					Reasoning string `json:"reasoning_content"`
					ToolCalls []struct {
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("chunk %q: %v", data, err)
		}
		d := c.Choices[0]
		a.Deltas++
		a.Text += d.Delta.Content
		a.Thinking += d.Delta.Reasoning
		a.Finish = d.Finish
		for _, call := range d.Delta.ToolCalls {
			if call.ID == "" {
				t.Error("a call without an id")
			}
			a.Tool, a.Args = call.Function.Name, call.Function.Arguments
		}
	}
	return a
}

func TestScript(t *testing.T) {
	t.Parallel()
	srv := start(t, nil)
	const script = "say one\nrun first\nsay two\ntool grep {\"pattern\":\"x\"}\nresult\nsay three"
	system := message{"role": "system", "content": "be good"}
	for name, test := range map[string]struct {
		messages []message
		want     answer
	}{
		"echo":       {[]message{user("hello")}, answer{Text: "echo: hello", Finish: "stop", Deltas: 2}},
		"parts":      {[]message{{"role": "user", "content": []message{{"type": "text", "text": "say hi"}, {"type": "image_url"}}}}, answer{Text: "hi", Finish: "stop", Deltas: 2}},
		"count":      {[]message{system, user("a"), {"role": "assistant", "content": "b"}, user("count")}, answer{Text: "count: 3", Finish: "stop", Deltas: 2}},
		"think":      {[]message{user("think hm\nsay ok")}, answer{Thinking: "hm", Text: "ok", Finish: "stop", Deltas: 3}},
		"flood":      {[]message{user("flood 3")}, answer{Text: "0 1 2 ", Finish: "stop", Deltas: 4}},
		"first call": {[]message{user(script)}, answer{Text: "one", Tool: "bash", Args: `{"command":"first"}`, Finish: "tool_calls", Deltas: 3}},
		"second call": {[]message{user(script), {"role": "assistant"}, tool("r1")},
			answer{Text: "two", Tool: "grep", Args: `{"pattern":"x"}`, Finish: "tool_calls", Deltas: 3}},
		"end": {[]message{user(script), {"role": "assistant"}, tool("r1"), {"role": "assistant"}, tool("r2")},
			answer{Text: "result: r2\nthree", Finish: "stop", Deltas: 3}},
		"calls of an earlier message": {[]message{user("run a"), {"role": "assistant"}, tool("r"), user("run b")},
			answer{Tool: "bash", Args: `{"command":"b"}`, Finish: "tool_calls", Deltas: 2}},
		"nothing to obey": {[]message{system}, answer{Finish: "stop", Deltas: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.want.Status, test.want.Done = http.StatusOK, true
			if d := cmp.Diff(test.want, ask(t, srv, test.messages...)); d != "" {
				t.Errorf("answer (-want +got):\n%s", d)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	srv := start(t, nil)
	for prompt, want := range map[string]struct {
		status int
		body   string
	}{
		"fail 418 teapot": {418, "teapot"},
		"fail nonsense":   {500, ""},
		"fail 200 fine":   {500, "fine"},
		"quota":           {429, "insufficient_quota"},
		"unauthorized":    {401, "invalid_api_key"},
		"tool x not json": {400, "not JSON"},
	} {
		if a := ask(t, srv, user(prompt)); a.Status != want.status || !strings.Contains(a.Body, want.body) {
			t.Errorf("%q: %+v", prompt, a)
		}
	}
	for _, prompt := range []string{"drop", "say a\ndrop", "say a\nfail 500 too late", "sleep x"} {
		if a := ask(t, srv, user(prompt)); a.Done {
			t.Errorf("%q: the stream ended as if all were well: %+v", prompt, a)
		}
	}
	for i, want := range []int{503, 503, 200, 200} {
		if a := ask(t, srv, user("flaky 2 503\nsay ok")); a.Status != want {
			t.Errorf("flaky, time %d: %d, want %d", i+1, a.Status, want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	srv := start(t, nil)
	for _, body := range []any{"text", map[string]any{"messages": 5}, map[string]any{"stream": false}, nil} {
		resp, err := post(t.Context(), srv, body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%v: %d, want 400", body, resp.StatusCode)
		}
	}
}

// An answer is held until the file is there, and given up with its client.
func TestHold(t *testing.T) {
	t.Parallel()
	srv := start(t, nil)
	gate := filepath.Join(t.TempDir(), "gate")
	got := make(chan answer)
	go func() { got <- ask(t, srv, user("say begun\nhold "+gate+"\nsay done")) }()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.Text != "begun\ndone" || !a.Done {
		t.Errorf("answer %+v", a)
	}

	ctx, cancel := context.WithCancel(t.Context())
	resp, err := post(ctx, srv, map[string]any{"stream": true, "messages": []message{user("say begun\nhold " + gate + ".never")}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.ReadAll(resp.Body)
	resp.Body.Close()
	if err == nil {
		t.Error("a held answer ended")
	}
}

func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	srv := start(t, &log)
	ask(t, srv, user("say one"))
	ask(t, srv, user("say one"), message{"role": "assistant", "content": "one"}, user("count"))
	resp, err := srv.Client().Get(srv.URL + "/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var listed, logged []modelserver.Request
	if err := json.NewDecoder(resp.Body).Decode(&listed); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(&log)
	for dec.More() {
		var r modelserver.Request
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		logged = append(logged, r)
	}
	if d := cmp.Diff(listed, logged); d != "" {
		t.Errorf("listed and logged (-listed +logged):\n%s", d)
	}
	want := []modelserver.Message{{Role: "user", Text: "say one"}, {Role: "assistant", Text: "one"}, {Role: "user", Text: "count"}}
	if len(listed) != 2 || listed[1].Count != 3 || listed[1].API != "openai-completions" || !cmp.Equal(listed[1].Messages, want) {
		t.Errorf("requests %+v", listed)
	}
}

func TestMainServesUntilItIsTold(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	log := filepath.Join(t.TempDir(), "requests.jsonl")
	out, in := io.Pipe()
	code := make(chan int)
	go func() {
		code <- modelserver.Main(ctx, []string{"-listen", "127.0.0.1:0", "-log", log}, in, io.Discard)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"say hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	client.CloseIdleConnections()
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "say hi") {
		t.Errorf("log %q, %v", b, err)
	}
	if c := modelserver.Main(t.Context(), []string{"-listen", "nowhere:x"}, io.Discard, io.Discard); c != 1 {
		t.Errorf("exit code %d for an address that cannot be, want 1", c)
	}
	if c := modelserver.Main(t.Context(), []string{"-nonsense"}, io.Discard, io.Discard); c != 2 {
		t.Errorf("exit code %d for a flag that is none, want 2", c)
	}
}
