package pi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/harnesstest"
	"github.com/alineod/alineod/internal/harness/pi"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/modelserver"
)

// realTests try what only Pi has, on the real one.
var realTests = map[string]func(*testing.T, *harnesstest.Env){
	"the model receives the earlier messages": testEarlierMessages,
	"a busy provider is tried again":          testRetry,
	"no key":                                  testNoKey,
	"extension command":                       testExtensionCommand,
	"picture":                                 testPicture,
	"setup finds what is there":               testSetup,
	"thinking":                                testThinking,
}

func requests(t *testing.T, e *harnesstest.Env) (all []modelserver.Request) {
	t.Helper()
	out := e.Sh(t, `node -e 'fetch("http://`+serverAddr+`/requests").then(r => r.text()).then(console.log)'`)
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("requests: %v: %.200s", err, out)
	}
	return all
}

func testEarlierMessages(t *testing.T, e *harnesstest.Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.Turn("say the first answer")
	end, _ := p.Turn("run echo from the tool\nsay the second answer")
	p.Kill()
	p = e.Start(t, harness.Launch{Continue: true, SessionID: end.SessionID}).Ready()
	if _, result := p.Turn("count\nsay mark " + end.SessionID); !strings.HasPrefix(result, "count: 7\n") {
		t.Errorf("the model counted %q, want 7: two prompts, two answers, a call and its result, this prompt", result)
	}
	for _, r := range requests(t, e) {
		if len(r.Messages) == 0 || !strings.Contains(r.Messages[len(r.Messages)-1].Text, end.SessionID) {
			continue
		}
		var texts []string
		for _, m := range r.Messages {
			if m.Role != "system" {
				texts = append(texts, m.Role+": "+strings.TrimSpace(m.Text))
			}
		}
		want := []string{
			"user: say the first answer", "assistant: the first answer",
			"user: run echo from the tool\nsay the second answer", "assistant: ", "tool: from the tool",
			"assistant: the second answer", "user: count\nsay mark " + end.SessionID,
		}
		if d := cmp.Diff(want, texts); d != "" {
			t.Errorf("the model received (-want +got):\n%s", d)
		}
		return
	}
	t.Error("the model server has no request of this session")
}

func testRetry(t *testing.T, e *harnesstest.Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	end, result := p.Turn("flaky 2 503\nsay at last")
	if end.Outcome != harness.OutcomeSuccess || result != "at last" {
		t.Errorf("turn ended %+v with %q", end, result)
	}
	var started, ended int
	for _, ev := range p.Events {
		switch ev.Name {
		case ledger.RetryStarted:
			started++
		case ledger.RetryEnded:
			ended++
			if !strings.Contains(string(ev.Data), `"success":true`) {
				t.Errorf("retry.ended %s", ev.Data)
			}
		}
	}
	if started != 2 || ended != 1 {
		t.Errorf("%d retries started, %d ended, want 2 and 1", started, ended)
	}
	end, _ = p.Turn("flaky 9 503")
	if end.Outcome != harness.OutcomeFailed || end.Class != harness.ClassModelError || !strings.Contains(end.Error, "503") {
		t.Errorf("turn ended %+v, want a model error with its status", end)
	}
}

func testNoKey(t *testing.T, e *harnesstest.Env) {
	e.Sh(t, `sed -i 's/FAKE_KEY/NO_SUCH_KEY/' "$HOME/.pi/agent/models.json"`)
	p := e.Start(t, harness.Launch{}).Ready()
	end, result := p.Turn("say hello")
	if end.Outcome != harness.OutcomeFailed || end.Class != harness.ClassMissingCredentials || result != "" {
		t.Errorf("turn ended %+v with %q, want missing credentials", end, result)
	}
	if p.Protocol.Status().State != harness.StateIdle {
		t.Errorf("state %s after a refused prompt", p.Protocol.Status().State)
	}
}

func testExtensionCommand(t *testing.T, e *harnesstest.Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	end, result := p.Turn("/hello")
	if end.Outcome != harness.OutcomeSuccess || result != "" {
		t.Errorf("turn of a command ended %+v with %q", end, result)
	}
	if _, result := p.Turn("say after"); result != "after" {
		t.Errorf("the turn after said %q", result)
	}
}

func testPicture(t *testing.T, e *harnesstest.Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.PromptWith(harness.Prompt{Text: "say seen", Images: []harness.Image{{MIMEType: "image/png", Data: onePixel}}})
	if end, result := p.Ended(); end.Outcome != harness.OutcomeSuccess || result != "seen" {
		t.Errorf("turn with a picture ended %+v with %q", end, result)
	}
	if !strings.Contains(e.Sh(t, `cat `+e.Dialect.SessionFile), `"mimeType":"image/png"`) {
		t.Error("the picture is not in the conversation")
	}
}

func testThinking(t *testing.T, e *harnesstest.Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	if _, result := p.Turn("think about it\nsay thought"); result != "thought" {
		t.Errorf("result %q: what was thought is not said", result)
	}
	for _, ev := range p.Events {
		if ev.Name == harness.MessageUpdated && strings.Contains(string(ev.Data), `"kind":"thinking"`) {
			return
		}
	}
	t.Error("no thinking was shown")
}

func testSetup(t *testing.T, e *harnesstest.Env) {
	for _, version := range []string{"", pi.DefaultVersion} {
		for _, step := range (pi.Harness{}).Setup(version) {
			e.Sh(t, step.Check)
		}
	}
	for _, version := range []string{"1.5.9", "1.6.0'; touch pwned; '"} {
		steps := (pi.Harness{}).Setup(version)
		if out := e.Sh(t, "if "+steps[1].Check+"; then echo there; else echo missing; fi; ls"); strings.Contains(out, "there") || strings.Contains(out, "pwned") {
			t.Errorf("Pi %q: %s", version, out)
		}
	}
}

// onePixel is a PNG of one pixel.
var onePixel = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89" +
	"\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82")
