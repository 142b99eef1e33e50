// Package harnesstest is the suite each harness passes. It drives real
// processes of the harness through its Protocol, as the bridge does.
package harnesstest

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// Env is a place where processes of one harness run, with a home directory of
// its own that $HOME names.
type Env struct {
	Harness harness.Harness
	Launch  harness.Launch // Provider, Model and Self
	// Exec makes a command that runs in the place and dies with ctx.
	Exec    func(ctx context.Context, args []string, env map[string]string) *exec.Cmd
	Dialect Dialect
}

// Dialect are prompts that the harness, or the model behind it, understands.
// All understand "say TEXT", "run COMMAND" and "count", a line each; count says
// "count: N" with a number that grows with the conversation.
type Dialect struct {
	Ask          string // asks for permission once
	Answered     func(decision string) string
	Fail         string // fails with "boom", not retried
	Quota        string // of the provider "fake"
	Unauthorized string
	Exit         string // ends the process
	SessionFile  string // shell pattern of the session's file
}

// Sh runs a shell script in the place and returns its output.
func (e *Env) Sh(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := e.Exec(ctx, []string{"sh", "-c", script}, nil).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// wait is a command that tells its pid and runs until the file go appears.
const wait = `echo $$ >"$HOME/tool.pid"; while [ ! -e "$HOME/go" ]; do sleep 0.02; done; echo went`

// alive reports whether the last wait command still runs.
func (e *Env) alive(t *testing.T) bool {
	t.Helper()
	// A zombie that nobody reaps is as dead as it gets.
	return e.Sh(t, `pid=$(cat "$HOME/tool.pid"); case $(ps -o stat= -p "$pid" || true) in ""|Z*) echo dead;; *) echo alive;; esac`) == "alive"
}

// gone waits until the last wait command has ended.
func (e *Env) gone(t *testing.T) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for e.alive(t) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the tool's process goes on")
		}
	}
}

// waiting begins a turn whose tool call waits, and returns once it runs.
func (p *Process) waiting(more string) {
	p.t.Helper()
	p.env.Sh(p.t, `rm -f "$HOME/go" "$HOME/tool.pid"`)
	n := len(p.Events)
	p.Prompt("run " + wait + "\n" + more)
	p.WaitFor(ledger.ToolStarted, n)
	p.env.Sh(p.t, `until [ -s "$HOME/tool.pid" ]; do sleep 0.02; done`)
}

// Run runs the suite. newEnv makes a fresh place for each test.
func Run(t *testing.T, newEnv func(t *testing.T) *Env) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Env)
	}{
		{"fresh", testFresh},
		{"tool", testTool},
		{"steer", testSteer},
		{"follow-up", testFollowUp},
		{"abort", testAbort},
		{"refusals", testRefusals},
		{"permission", testPermission},
		{"failures", testFailures},
		{"exit in a turn", testExit},
		{"input closed in a turn", testInputClosed},
		{"killed in a tool call", testKilled},
		{"killed before it spoke", testKilledEarly},
		{"continued by newest", testContinueNewest},
		{"torn session", testTornSession},
		{"garbage", testGarbage},
		{"odd text", testOddText},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newEnv(t))
		})
	}
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func succeeded(t *testing.T, end harness.TurnEnd, result, wanted string) {
	t.Helper()
	want(t, "outcome", end.Outcome, harness.OutcomeSuccess)
	want(t, "error", end.Error, "")
	want(t, "result", result, wanted)
}

