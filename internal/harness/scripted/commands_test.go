package scripted_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/harnesstest"
	"github.com/alineod/alineod/internal/harness/scripted"
	"github.com/alineod/alineod/internal/ledger"
)

func success(t *testing.T, p *harnesstest.Process, prompt, want string) harness.TurnEnd {
	t.Helper()
	end, result := p.Turn(prompt)
	if end.Outcome != harness.OutcomeSuccess || result != want {
		t.Errorf("%q ended %+v with %q, want success with %q", prompt, end, result, want)
	}
	return end
}

// The count of messages is what the package promises.
func TestMessages(t *testing.T) {
	t.Parallel()
	p := newEnv(t).Start(t, harness.Launch{}).Ready()
	messages := 0
	for _, step := range []struct {
		prompt, want string
		adds         int
	}{
		{"count", "count: 0", 2},
		{"say one\n\n  say two", "two", 3},
		{"hello there", "echo: hello there", 2},
		{"think hard", "", 1},
		{"todo buy milk", "", 3},
		{"sleep 0.001\nsay slept", "slept", 4},
		{"write a.txt text", "", 3},
		{"flood 3", "flood: 3", 2},
		{"garbage", "garbage: printed", 2},
		{"count", "count: 22", 2},
	} {
		end := success(t, p, step.prompt, step.want)
		messages += step.adds
		if end.Messages != messages {
			t.Errorf("%q: %d messages, want %d", step.prompt, end.Messages, messages)
		}
	}
}

func TestGarbageIsReported(t *testing.T) {
	t.Parallel()
	p := newEnv(t).Start(t, harness.Launch{}).Ready()
	success(t, p, "garbage", "garbage: printed")
	var diagnostics int
	for _, ev := range p.Events {
		if ev.Name == ledger.DiagnosticStored {
			diagnostics++
			if len(ev.Body) > 20_000 {
				t.Errorf("a diagnostic of %d bytes", len(ev.Body))
			}
		}
	}
	if diagnostics != 9 {
		t.Errorf("%d diagnostics, want one for each of the 9 lines", diagnostics)
	}
}

