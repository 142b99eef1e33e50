package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
)

const pendingResult = `{"agentId":"` + agent1 + `","state":"pending","outcome":null,"resultRef":null,"result":null}`

func failedResult(turn string) string {
	return `{"agentId":"` + agent1 + `","state":"settled","outcome":"failed","result":"half","error":"model said no","turnId":"` + turn + `"}`
}

// inTime advances a fake clock whenever somebody waits on it, until the test
// has what it wants.
func inTime(t *testing.T, clock *clockwork.FakeClock) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for clock.BlockUntilContext(ctx, 1) == nil {
			clock.Advance(time.Second)
		}
	}()
	return func() { cancel(); <-done }
}

func TestResultOfATurnThatFailed(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	host.routes["GET /agents/"+agent1+"/result"] = []answer{{body: failedResult("t_3")}}
	want := ran{exitFailed, "half\n", "alineod: the turn of " + agent1 + ": failed: model said no\n"}
	if got := host.run("result", agent1); got != want {
		t.Errorf("%+v", got)
	}
	if got := host.run("result", agent1, "--json"); got.code != exitFailed || !strings.Contains(got.out, `"outcome": "failed"`) {
		t.Errorf("%+v", got)
	}
}

func TestResultThatIsNotThere(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	host.routes["GET /agents/"+agent1+"/result"] = []answer{{202, pendingResult}}
	if got := host.run("result", agent1); got != (ran{exitConflict, "", "alineod: " + agent1 + " has no result yet; --wait waits for it\n"}) {
		t.Errorf("%+v", got)
	}
	got := host.run("result", agent1, "--json")
	if got.code != exitConflict || got.err != "" || !strings.Contains(got.out, `"pending"`) {
		t.Errorf("%+v", got)
	}
}

func TestWaitTimesOut(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"result", agent1, "--wait", "--timeout", "3s"},
		{"prompt", agent1, "x", "--wait", "--timeout", "3s"},
		{"run", "-", "-p", "x", "--wait", "--timeout", "3s"},
	} {
		host := newFake(t, everything())
		for _, wait := range []string{"", "?wait=1", "?wait=2", "?wait=3"} {
			host.routes["GET /agents/"+agent1+"/result"+wait] = []answer{{202, pendingResult}}
		}
		clock := clockwork.NewFakeClock()
		stop := inTime(t, clock)
		got := command(t, host.url, "{}", clock, args...)
		stop()
		if got.code != exitTimeout || !strings.HasSuffix(got.err, "alineod: the turn of "+agent1+" has not ended within 3s\n") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// A daemon that dies during a wait is waited for.
func TestWaitOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	host.routes["GET /agents/"+agent1+"/result?wait=240"] = []answer{
		{503, `{"error":"stopping"}`}, {502, "gone"}, {202, pendingResult}, {503, `{"error":"recovering"}`}, {200, resultOK},
	}
	clock := clockwork.NewFakeClock()
	stop := inTime(t, clock)
	got := command(t, host.url, "", clock, "prompt", agent1, "count", "--wait")
	stop()
	const told = "the daemon does not answer; the agents work on, waiting for both\n"
	if got.code != exitOK || got.out != "all\ndone[31m\n" || got.err != told+told {
		t.Errorf("%+v", got)
	}
}