func testFresh(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{})
	want(t, "state", p.Protocol.Status().State, harness.StateStarting)
	if _, err := p.Protocol.Prompt(harness.Prompt{Text: "say early"}); !errors.Is(err, harness.ErrNotReady) {
		t.Errorf("Prompt before the session: %v, want ErrNotReady", err)
	}
	p.Ready()
	var s ledger.SessionPayload
	decode(t, p.last(ledger.SessionStarted).Data, &s)
	if s.SessionID == "" || s.Continued || s.Messages != p.Protocol.Status().Messages {
		t.Errorf("session.started %+v does not fit %+v", s, p.Protocol.Status())
	}
	end, result := p.Turn("say hello")
	succeeded(t, end, result, "hello")
	want(t, "session of the turn", end.SessionID, s.SessionID)
	if end.Messages < s.Messages+2 {
		t.Errorf("%d messages after a turn, %d before", end.Messages, s.Messages)
	}
	want(t, "status", p.Protocol.Status(), harness.Status{State: harness.StateIdle, SessionID: s.SessionID, Messages: end.Messages})
	want(t, "the user's messages", p.texts("user"), []string{"say hello"})
	want(t, "the assistant's messages", p.texts("assistant"), []string{"hello"})
	if p.count(harness.MessageUpdated) == 0 {
		t.Error("no text was shown while it was said")
	}
	end, result = p.Turn("say again")
	succeeded(t, end, result, "again")
}

func testTool(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	end, result := p.Turn("run echo of the tool; pwd\nsay done")
	succeeded(t, end, result, "done")
	var started, ended struct {
		ID, Name string
		IsError  bool
	}
	var body struct{ Result string }
	decode(t, p.last(ledger.ToolStarted).Data, &started)
	decode(t, p.last(ledger.ToolEnded).Data, &ended)
	decode(t, p.last(ledger.ToolEnded).Body, &body)
	if started.ID == "" || started.Name == "" || started != ended {
		t.Errorf("tool.started %+v and tool.ended %+v do not fit", started, ended)
	}
	if !strings.Contains(body.Result, "of the tool") {
		t.Errorf("result of the tool: %q", body.Result)
	}
	if !strings.Contains(string(p.last(ledger.ToolStarted).Body), "echo of the tool") {
		t.Errorf("arguments of the tool: %s", p.last(ledger.ToolStarted).Body)
	}
	end, _ = p.Turn("run exit 3")
	want(t, "outcome of a turn whose tool failed", end.Outcome, harness.OutcomeSuccess)
	decode(t, p.last(ledger.ToolEnded).Data, &ended)
	want(t, "isError", ended.IsError, true)
}

func testSteer(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.waiting("")
	p.do(p.Protocol.Steer("o1", "say steered"))
	p.Replied("o1")
	e.Sh(t, `touch "$HOME/go"`)
	end, _ := p.Ended()
	want(t, "outcome", end.Outcome, harness.OutcomeSuccess)
	if !slices.Contains(p.texts("assistant"), "steered") {
		t.Errorf("the steering message was not obeyed: %q", p.texts("assistant"))
	}
}

func testFollowUp(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.waiting("say first")
	p.do(p.Protocol.FollowUp("o1", "say followed"))
	p.Replied("o1")
	e.Sh(t, `touch "$HOME/go"`)
	end, result := p.Ended()
	succeeded(t, end, result, "followed")
	if !slices.Contains(p.texts("assistant"), "first") {
		t.Errorf("the prompt was not obeyed to its end: %q", p.texts("assistant"))
	}
	want(t, "ends", p.count(ledger.TurnEnded), 1)
}

func testAbort(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.waiting("say never")
	p.do(p.Protocol.FollowUp("o1", "say never either"))
	p.Replied("o1")
	p.do(p.Protocol.Abort("o2"))
	end, _ := p.Ended()
	want(t, "outcome", end.Outcome, harness.OutcomeAborted)
	p.Replied("o2")
	e.gone(t)
	for _, said := range p.texts("assistant") {
		if strings.Contains(said, "never") {
			t.Errorf("said after the abort: %q", said)
		}
	}
	// At once: before Pi, say, has begun to work on the prompt.
	p.Prompt("run " + wait)
	p.do(p.Protocol.Abort("o3"))
	end, _ = p.Ended()
	want(t, "outcome", end.Outcome, harness.OutcomeAborted)
	p.Replied("o3")
	end, result := p.Turn("say after")
	succeeded(t, end, result, "after")
}

