package pi_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/harnesstest"
	"github.com/alineod/alineod/internal/harness/pi"
	"github.com/alineod/alineod/internal/ledger"
)

// talk is a Protocol whose other side is the test.
type talk struct {
	t       *testing.T
	p       harness.Protocol
	events  []harness.Event
	replies []harness.Reply
}

// command is what is read of a line to Pi.
type command struct {
	ID, Type, Message, StreamingBehavior string
	Value                                *string
	Confirmed                            *bool
	Cancelled                            bool
}

// do returns the commands that were written.
func (k *talk) do(out harness.Output, err error) (cmds []command) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
	k.events = append(k.events, out.Events...)
	k.replies = append(k.replies, out.Replies...)
	for _, l := range out.Write {
		var c command
		if err := json.Unmarshal(l, &c); err != nil {
			k.t.Fatalf("wrote %q: %v", l, err)
		}
		cmds = append(cmds, c)
	}
	return cmds
}

func (k *talk) say(line string) []command {
	k.t.Helper()
	return k.do(k.p.Line([]byte(line)), nil)
}

// answer answers a command with success and that data.
func (k *talk) answer(c command, data string) []command {
	k.t.Helper()
	return k.say(`{"id":"` + c.ID + `","type":"response","command":"` + c.Type + `","success":true,"data":` + data + `}`)
}

const idle = `{"sessionId":"s1","messageCount":4,"isStreaming":false,"pendingMessageCount":0}`

// ready is a Protocol that knows its session.
func ready(t *testing.T, l harness.Launch) *talk {
	t.Helper()
	k := &talk{t: t, p: pi.Harness{}.NewProtocol(l)}
	k.answer(one(t, k.do(k.p.Open(), nil), "get_state"), idle)
	return k
}

// running is one with a turn whose run has begun.
func running(t *testing.T) *talk {
	t.Helper()
	k := ready(t, harness.Launch{})
	out, err := k.p.Prompt(harness.Prompt{Text: "go"})
	k.answer(one(t, k.do(out, err), "prompt"), `{"disposition":"started"}`)
	k.say(`{"type":"agent_start"}`)
	return k
}

func one(t *testing.T, cmds []command, kind string) command {
	t.Helper()
	if len(cmds) != 1 || cmds[0].Type != kind {
		t.Fatalf("wrote %+v, want one %s", cmds, kind)
	}
	return cmds[0]
}

func types(cmds []command) (kinds []string) {
	for _, c := range cmds {
		kinds = append(kinds, c.Type)
	}
	return kinds
}

