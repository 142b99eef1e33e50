package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/ledger"
)

// asking are command lines that need a daemon.
var asking = [][]string{
	{"ps"}, {"inspect", agent1}, {"prompt", agent1, "x"}, {"prompt", agent1, "x", "--wait"}, {"steer", agent1, "x"},
	{"logs", agent1}, {"logs", agent1, "-f"}, {"logs", run1}, {"result", agent1}, {"result", agent1, "--wait"}, {"transcript", agent1},
	{"stop", agent1}, {"pause", agent1}, {"unpause", agent1}, {"revive", agent1}, {"recover", agent1},
	{"reattach", box1}, {"resume", box1}, {"attach", box1},
	{"checkpoint", "ls", agent1}, {"checkpoint", "take", agent1}, {"checkpoint", "restore", agent1, "2"},
	{"checkpoint", "export", agent1, "3"}, {"checkpoint", "import", agent1, "-"},
	{"permissions", agent1}, {"answer", agent1, "q1", "once"}, {"exec", agent1, "--", "ls"}, {"reconcile"}, {"inspect", "11"},
}

func TestNoDaemonIsOneLine(t *testing.T) {
	t.Parallel()
	host := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	const want = "alineod: no daemon answers at http://DAEMON (connect: no such file or directory); start one with `alineod serve`\n"
	for _, args := range append(asking, []string{"run", "-"}) {
		got := command(t, host, "{}", clockwork.NewRealClock(), args...)
		if diff := cmp.Diff(ran{exitNoDaemon, "", want}, got, cmp.AllowUnexported(ran{})); diff != "" {
			t.Errorf("%v (-want +got):\n%s", args, diff)
		}
	}
	if got := command(t, host, "", clockwork.NewRealClock(), "health"); got.code != exitFailed || got.err != want || got.out != "" {
		t.Errorf("health: %+v", got)
	}
	if got := command(t, host, "", clockwork.NewRealClock(), "version"); got.code != exitOK || got.out != "client  dev\ndaemon  none at http://DAEMON\n" || got.err != "" {
		t.Errorf("version: %+v", got)
	}
	if got := command(t, host, "", clockwork.NewRealClock(), "--json", "version"); !strings.Contains(got.out, `"daemon": null`) {
		t.Errorf("version: %+v", got)
	}
}

func TestTheDaemonsNo(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]int{400: exitUsage, 401: exitFailed, 404: exitNotFound, 409: exitConflict, 500: exitFailed, 502: exitFailed} {
		host := newFake(t, nil)
		body := answer{status, `{"error":"the\u001b[2J reason","code":"c","fields":[{"path":"a.b","message":"is wrong"}]}`}
		for _, args := range asking {
			if strings.Contains(strings.Join(args, " "), "logs") && status >= 500 {
				continue // a stream is tried again
			}
			host.routes = everything()
			for route := range host.routes {
				host.routes[route] = []answer{body}
			}
			got := host.run(args...)
			if want := (ran{code, "", "alineod: the[2J reason\n  a.b: is wrong\n"}); got != want {
				t.Errorf("%d to %v: %+v", status, args, got)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{\n\"a\": 1,\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		says string
	}{
		{"bogus", "unknown command"},
		{"--bogus", "unknown flag"},
		{"ps extra", "unknown command"},
		{"inspect", "accepts 1 arg(s)"},
		{"checkpoint", "give one of export, import, ls, restore, take"},
		{"checkpoint bogus", `"bogus" is none of`},
		{"ledger", "give one of"},
		{"run " + bad, "line 3"},
		{"run /none/agent.json", "no such file"},
		{"run - --wait", "need a prompt"},
		{"run - -p x --wait --follow", "not both"},
		{"run - -p -", "both come from stdin"},
		{"stop " + agent1 + " --mode maim", "none of abort, drain, stop"},
		{"answer " + agent1 + " q17 perhaps", "none of once, always, reject"},
		{"checkpoint restore " + agent1 + " last", "not the number of a turn"},
		{"exec " + agent1, "give an agent and a command"},
		{"exec " + agent1 + " -e X -- ls", "not NAME=VALUE"},
		{"logs " + agent1 + " --after -1", "not negative"},
		{"inspect 11", "not unique: it begins " + agent1 + ", " + agent2},
		{"--host nowhere ps", "not an address"},
	} {
		got := command(t, host.url, "{}", clockwork.NewRealClock(), strings.Fields(tt.args)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, tt.says) {
			t.Errorf("%s: %+v; want %q", tt.args, got, tt.says)
		}
	}
	for _, args := range []string{"inspect beef", "reattach beef", "logs beef", "answer " + agent1 + " z once"} {
		if got := host.run(strings.Fields(args)...); got.code != exitNotFound || !strings.Contains(got.err, "no ") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	for _, asked := range host.did() {
		if strings.HasPrefix(asked, "POST") {
			t.Errorf("a wrong command line sent %s", asked)
		}
	}
}

func TestTokenAndHostComeFromTheEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{envHost: "http://e:1", envToken: "t"}
	a := &app{getenv: func(name string) string { return env[name] }, clock: clockwork.NewRealClock()}
	if got := a.connect().Address(); got != "http://e:1" {
		t.Errorf("from the environment: %s", got)
	}
	a.host = "http://f:1"
	if got := a.connect().Address(); got != "http://f:1" {
		t.Errorf("a flag comes first: %s", got)
	}
	env, a.host = nil, ""
	if got := a.connect().Address(); got != "http://127.0.0.1:4600" {
		t.Errorf("by default: %s", got)
	}
}

func TestSpecCheckOfWrongSpecs(t *testing.T) {
	t.Parallel()
	got := command(t, "", `{"harness":"nope"}`, clockwork.NewRealClock(), "spec", "check", "-")
	if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "alineod: invalid spec\n  harness: ") {
		t.Errorf("%+v", got)
	}
	got = command(t, "", `{"harness":"nope"}`, clockwork.NewRealClock(), "spec", "check", "-", "--json")
	if got.code != exitUsage || got.err != "" || !strings.Contains(got.out, `"path": "harness"`) || !strings.Contains(got.out, `"ok": false`) {
		t.Errorf("%+v", got)
	}
	valid(t, got.out)
	if got := command(t, "", "", clockwork.NewRealClock(), "spec", "schema"); got.code != exitOK || !strings.Contains(got.out, "$schema") {
		t.Errorf("schema: %+v", got)
	}
}

func TestConfigCheckOfAWrongConfiguration(t *testing.T) {
	t.Parallel()
	args := []string{"config", "check", "--state-dir", "/s", "--runtime", "moon", "--log-level", "loud"}
	got := command(t, "", "", clockwork.NewRealClock(), args...)
	if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, "\n  runtime (flag --runtime): ") || !strings.Contains(got.err, "\n  log.level") {
		t.Errorf("%+v", got)
	}
	got = command(t, "", "", clockwork.NewRealClock(), append(args, "--json")...)
	if got.code != exitUsage || got.err != "" || !strings.Contains(got.out, `"field": "runtime"`) {
		t.Errorf("%+v", got)
	}
	valid(t, got.out)
}

func TestLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	on := func(args ...string) ran {
		t.Helper()
		got := command(t, "", "", clockwork.NewRealClock(), append(args, "--state-dir", dir)...)
		got.out, got.err = strings.ReplaceAll(got.out, dir, "DIR"), strings.ReplaceAll(got.err, dir, "DIR")
		return got
	}
	for _, verb := range []string{"verify", "rebuild"} {
		if got := on("ledger", verb); got.code != exitNotFound || !strings.Contains(got.err, "no ledger at DIR/ledger.db") {
			t.Errorf("%s of nothing: %+v", verb, got)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("a look made %v", left)
	}

	lock, err := ledger.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(t.Context(), filepath.Join(dir, "ledger.db"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Append(t.Context(), ledger.Batch{Entries: []ledger.Entry{
		{RunID: run1, Event: ledger.RunStarted, Payload: ledger.RunStartedPayload{RootAgentID: agent1, CloseWhen: "explicit"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	// While a daemon has it.
	if got := on("ledger", "verify"); got != (ran{0, "DIR/ledger.db: 1 events, ok\n", ""}) {
		t.Errorf("verify beside a daemon: %+v", got)
	}
	got := on("ledger", "rebuild")
	want := fmt.Sprintf("alineod: a daemon has the state directory; stop it first: DIR: %v (pid %d)\n", ledger.ErrLocked, os.Getpid())
	if got != (ran{exitConflict, "", want}) {
		t.Errorf("rebuild beside a daemon: %+v, want %q", got, want)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	const report = "{\n  \"ledger\": \"DIR/ledger.db\",\n  \"events\": 1,\n  \"ok\": true,\n  \"differences\": [],\n  \"notes\": []\n}\n"
	for _, verb := range []string{"rebuild", "verify"} {
		if got := on("--json", "ledger", verb); got != (ran{0, report, ""}) {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ledger.db"), []byte(strings.Repeat("no database", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := on("ledger", "verify"); got.code != exitFailed || got.out != "" || !strings.Contains(got.err, "DIR/ledger.db") {
		t.Errorf("verify of a damaged file: %+v", got)
	}
}

func TestHealthOfADaemonThatRecovers(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	host.routes["GET /readyz"] = []answer{{503, `{"ready":false,"recovered":1,"total":3}`}}
	if got := host.run("health"); got.code != exitOK {
		t.Errorf("it is up: %+v", got)
	}
	if got := host.run("health", "--ready"); got != (ran{exitFailed, "", "alineod: recovering 1/3\n"}) {
		t.Errorf("it is not ready: %+v", got)
	}
	got := host.run("health", "--ready", "--json")
	if got.code != exitFailed || got.err != "" || !strings.Contains(got.out, `"recovered": 1`) {
		t.Errorf("it is not ready: %+v", got)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	host := newFake(t, everything())
	for args, want := range map[string]string{
		"inspect a_11a":              agent1 + "\tfixer\n:4\n",
		"reattach ":                  box1 + "\n:4\n",
		"answer " + agent1 + " q17 ": "once\nalways\nreject\n:4\n",
	} {
		got := host.run(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if got.code != 0 || got.out != want {
			t.Errorf("%q: %+v", args, got)
		}
	}
	none := command(t, "unix:///none", "", clockwork.NewRealClock(), "__complete", "inspect", "")
	if none.code != 0 || none.out != ":4\n" {
		t.Errorf("without a daemon: %+v", none)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := host.run("completion", shell); got.code != 0 || !strings.Contains(got.out, "alineod") {
			t.Errorf("%s: exit %d", shell, got.code)
		}
	}
}