func testRefusals(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	refused := func(what string, want error, out harness.Output, err error) {
		t.Helper()
		if !errors.Is(err, want) || out.Write != nil {
			t.Errorf("%s: %v (writes %q), want %v and nothing written", what, err, out.Write, want)
		}
	}
	out, err := p.Protocol.Steer("o1", "say no")
	refused("Steer while idle", harness.ErrNoTurn, out, err)
	out, err = p.Protocol.FollowUp("o2", "say no")
	refused("FollowUp while idle", harness.ErrNoTurn, out, err)
	out, err = p.Protocol.Abort("o3")
	refused("Abort while idle", harness.ErrNoTurn, out, err)
	out, err = p.Protocol.Answer("o4", "nobody asked", harness.DecisionOnce, "")
	refused("Answer to nothing", harness.ErrUnknownRequest, out, err)
	p.waiting("say done")
	out, err = p.Protocol.Prompt(harness.Prompt{Text: "say no"})
	refused("Prompt while busy", harness.ErrBusy, out, err)
	e.Sh(t, `touch "$HOME/go"`)
	end, result := p.Ended()
	succeeded(t, end, result, "done")
	p.Kill()
	out, err = p.Protocol.Prompt(harness.Prompt{Text: "say no"})
	refused("Prompt after the exit", harness.ErrNotReady, out, err)
}

func testPermission(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	for i, decision := range []string{harness.DecisionOnce, harness.DecisionReject} {
		n := len(p.Events)
		p.Prompt(e.Dialect.Ask)
		var asked ledger.PermissionRequestedPayload
		decode(t, p.WaitFor(ledger.PermissionRequested, n).Data, &asked)
		if asked.RequestID == "" || asked.Title == "" {
			t.Errorf("permission.requested %+v", asked)
		}
		want(t, "state while it asks", p.Protocol.Status().State, harness.StateBusy)
		if _, err := p.Protocol.Answer("bad", asked.RequestID, "perhaps", ""); !errors.Is(err, harness.ErrRefused) {
			t.Errorf("Answer perhaps: %v, want ErrRefused", err)
		}
		order := "o" + strconv.Itoa(i)
		p.do(p.Protocol.Answer(order, asked.RequestID, decision, ""))
		p.Replied(order)
		end, result := p.Ended()
		succeeded(t, end, result, e.Dialect.Answered(decision))
		var resolved ledger.PermissionResolvedPayload
		decode(t, p.last(ledger.PermissionResolved).Data, &resolved)
		want(t, "permission.resolved", resolved, ledger.PermissionResolvedPayload{RequestID: asked.RequestID, Decision: decision})
	}
	n := len(p.Events)
	p.Prompt(e.Dialect.Ask)
	p.WaitFor(ledger.PermissionRequested, n)
	p.do(p.Protocol.Abort("o9"))
	end, _ := p.Ended()
	want(t, "outcome of an abort while it asks", end.Outcome, harness.OutcomeAborted)
	var resolved ledger.PermissionResolvedPayload
	decode(t, p.last(ledger.PermissionResolved).Data, &resolved)
	want(t, "decision", resolved.Decision, harness.DecisionCancelled)
}

func testFailures(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	for prompt, class := range map[string]string{
		e.Dialect.Fail:         harness.ClassModelError,
		e.Dialect.Quota:        harness.ClassQuota,
		e.Dialect.Unauthorized: harness.ClassMissingCredentials,
	} {
		end, result := p.Turn(prompt)
		want(t, prompt+": outcome", end.Outcome, harness.OutcomeFailed)
		want(t, prompt+": class", end.Class, class)
		want(t, prompt+": result", result, "")
		if end.Error == "" || prompt == e.Dialect.Fail && !strings.Contains(end.Error, "boom") {
			t.Errorf("%s: error %q", prompt, end.Error)
		}
	}
	want(t, "quota events", p.count(ledger.AgentQuotaExhausted), 1)
	var q harness.Quota
	decode(t, p.last(ledger.AgentQuotaExhausted).Data, &q)
	want(t, "quota", []string{q.Provider, q.Status}, []string{"fake", "exhausted"})
	end, result := p.Turn("say fine")
	succeeded(t, end, result, "fine")
}
