package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
)

// TestOutput runs every command against a daemon that answers well, readable
// and with --json, and compares all that it prints and asks.
func TestOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	specFile := filepath.Join(dir, "agent.json")
	if err := os.WriteFile(specFile, []byte(`{"harness":"scripted","checkpoint":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	emptyFile := filepath.Join(dir, "alineod.yaml")
	if err := os.WriteFile(emptyFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"run":                {"run", specFile, "-p", "count", "--name", "fixer"},
		"run-wait":           {"run", specFile, "-p", "count", "--wait"},
		"run-follow":         {"run", specFile, "-p", "count", "--follow"},
		"run-quiet":          {"run", specFile, "-q", "--idempotency-key", "k1"},
		"ps":                 {"ps"},
		"ps-all":             {"ps", "-a"},
		"inspect":            {"inspect", "11aa"},
		"prompt":             {"prompt", agent1, "count"},
		"prompt-wait":        {"prompt", agent1, "count", "--wait"},
		"steer":              {"steer", agent1, "left"},
		"logs":               {"logs", "a_11aa"},
		"logs-run":           {"logs", "r_aa"},
		"result":             {"result", agent1},
		"transcript":         {"transcript", agent1},
		"stop":               {"stop", agent1, "--mode", "drain"},
		"pause":              {"pause", agent1},
		"unpause":            {"unpause", agent1},
		"revive":             {"revive", agent1},
		"recover":            {"recover", agent1},
		"reattach":           {"reattach", "s_b0"},
		"resume":             {"resume", box1},
		"attach":             {"attach", box1},
		"checkpoint-ls":      {"checkpoint", "ls", agent1},
		"checkpoint-take":    {"checkpoint", "take", agent1},
		"checkpoint-restore": {"checkpoint", "restore", agent1, "2"},
		"checkpoint-import":  {"checkpoint", "import", agent1, "-"},
		"permissions":        {"permissions", agent1},
		"answer":             {"answer", agent1, "q1", "once"},
		"exec":               {"exec", agent1, "-C", "/w", "-e", "A=b=c", "--timeout", "1500ms", "--", "sh", "-c", "exit 7"},
		"reconcile":          {"reconcile", "--dry-run"},
		"health":             {"health", "--ready"},
		"version":            {"version"},
		"spec-check":         {"spec", "check", specFile},
		"config-check":       {"config", "check", "--config", emptyFile, "--state-dir", "/s", "--listen", "127.0.0.1:1"},
	} {
		for _, form := range []string{"text", "json"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				args := args
				if form == "json" {
					args = append([]string{"--json"}, args...)
				}
				f := newFake(t, everything())
				got := command(t, f.url, "a tar", clockwork.NewFakeClockAt(now), args...)
				if form == "json" {
					valid(t, got.out)
				}
				all := fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s--- asked\n%s\n", got.code, got.out, got.err, strings.Join(f.did(), "\n"))
				golden(t, name+"."+form, strings.ReplaceAll(all, dir, "DIR"))
			})
		}
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	f := newFake(t, everything())
	// The newest that is not damaged, to stdout.
	if got := f.run("checkpoint", "export", agent1); got != (ran{0, "a tar", ""}) {
		t.Errorf("to stdout: %+v", got)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "c.tar")
	got := f.run("--json", "checkpoint", "export", agent1, "3", "-o", file)
	want := fmt.Sprintf("{\n  \"agentId\": %q,\n  \"turn\": 3,\n  \"file\": %q,\n  \"bytes\": 5\n}\n", agent1, file)
	if diff := cmp.Diff(ran{0, want, ""}, got, cmp.AllowUnexported(ran{})); diff != "" {
		t.Errorf("to a file (-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "a tar" {
		t.Errorf("the file has %q, %v", data, err)
	}
	// What cannot be had leaves no file behind.
	if got := f.run("checkpoint", "export", agent1, "8", "-o", filepath.Join(dir, "none.tar")); got.code != exitNotFound {
		t.Errorf("of a turn without one: %+v", got)
	}
	// Nor does an archive that breaks off.
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "half a")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer host.Close()
	for _, to := range []string{filepath.Join(dir, "half.tar"), "-"} {
		got := command(t, host.URL, "", clockwork.NewRealClock(), "checkpoint", "export", agent1, "3", "-o", to)
		if got.code != exitFailed || !strings.Contains(got.err, "exporting the checkpoint") {
			t.Errorf("broken off, to %s: %+v", to, got)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("the directory has %v", left)
	}
}

func TestHelpNamesExitCodes(t *testing.T) {
	t.Parallel()
	root := newRoot(&app{})
	for _, cmd := range root.Commands() {
		sub := append(cmd.Commands(), cmd)
		for _, c := range sub {
			if c.HasSubCommands() || cmd.Hidden || c.Name() == "help" || c.GroupID == "" && !c.Parent().HasParent() {
				continue
			}
			if !strings.Contains(c.Long, "Exit codes:") {
				t.Errorf("%s: the help does not tell its exit codes", c.CommandPath())
			}
		}
	}
}
