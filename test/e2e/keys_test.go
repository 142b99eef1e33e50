package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/alineod/alineod/internal/swarm"
)

// post sends a request under an idempotency key, as any HTTP client would.
func (d *daemon) post(method, path, key, body string) (int, string) {
	d.t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.dir, "alineod.sock"))
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, bytes.NewBufferString(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Idempotency-Key", key)
	answer, err := transport.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// TestKeys: every route that changes something gives a repeated request its
// first answer, over the daemon's death too, and does nothing twice.
func TestKeys(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(scripted, "say one")
	d.result(a)
	d.checkpoints(a, 1)
	v := d.await(a, swarm.StateDone)
	again := func(method, path, body string) string {
		t.Helper()
		code, first := d.post(method, path, "the key of "+path, body)
		if code >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, code, first)
		}
		d.restart()
		d.ready()
		_, second := d.post(method, path, "the key of "+path, body)
		want(t, "repeated "+path, second, first)
		return first
	}
	again("POST", "/agents/"+a+"/exec", `{"command": ["sh", "-c", "echo x >> ~/runs; cat ~/runs"]}`)
	want(t, "runs of the command", d.home(a, "runs"), "x\n")
	if code, answer := d.post("POST", "/agents/"+a+"/exec", "the key of /agents/"+a+"/exec", `{"command": ["true"]}`); code != http.StatusConflict {
		t.Errorf("the key with another body: %d %s", code, answer)
	}
	var cp swarm.CheckpointView
	if err := json.Unmarshal([]byte(again("POST", "/agents/"+a+"/checkpoints", `{}`)), &cp); err != nil || cp.Turn != 1 {
		t.Errorf("checkpoint: %+v, %v", cp, err)
	}
	want(t, "checkpoints", len(d.checkpoints(a, 2)), 2)
	again("POST", "/sandboxes/"+*v.SandboxID+"/attach", `{}`)
	again("POST", "/reconcile", `{"dryRun": true}`)

	// What waits for the ladder tells how that ended.
	way := func(path string) (w swarm.WayBack) {
		t.Helper()
		for range 2 {
			code, answer := d.post("POST", path, "a key", `{}`)
			if code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, code, answer)
			}
			var got swarm.WayBack
			if err := json.Unmarshal([]byte(answer), &got); err != nil {
				t.Fatal(err)
			}
			if w.SandboxID != "" && got.SandboxID != w.SandboxID {
				t.Errorf("repeated %s: sandbox %s, then %s", path, w.SandboxID, got.SandboxID)
			}
			w = got
		}
		return w
	}
	want(t, "recover", way("/agents/"+a+"/recover").Rung, "reattached")
	want(t, "resume", way("/sandboxes/"+*v.SandboxID+"/resume").Rung, "resumed")
	want(t, "roll back", way("/agents/"+a+"/checkpoints/1/restore").Rung, "restored")
	want(t, "conversation", result(d.ask(a, "count")), "success count: 2")

	run := d.await(a, swarm.StateDone).RunID
	again("DELETE", "/runs/"+run, "")
	d.await(a, swarm.StateAborted)
	d.settle()
}