// ends are the turns that ended.
func (k *talk) ends() (ends []harness.TurnEnd) {
	for _, ev := range k.events {
		if ev.Name == ledger.TurnEnded {
			var end harness.TurnEnd
			if err := json.Unmarshal(ev.Data, &end); err != nil {
				k.t.Fatal(err)
			}
			ends = append(ends, end)
		}
	}
	return ends
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// A message that Pi queued after its run had ended is run in the same turn.
func TestLateSteer(t *testing.T) {
	t.Parallel()
	k := running(t)
	steer := one(t, k.do(k.p.Steer("o1", "late")), "steer")
	if cmds := k.say(`{"type":"agent_settled","aborted":false}`); cmds != nil {
		t.Errorf("wrote %+v before the order was answered", cmds)
	}
	state := one(t, k.answer(steer, `{"disposition":"queued"}`), "get_state")
	if _, err := k.p.Steer("o2", "too late"); !errors.Is(err, harness.ErrNoTurn) {
		t.Errorf("Steer after settling: %v, want ErrNoTurn", err)
	}
	clear := one(t, k.answer(state, `{"sessionId":"s1","messageCount":6,"pendingMessageCount":1}`), "clear_queue")
	prompt := one(t, k.answer(clear, `{"steering":["late"],"followUp":[]}`), "prompt")
	equal(t, "prompt", prompt.Message, "late")
	equal(t, "ended too early", len(k.ends()), 0)
	k.answer(prompt, `{"disposition":"started"}`)
	k.say(`{"type":"agent_start"}`)
	k.answer(one(t, k.say(`{"type":"agent_settled","aborted":false}`), "get_state"), idle)
	equal(t, "ends", k.ends(), []harness.TurnEnd{{Outcome: "success", SessionID: "s1", Messages: 4}})
	equal(t, "replies", k.replies, []harness.Reply{{Order: "o1"}})
}

// Orders given before Pi runs are held back: it would take them for nothing.
func TestOrdersAreHeldUntilTheRun(t *testing.T) {
	t.Parallel()
	k := ready(t, harness.Launch{})
	out, err := k.p.Prompt(harness.Prompt{Text: "go"})
	prompt := one(t, k.do(out, err), "prompt")
	equal(t, "written", types(k.do(k.p.Steer("o1", "more"))), nil)
	equal(t, "written", types(k.do(k.p.Abort("o2"))), nil)
	equal(t, "written", types(k.say(`{"type":"agent_settled"}`)), nil) // of an earlier run
	equal(t, "written", types(k.answer(prompt, `{"disposition":"started"}`)), nil)
	equal(t, "written", types(k.say(`{"type":"agent_start"}`)), []string{"steer", "clear_queue", "abort"})
}

func TestRefusedPromptAnswersOrders(t *testing.T) {
	t.Parallel()
	k := ready(t, harness.Launch{})
	out, err := k.p.Prompt(harness.Prompt{Text: "go"})
	prompt := one(t, k.do(out, err), "prompt")
	k.do(k.p.Steer("o1", "more"))
	k.say(`{"id":"` + prompt.ID + `","type":"response","command":"prompt","success":false,"error":"No API key found for fake."}`)
	equal(t, "ends", k.ends(), []harness.TurnEnd{{
		Outcome: "failed", Class: "missing_credentials", Error: "No API key found for fake.", SessionID: "s1", Messages: 4,
	}})
	if len(k.replies) != 1 || k.replies[0].Err == "" {
		t.Errorf("replies %+v, want a refusal", k.replies)
	}
}

func TestRunOfAnExtension(t *testing.T) {
	t.Parallel()
	k := running(t)
	state := one(t, k.say(`{"type":"agent_settled"}`), "get_state")
	k.answer(state, `{"sessionId":"s1","messageCount":5,"isStreaming":true}`)
	equal(t, "ended though Pi goes on", len(k.ends()), 0)
	k.answer(one(t, k.say(`{"type":"agent_settled"}`), "get_state"), idle)
	equal(t, "ends", len(k.ends()), 1)
}

func TestStateThatCannotBeReadEndsTheTurn(t *testing.T) {
	t.Parallel()
	k := running(t)
	k.answer(one(t, k.say(`{"type":"agent_settled"}`), "get_state"), `{"messageCount":"many"}`)
	equal(t, "ends", k.ends(), []harness.TurnEnd{{Outcome: "success", SessionID: "s1", Messages: 4}})
}

func TestExitAnswersEverything(t *testing.T) {
	t.Parallel()
	k := running(t)
	k.say(`{"type":"extension_ui_request","id":"d1","method":"confirm","title":"Sure?"}`)
	k.do(k.p.Steer("o1", "more"))
	k.do(k.p.Exited(harness.Exit{Code: -1, Signal: "SIGKILL", OOMHint: true, Stderr: "one\nlast words\n"}), nil)
	k.do(k.p.Exited(harness.Exit{}), nil) // told twice
	var names []string
	for _, ev := range k.events {
		names = append(names, ev.Name)
	}
	equal(t, "events", names, []string{ledger.SessionStarted, ledger.PermissionRequested, ledger.PermissionResolved, ledger.TurnEnded, ledger.SessionEnded})
	end := k.ends()[0]
	equal(t, "class", end.Class, harness.ClassSessionFailed)
	for _, part := range []string{"SIGKILL", "memory", "last words"} {
		if !strings.Contains(end.Error, part) {
			t.Errorf("error %q says nothing of %q", end.Error, part)
		}
	}
	if len(k.replies) != 1 || k.replies[0].Err == "" {
		t.Errorf("replies %+v, want a refusal", k.replies)
	}
}

func TestErrorsOfTheModel(t *testing.T) {
	t.Parallel()
	for text, class := range map[string]string{
		`429: {"message":"You exceeded your current quota","code":"insufficient_quota"}`: harness.ClassQuota,
		`429 {"type":"usage_limit_reached","resets_at":1767225600}`:                      harness.ClassQuota,
		`400: Your credit balance is too low`:                                            harness.ClassQuota,
		`You have hit your ChatGPT usage limit (plus plan).`:                             harness.ClassQuota,
		`429: rate limited, slow down`:                                                   harness.ClassModelError,
		`503: quota service unavailable, billing`:                                        harness.ClassModelError,
		`500 status code (no body)`:                                                      harness.ClassModelError,
		`401: Incorrect API key provided`:                                                harness.ClassMissingCredentials,
		`403: forbidden`:                                                                 harness.ClassMissingCredentials,
		`OpenAI API error (401): nope`:                                                   harness.ClassMissingCredentials,
		`invalid x-api-key`:                                                              harness.ClassMissingCredentials,
		`Connection error.`:                                                              harness.ClassModelError,
		`no answer within 600000 ms`:                                                     harness.ClassModelError,
		``:                                                                               harness.ClassModelError,
	} {
		k := running(t)
		msg, err := json.Marshal(map[string]any{"type": "message_end", "message": map[string]any{
			"role": "assistant", "content": []any{}, "stopReason": "error", "errorMessage": text, "provider": "acme"}})
		if err != nil {
			t.Fatal(err)
		}
		k.say(string(msg))
		k.answer(one(t, k.say(`{"type":"agent_settled"}`), "get_state"), idle)
		end := k.ends()[0]
		if end.Outcome != harness.OutcomeFailed || end.Class != class || end.Error == "" {
			t.Errorf("%q: %+v, want %s", text, end, class)
		}
		i := slices.IndexFunc(k.events, func(ev harness.Event) bool { return ev.Name == ledger.AgentQuotaExhausted })
		if (i >= 0) != (class == harness.ClassQuota) {
			t.Errorf("%q: quota event at %d", text, i)
			continue
		}
		if i < 0 {
			continue
		}
		var q harness.Quota
		if err := json.Unmarshal(k.events[i].Data, &q); err != nil {
			t.Fatal(err)
		}
		want := harness.Quota{Provider: "acme", Status: "exhausted", Source: text}
		if strings.Contains(text, "resets_at") {
			want.ResetsAt = 1767225600000
		}
		equal(t, text, q, want)
	}
}

// Only the last assistant message decides: one that failed and was tried again
// does not.
func TestLastMessageDecides(t *testing.T) {
	t.Parallel()
	k := running(t)
	k.say(`{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"503: busy"}}`)
	k.say(`{"type":"message_end","message":{"role":"assistant","content":[{"type":"text","text":"done"}],"stopReason":"stop"}}`)
	k.answer(one(t, k.say(`{"type":"agent_settled"}`), "get_state"), idle)
	equal(t, "outcome", k.ends()[0].Outcome, harness.OutcomeSuccess)
}

func TestDialogs(t *testing.T) {
	t.Parallel()
	yes, no, allow, always, block, text := true, false, "Allow", "Always allow", "Block it", "typed"
	for name, test := range map[string]struct {
		request, decision, feedback string
		want                        command
		refused                     bool
	}{
		"confirm":               {request: `"method":"confirm"`, decision: "once", want: command{Confirmed: &yes}},
		"confirm, no":           {request: `"method":"confirm"`, decision: "reject", want: command{Confirmed: &no}},
		"select":                {request: `"method":"select","options":["Block it","Always allow","Allow"]`, decision: "once", want: command{Value: &allow}},
		"select, always":        {request: `"method":"select","options":["Allow","Always allow","Block it"]`, decision: "always", want: command{Value: &always}},
		"select, no":            {request: `"method":"select","options":["Allow","Block it"]`, decision: "reject", want: command{Value: &block}},
		"select by name":        {request: `"method":"select","options":["Allow","typed"]`, decision: "once", feedback: "typed", want: command{Value: &text}},
		"select, none says no":  {request: `"method":"select","options":["a","b"]`, decision: "reject", want: command{Cancelled: true}},
		"select, never too far": {request: `"method":"select","options":["Always allow","Block it"]`, decision: "once", refused: true},
		"input":                 {request: `"method":"input"`, decision: "once", feedback: "typed", want: command{Value: &text}},
		"editor, no":            {request: `"method":"editor"`, decision: "reject", want: command{Cancelled: true}},
	} {
		k := running(t)
		k.say(`{"type":"extension_ui_request","id":"d1","title":"T",` + test.request + `}`)
		out, err := k.p.Answer("o1", "d1", test.decision, test.feedback)
		if test.refused {
			if !errors.Is(err, harness.ErrRefused) || out.Write != nil {
				t.Errorf("%s: %v, want ErrRefused", name, err)
			}
			continue
		}
		got := one(t, k.do(out, err), "extension_ui_response")
		test.want.ID, test.want.Type = "d1", "extension_ui_response"
		equal(t, name, got, test.want)
		equal(t, name, k.replies, []harness.Reply{{Order: "o1"}})
		if _, err := k.p.Answer("o2", "d1", "once", ""); !errors.Is(err, harness.ErrUnknownRequest) {
			t.Errorf("%s: answered twice: %v", name, err)
		}
	}
}

// What only shows something asks for nothing.
func TestNotices(t *testing.T) {
	t.Parallel()
	k := running(t)
	n := len(k.events)
	for _, method := range []string{"notify", "setStatus", "setWidget", "setTitle", "set_editor_text"} {
		k.say(`{"type":"extension_ui_request","id":"` + method + `","method":"` + method + `"}`)
	}
	equal(t, "events", len(k.events), n)
}

func TestLaunch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		launch harness.Launch
		want   string
	}{
		{harness.Launch{}, "pi --mode rpc"},
		{harness.Launch{SessionID: "not asked to continue"}, "pi --mode rpc"},
		{harness.Launch{Continue: true}, "pi --mode rpc --continue"},
		{harness.Launch{Continue: true, SessionID: "01a2-b"}, "pi --mode rpc --session-id 01a2-b"},
		{harness.Launch{Provider: "p", Model: "m"}, "pi --mode rpc --provider p --model m"},
		{harness.Launch{Model: "p/m"}, "pi --mode rpc --model p/m"},
		{harness.Launch{Provider: "p"}, ""},
		{harness.Launch{Continue: true, SessionID: "--help"}, ""},
	} {
		c, err := pi.Harness{}.Launch(test.launch)
		if got := strings.Join(c.Args, " "); got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("Launch(%+v): %q, %v, want %q", test.launch, got, err, test.want)
		}
	}
}

