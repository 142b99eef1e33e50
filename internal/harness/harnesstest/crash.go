package harnesstest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// The tests of what must be survived.

func testExit(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.Prompt(e.Dialect.Exit)
	p.Exited()
	end, _ := p.Ended()
	want(t, "outcome", end.Outcome, harness.OutcomeFailed)
	want(t, "class", end.Class, harness.ClassSessionFailed)
	want(t, "session.ended events", p.count(ledger.SessionEnded), 1)
	want(t, "state", p.Protocol.Status().State, harness.StateExited)
}

func testInputClosed(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.waiting("say never")
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	p.Exited()
	if end, _ := p.Ended(); end.Outcome == harness.OutcomeSuccess {
		t.Errorf("a turn that lost its harness ended with %+v", end)
	}
	e.gone(t)
}

func testKilled(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	before, _ := p.Turn("say before")
	p.waiting("say never")
	p.do(p.Protocol.Steer("o1", "say never"))
	p.Kill()
	end, _ := p.Ended()
	want(t, "outcome", end.Outcome, harness.OutcomeFailed)
	want(t, "class", end.Class, harness.ClassSessionFailed)
	if _, ok := p.Replies["o1"]; !ok {
		t.Error("an order was left without an answer")
	}
	if !e.alive(t) {
		t.Error("the tool's process died with the harness")
	}

	p = e.Start(t, harness.Launch{Continue: true, SessionID: before.SessionID}).Ready()
	var s ledger.SessionPayload
	decode(t, p.last(ledger.SessionStarted).Data, &s)
	want(t, "session", s.SessionID, before.SessionID)
	want(t, "continued", s.Continued, true)
	if s.Messages < before.Messages {
		t.Errorf("%d messages, there were %d", s.Messages, before.Messages)
	}
	want(t, "ends of turns nobody began", p.count(ledger.TurnEnded), 0)
	end, result := p.Turn("count")
	want(t, "outcome", end.Outcome, harness.OutcomeSuccess)
	if n := counted(t, result); n < 3 {
		t.Errorf("%s: the conversation did not go on", result)
	}
	e.Sh(t, `touch "$HOME/go"`)
	e.gone(t)
}

func counted(t *testing.T, result string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(result, "count: "))
	if err != nil {
		t.Fatalf("no count: %q", result)
	}
	return n
}

// A session that was killed before it stored anything is continued under its id.
func testKilledEarly(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	id := p.Protocol.Status().SessionID
	p.Kill()
	p = e.Start(t, harness.Launch{Continue: true, SessionID: id}).Ready()
	want(t, "session", p.Protocol.Status().SessionID, id)
	end, result := p.Turn("say here")
	succeeded(t, end, result, "here")
}

func testContinueNewest(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{Continue: true}).Ready() // nothing is there yet
	first, _ := p.Turn("say one")
	p.Kill()
	p = e.Start(t, harness.Launch{Continue: true}).Ready()
	want(t, "session", p.Protocol.Status().SessionID, first.SessionID)
	want(t, "messages", p.Protocol.Status().Messages, first.Messages)
}

func testTornSession(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	first, _ := p.Turn("say one")
	p.Kill()
	e.Sh(t, `for f in `+e.Dialect.SessionFile+`; do printf '{"type":"message","id":"torn","role":"assi' >>"$f"; done`)
	p = e.Start(t, harness.Launch{Continue: true, SessionID: first.SessionID}).Ready()
	want(t, "session", p.Protocol.Status().SessionID, first.SessionID)
	want(t, "messages", p.Protocol.Status().Messages, first.Messages)
	end, result := p.Turn("say two")
	succeeded(t, end, result, "two")
	p.Kill()
	p = e.Start(t, harness.Launch{Continue: true, SessionID: first.SessionID}).Ready()
	want(t, "messages after one more turn", p.Protocol.Status().Messages, end.Messages)
}

func testGarbage(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	p.waiting("say done")
	for _, l := range Hostile() {
		p.do(p.Protocol.Line(l), nil)
	}
	if p.count(ledger.DiagnosticStored) == 0 {
		t.Error("nothing was said about unreadable lines")
	}
	want(t, "ends", p.count(ledger.TurnEnded), 0)
	e.Sh(t, `touch "$HOME/go"`)
	end, result := p.Ended()
	succeeded(t, end, result, "done")
}

func testOddText(t *testing.T, e *Env) {
	p := e.Start(t, harness.Launch{}).Ready()
	// Separators that are no ends of lines here, quotes, emoji, right to left.
	odd := "a\u2028b\u2029c \"q\" \\ \t<&> \U0001F980 \u05d0\u05d1"
	end, result := p.Turn("say " + odd)
	succeeded(t, end, result, odd)
	long := strings.Repeat("0123456789", 100_000)
	end, result = p.Turn("say " + long)
	want(t, "outcome", end.Outcome, harness.OutcomeSuccess)
	if result != long {
		t.Errorf("a text of %d bytes came back with %d", len(long), len(result))
	}
}