func TestWriteStaysBelowHome(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	home, outside := e.Sh(t, `echo "$HOME"`), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	p := e.Start(t, harness.Launch{}).Ready()
	success(t, p, "write deep/er/file.txt some  text\nwrite ~/tilde.txt x\nwrite "+home+"/abs.txt y\nsay ok", "ok")
	for file, want := range map[string]string{"deep/er/file.txt": "some  text\n", "tilde.txt": "x\n", "abs.txt": "y\n"} {
		got, err := os.ReadFile(filepath.Join(home, file))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	n := len(p.Events)
	success(t, p, "write ../out.txt x\nwrite link/out.txt x\nwrite /out-of-home.txt x\nwrite\nsay ok", "ok")
	var failed int
	for _, ev := range p.Events[n:] {
		if ev.Name == ledger.ToolEnded && strings.Contains(string(ev.Data), `"isError":true`) {
			failed++
		}
	}
	if failed != 4 {
		t.Errorf("%d of 4 writes out of the home were refused", failed)
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) > 0 {
		t.Errorf("written outside: %v, %v", found, err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	p := newEnv(t).Start(t, harness.Launch{}).Ready()
	success(t, p, "run head -c 10000000 /dev/zero | tr '\\0' x; echo the end\nsay ok", "ok")
	var shown int
	var result struct{ Result string }
	for _, ev := range p.Events {
		switch ev.Name {
		case harness.ToolUpdated:
			shown += len(ev.Data)
		case ledger.ToolEnded:
			if err := json.Unmarshal(ev.Body, &result); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(result.Result) > 33<<10 || !strings.HasSuffix(result.Result, "the end") || !strings.Contains(result.Result, "bytes left out") {
		t.Errorf("result of %d bytes, ends %.40q", len(result.Result), result.Result[max(0, len(result.Result)-40):])
	}
	if shown > 64<<10 {
		t.Errorf("%d bytes of progress", shown)
	}
}

// What a command leaves in the background does not hold the turn.
func TestBackgroundProcess(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.Start(t, harness.Launch{}).Ready()
	success(t, p, `run sleep 1000 & echo $! >"$HOME/background.pid"`+"\nsay ok", "ok")
	e.Sh(t, `kill "$(cat "$HOME/background.pid")"`)
}

// Told to end, it aborts its turn, says so, and leaves no process behind.
func TestTerminated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.Start(t, harness.Launch{}).Ready()
	p.Prompt(`run echo $$ >"$HOME/tool.pid"; exec sleep 1000`)
	e.Sh(t, `until [ -s "$HOME/tool.pid" ]; do sleep 0.02; done; kill -TERM "$(cat "$HOME/harness.pid")"`)
	p.Exited()
	if end, _ := p.Ended(); end.Outcome != harness.OutcomeAborted {
		t.Errorf("turn ended %+v, want aborted", end)
	}
	e.Sh(t, `! kill -0 "$(cat "$HOME/tool.pid")" 2>/dev/null`)
}

func TestQuotaTellsItsReset(t *testing.T) {
	t.Parallel()
	p := newEnv(t).Start(t, harness.Launch{}).Ready()
	before := time.Now()
	end, _ := p.Turn("quota acme 60\nsay not reached")
	after := time.Now()
	if end.Class != harness.ClassQuota {
		t.Errorf("turn ended %+v", end)
	}
	var q harness.Quota
	if err := json.Unmarshal(p.WaitFor(ledger.AgentQuotaExhausted, 0).Data, &q); err != nil {
		t.Fatal(err)
	}
	if lo, hi := before.Add(time.Minute).UnixMilli(), after.Add(time.Minute).UnixMilli(); q.ResetsAt < lo || q.ResetsAt > hi {
		t.Errorf("resets at %d, want %d to %d", q.ResetsAt, lo, hi)
	}
}

func TestNonsenseFailsTheTurn(t *testing.T) {
	t.Parallel()
	p := newEnv(t).Start(t, harness.Launch{}).Ready()
	for _, prompt := range []string{"sleep", "sleep -1", "sleep NaN", "sleep 1e300", "exit", "exit 300", "exit -1", "flood x", "flood 99999999999", "quota", "quota acme"} {
		if end, _ := p.Turn(prompt); end.Outcome != harness.OutcomeFailed || end.Error == "" {
			t.Errorf("%q ended %+v", prompt, end)
		}
	}
	success(t, p, "say fine", "fine")
}

func TestSessionsThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	const header = `{"type":"session","id":"abc","ts":1}` + "\n"
	const message = `{"type":"message","role":"user","text":"x","ts":1}` + "\n"
	for name, test := range map[string]struct {
		content  string // of abc.jsonl; empty: no file
		id       string
		messages int // -1: refused
	}{
		"whole":                      {header + message, "abc", 1},
		"torn":                       {header + message + `{"type":"mess`, "abc", 1},
		"torn with its newline":      {header + message + `{"type":"mess` + "\n", "abc", 1},
		"torn to zeros":              {header + message + "\x00\x00\x00\x00", "abc", 1},
		"a line without its newline": {header + strings.TrimSuffix(message, "\n"), "abc", 0},
		"damaged inside":             {header + "garbage\n" + message, "abc", -1},
		"header torn":                {header[:10], "abc", -1},
		"header of another":          {strings.Replace(header, "abc", "abd", 1) + message, "abc", -1},
		"empty":                      {"", "abc", -1},
		"missing":                    {header, "abcd", -1},
		"path":                       {header, "../sessions/abc", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			dir := filepath.Join(e.Sh(t, `echo "$HOME"`), ".scripted", "sessions")
			file := filepath.Join(dir, "abc.jsonl")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			p := e.Start(t, harness.Launch{Continue: true, SessionID: test.id})
			if test.messages < 0 {
				p.Exited()
				if p.Stderr() == "" || len(p.Events) > 0 {
					t.Errorf("said nothing of it: %q, %v", p.Stderr(), p.Events)
				}
				if got, err := os.ReadFile(file); err != nil || string(got) != test.content {
					t.Errorf("a file that was refused was changed to %q, %v", got, err)
				}
				return
			}
			p.Ready()
			if d := cmp.Diff(test.messages, p.Protocol.Status().Messages); d != "" {
				t.Errorf("messages (-want +got):\n%s", d)
			}
			end := success(t, p, "count", fmt.Sprintf("count: %d", test.messages))
			p.Kill()
			p = e.Start(t, harness.Launch{Continue: true, SessionID: test.id}).Ready()
			if got := p.Protocol.Status().Messages; got != end.Messages {
				t.Errorf("%d messages after one more turn, want %d", got, end.Messages)
			}
		})
	}
}

func TestMainRefusesArguments(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	if code := scripted.Main(context.Background(), []string{"--nonsense"}, strings.NewReader(""), &strings.Builder{}, &stderr); code != 2 || stderr.Len() == 0 {
		t.Errorf("code %d, %q", code, stderr.String())
	}
}

// FuzzLine: no line, in no state, harms a Protocol or makes it end a turn twice.
func FuzzLine(f *testing.F) {
	for _, l := range harnesstest.Hostile() {
		if len(l) < 1<<10 { // the fuzzer is slow with long ones; the suite tries those
			f.Add(l)
		}
	}
	f.Add([]byte(`{"ev":"ask","id":"q"}` + "\n" + `{"ev":"end","outcome":"success"}`))
	f.Fuzz(func(t *testing.T, lines []byte) {
		for _, busy := range []bool{false, true} {
			p := scripted.Harness{}.NewProtocol(harness.Launch{})
			var ends int
			take := func(out harness.Output) {
				for _, ev := range out.Events {
					if ev.Name == ledger.TurnEnded {
						ends++
					}
					if len(ev.Data) > 0 && !json.Valid(ev.Data) || len(ev.Body) > 0 && !json.Valid(ev.Body) {
						t.Errorf("%s is no JSON: %q %q", ev.Name, ev.Data, ev.Body)
					}
				}
			}
			if busy {
				take(p.Line([]byte(`{"ev":"ready","session":"s"}`)))
				out, err := p.Prompt(harness.Prompt{Text: "go"})
				if err != nil {
					t.Fatal(err)
				}
				take(out)
			}
			for l := range strings.SplitSeq(string(lines), "\n") {
				take(p.Line([]byte(l)))
			}
			take(p.Exited(harness.Exit{Code: 1}))
			if ends > 1 || busy && ends != 1 {
				t.Errorf("%d ends of one turn", ends)
			}
		}
	})
}