// FuzzLine: no line, in no state, harms a Protocol or makes it end a turn twice.
func FuzzLine(f *testing.F) {
	for _, l := range harnesstest.Hostile() {
		if len(l) < 1<<10 { // the fuzzer is slow with long ones; the suite tries those
			f.Add(l)
		}
	}
	f.Add([]byte(`{"type":"agent_settled","aborted":true}` + "\n" + `{"id":"c3","type":"response","command":"get_state","success":true,"data":` + idle + `}`))
	f.Fuzz(func(t *testing.T, lines []byte) {
		for _, k := range []*talk{{t: t, p: pi.Harness{}.NewProtocol(harness.Launch{})}, ready(t, harness.Launch{}), running(t)} {
			busy := k.p.Status().State == harness.StateBusy
			for l := range strings.SplitSeq(string(lines), "\n") {
				k.do(k.p.Line([]byte(l)), nil)
			}
			k.do(k.p.Exited(harness.Exit{Code: 1}), nil)
			if n := len(k.ends()); n > 1 || busy && n != 1 {
				t.Errorf("%d ends of one turn", n)
			}
			for _, ev := range k.events {
				if len(ev.Data) > 0 && !json.Valid(ev.Data) || len(ev.Body) > 0 && !json.Valid(ev.Body) {
					t.Errorf("%s is no JSON: %q %q", ev.Name, ev.Data, ev.Body)
				}
			}
		}
	})
}