// The result of a prompt is its own turn's, whatever other turns there are.
func TestPromptWaitsForItsOwnTurn(t *testing.T) {
	t.Parallel()
	said := func(turns string) answer { return answer{200, `{"agentId":"` + agent1 + `","turns":[` + turns + `]}`} }
	const ours = `{"turnId":"t_3","turn":3,"outcome":"OUT","messages":[{"role":"assistant","text":"a"},{"role":"assistant","text":"mine"},{"role":"tool","text":"z"}]}`
	ended := strings.Replace(ours, "OUT", "success", 1)
	for name, tt := range map[string]struct {
		results    []answer
		transcript []answer
		want       ran
	}{
		"one before it ends first": {
			[]answer{{200, failedResult("t_2")}, {200, resultOK}}, []answer{said(strings.Replace(ours, "OUT", "", 1))},
			ran{0, "all\ndone[31m\n", ""},
		},
		"one after it ended too": {
			[]answer{{200, failedResult("t_4")}}, []answer{said(ended + `,{"turnId":"t_4","outcome":"failed"}`)},
			ran{0, "mine\n", ""},
		},
		"it failed before another": {
			[]answer{{200, resultOK[:len(resultOK)-len(`t_3"}`)] + `t_4"}`}}, []answer{said(strings.Replace(ours, "OUT", "failed", 1) + `,{"turnId":"t_4","outcome":"success"}`)},
			ran{1, "mine\n", "alineod: the turn of " + agent1 + ": failed\n"},
		},
		"it was interrupted and asked for again": {
			[]answer{{200, failedResult("t_4")}}, []answer{said(strings.Replace(ours, "OUT", "interrupted", 1) + `,{"turnId":"t_4","outcome":"failed"}`)},
			ran{1, "half\n", "alineod: the turn of " + agent1 + ": failed: model said no\n"},
		},
	} {
		host := newFake(t, everything())
		host.routes["GET /agents/"+agent1+"/result?wait=240"] = tt.results
		host.routes["GET /agents/"+agent1+"/transcript?full=1"] = tt.transcript
		clock := clockwork.NewFakeClock()
		stop := inTime(t, clock)
		got := command(t, host.url, "", clock, "prompt", agent1, "count", "--wait")
		stop()
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(ran{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFollowEndsByOutcome(t *testing.T) {
	t.Parallel()
	const mine = `{"agentId":"` + agent1 + `","outcome":"OUT"}`
	settle := "id: 2\nevent: handle.settled\ndata: " + mine + "\n\n"
	for name, tt := range map[string]struct {
		events string
		code   int
	}{
		"success":     {strings.Replace(settle, "OUT", "success", 1), exitOK},
		"failed":      {strings.Replace(settle, "OUT", "failed", 1), exitFailed},
		"interrupted": {strings.Replace(settle, "OUT", "interrupted", 1), exitFailed},
		"aborted":     {"id: 2\nevent: agent.ended\ndata: " + strings.Replace(mine, "OUT", "aborted", 1) + "\n\n", exitFailed},
		"a child first": {"id: 1\nevent: handle.settled\ndata: {\"agentId\":\"a_child\",\"outcome\":\"failed\"}\n\n" +
			strings.Replace(settle, "OUT", "success", 1), exitOK},
	} {
		host := newFake(t, everything())
		host.routes["GET /runs/"+run1+"/events"] = []answer{{body: tt.events}}
		got := command(t, host.url, "{}", clockwork.NewRealClock(), "run", "-", "-p", "x", "--follow", "--json")
		if got.code != tt.code {
			t.Errorf("%s: %+v", name, got)
		}
		valid(t, got.out)
	}
}

// A stream that is lost, and a daemon that is away, are said once and outlived.
func TestFollowOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	host.routes["GET /runs/"+run1+"/events"] = []answer{
		{body: "id: 1\nevent: run.started\ndata: {}\n\n"},
		{503, `{"error":"recovering"}`}, {503, `{"error":"recovering"}`},
		{body: events},
	}
	// The waits are real: 0.7 s together.
	got := command(t, host.url, "{}", clockwork.NewRealClock(), "run", "-", "-p", "x", "--follow")
	if want := "warning: colour: is unknown\nthe connection to the daemon was lost; trying again\n"; got.code != exitOK || got.err != want {
		t.Errorf("%+v", got)
	}
	if n := strings.Count(got.out, "run.started"); n != 1 {
		t.Errorf("run.started was printed %d times:\n%s", n, got.out)
	}
	if n := strings.Count(got.out, "handle.settled"); n != 1 {
		t.Errorf("handle.settled was printed %d times:\n%s", n, got.out)
	}
}

func TestFollowTimesOut(t *testing.T) {
	t.Parallel()
	opened := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			io.WriteString(w, everything()["POST /runs"][0].body)
			return
		}
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		close(opened)
		<-r.Context().Done()
	}))
	defer s.Close()
	clock := clockwork.NewFakeClock()
	go func() { <-opened; clock.Advance(20 * time.Second) }()
	got := command(t, s.URL, "{}", clock, "run", "-", "-p", "x", "--follow", "--timeout", "20s")
	if got.code != exitTimeout || !strings.Contains(got.err, "has not ended within 20s") {
		t.Errorf("%+v", got)
	}
}

// logs ends with what was stored, by any of the three signs.
func TestLogsEnd(t *testing.T) {
	t.Parallel()
	const first = "id: 1\nevent: turn.started\ndata: {\"agentId\":\"" + agent1 + "\",\"turn\":1}\n\n"
	for name, sends := range map[string]string{
		"live":           first + ": live\n\nid: 5\nevent: turn.ended\ndata: {}\n\n",
		"past the end":   first + "id: 13\nevent: turn.ended\ndata: {}\n\n",
		"silence":        first,
		"alive, silence": ": alive\n\n" + first,
	} {
		var sent atomic.Bool
		host := newFake(t, everything())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/events") {
				host.ServeHTTP(w, r)
				return
			}
			io.WriteString(w, sends)
			http.NewResponseController(w).Flush()
			sent.Store(true)
			<-r.Context().Done()
		}))
		got := command(t, s.URL, "", clockwork.NewRealClock(), "logs", run1)
		s.Close()
		if want := (ran{0, agent1 + " turn.started             turn 1\n", ""}); got != want || !sent.Load() {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestInterruptedFollow(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	ctx, cancel := context.WithCancel(t.Context())
	printed := &stopper{after: 11, stop: cancel}
	a := &app{in: strings.NewReader(""), out: printed, err: io.Discard, clock: clockwork.NewRealClock(),
		getenv: func(string) string { return host.url }}
	if code := a.execute(ctx, []string{"logs", agent1, "-f"}); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if printed.n != 11 {
		t.Errorf("%d lines", printed.n)
	}
}

// stopper calls stop after so many writes.
type stopper struct {
	n, after int
	stop     func()
}

func (s *stopper) Write(p []byte) (int, error) {
	if s.n++; s.n == s.after {
		s.stop()
	}
	return len(p), nil
}
