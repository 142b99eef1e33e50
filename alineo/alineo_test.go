package alineo_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/alineo"
)

// victimEnv names the state directory of a program that a test will kill.
const victimEnv = "ALINEO_TEST_VICTIM"

func TestMain(m *testing.M) {
	alineo.Init() // this very program is what runs inside the sandboxes
	if dir := os.Getenv(victimEnv); dir != "" {
		victim(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

const patience = 90 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, ctx context.Context, dir string) *alineo.Swarm {
	t.Helper()
	s, err := alineo.Open(ctx, alineo.Options{StateDir: dir, Runtime: alineo.Local})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// clear removes what the agents of a test left running.
func clear(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := testContext(t)
		s, err := alineo.Open(ctx, alineo.Options{StateDir: dir, Runtime: alineo.Local})
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		agents, err := s.Agents(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, a := range agents {
			if err := a.Stop(ctx, alineo.Abort); err != nil && !errors.Is(err, alineo.ErrConflict) {
				t.Error(err)
			}
			for e, err := range a.Events(ctx, 0) {
				if err != nil || e.Name == "agent.ended" {
					break
				}
			}
		}
	})
}

var spec = map[string]any{"harness": "scripted", "checkpoint": true}

func wantResult(t *testing.T, r alineo.Result, err error, outcome, text string) {
	t.Helper()
	if err != nil || r.Outcome != outcome || r.Text != text {
		t.Errorf("got %+v, %v; want %s %q", r, err, outcome, text)
	}
}

// TestSwarm is the life of an agent through two programs.
func TestSwarm(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	clear(t, dir)
	s := open(t, ctx, dir)
	a, err := s.Start(ctx, spec, alineo.StartOptions{Key: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Start(ctx, spec, alineo.StartOptions{Key: "one"}); err != nil || again.ID() != a.ID() {
		t.Errorf("the same key gave %v, %v", again, err)
	}
	r, err := a.Ask(ctx, "write note.txt kept\nsay one")
	wantResult(t, r, err, "success", "one")
	for e, err := range a.Events(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "agent.checkpointed" {
			break
		}
	}
	s.Close()

	s = open(t, ctx, dir)
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	a, err = s.Agent(ctx, a.ID())
	if err != nil {
		t.Fatal(err)
	}
	r, err = a.Ask(ctx, "count")
	wantResult(t, r, err, "success", "count: 4")
	awaitCheckpoint(t, ctx, a, 2)
	state, err := a.State(ctx)
	if err != nil || !state.Promptable() || state.Isolated {
		t.Fatalf("%+v, %v", state, err)
	}
	for _, way := range []struct {
		do   func(context.Context, string) (*alineo.Agent, alineo.Back, error)
		rung string
	}{{s.Attach, "attached"}, {s.Reattach, "reattached"}, {s.Resume, "resumed"}} {
		got, back, err := way.do(ctx, state.SandboxID)
		if err != nil || got.ID() != a.ID() || back.Rung != way.rung || back.SandboxID != state.SandboxID {
			t.Errorf("%s: %v, %+v, %v", way.rung, got, back, err)
		}
	}
	back, err := a.Restore(ctx, 1)
	if err != nil || back.Rung != "restored" || back.CheckpointTurn != 1 || back.SandboxID == state.SandboxID {
		t.Errorf("restore: %+v, %v", back, err)
	}
	r, err = a.Ask(ctx, "count")
	wantResult(t, r, err, "success", "count: 4")
	awaitCheckpoint(t, ctx, a, 3)
	cp, err := a.TakeCheckpoint(ctx)
	if err != nil || cp.Turn != 3 || cp.Files == 0 || cp.TakenAt.IsZero() {
		t.Errorf("checkpoint: %+v, %v", cp, err)
	}
	archive, err := a.Archive(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	names := map[string]bool{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[filepath.Base(h.Name)] = true
	}
	if !names["note.txt"] {
		t.Errorf("the archive holds %v", names)
	}
}

func awaitCheckpoint(t *testing.T, ctx context.Context, a *alineo.Agent, turn int) {
	t.Helper()
	for e, err := range a.Events(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != "agent.checkpointed" {
			continue
		}
		if kept, err := a.Checkpoints(ctx); err != nil || kept[0].Turn == turn {
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// TestSpawn: three workers and one that gathers.
func TestSpawn(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	clear(t, dir)
	s := open(t, ctx, dir)
	root, err := s.Start(ctx, map[string]any{"harness": "scripted", "spawnDepth": 1}, alineo.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Last(ctx); !errors.Is(err, alineo.ErrConflict) {
		t.Errorf("the result of an agent without a turn: %v", err)
	}
	var workers []*alineo.Agent
	for n := range 3 {
		w, err := root.Spawn(ctx, spec, alineo.SpawnOptions{Prompt: fmt.Sprintf("say part %d", n), Key: fmt.Sprint(n)})
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	if again, err := root.Spawn(ctx, spec, alineo.SpawnOptions{Prompt: "say part 0", Key: "0"}); err != nil || again.ID() != workers[0].ID() {
		t.Errorf("the same key: %v, %v", again, err)
	}
	gather, err := root.Spawn(ctx, spec, alineo.SpawnOptions{Prompt: `run cat "$ALINEO_INPUTS"/*.txt | grep -o part > parts; [ $(wc -l < parts) = 3 ] && rm parts` + "\nsay gathered",
		WaitFor: workers})
	if err != nil {
		t.Fatal(err)
	}
	r, err := gather.Last(ctx)
	wantResult(t, r, err, "success", "gathered")
	for e, err := range gather.Events(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "tool.ended" {
			if !strings.Contains(string(e.Data), `"isError":false`) {
				t.Errorf("the inputs: %s", e.Data)
			}
			break
		}
	}
	if _, err := workers[0].Spawn(ctx, []byte("{"), alineo.SpawnOptions{}); !errors.Is(err, alineo.ErrInvalid) {
		t.Errorf("no spec: %v", err)
	}
}

// victim starts an agent, prompts it, says so and waits to be killed.
func victim(dir string) {
	ctx := context.Background()
	s, err := alineo.Open(ctx, alineo.Options{StateDir: dir, Runtime: alineo.Local})
	if err == nil {
		var a *alineo.Agent
		if a, err = s.Start(ctx, spec, alineo.StartOptions{}); err == nil {
			_, err = a.Prompt(ctx, "run while [ ! -e "+filepath.Join(dir, "gate")+" ]; do sleep 0.02; done\nsay through", alineo.PromptOptions{})
		}
		for e := range a.Events(ctx, 0) {
			if e.Name == "tool.started" {
				fmt.Println("working")
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKilledProgram: the agents of a program that was killed in mid-turn are
// the next program's, and the turn goes on.
func TestKilledProgram(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	clear(t, dir)
	program := exec.CommandContext(ctx, os.Args[0])
	program.Env = append(os.Environ(), victimEnv+"="+dir)
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	program.Stderr = os.Stderr
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = program.Process.Kill()
	_ = program.Wait()

	s := open(t, ctx, dir)
	agents, err := s.Agents(ctx)
	if err != nil || len(agents) != 1 {
		t.Fatalf("%d agents, %v", len(agents), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var ended, recovered string
	for e, err := range agents[0].Events(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Name {
		case "agent.recovered":
			recovered = string(e.Data)
		case "turn.ended":
			ended = string(e.Data)
		}
		if ended != "" && recovered != "" {
			break
		}
	}
	for what, got := range map[string]string{`"rung":"reattached"`: recovered, `"outcome":"success"`: ended, `"result":"through"`: ended} {
		if !strings.Contains(got, what) {
			t.Errorf("%s does not hold %s", got, what)
		}
	}
}

// TestRefusals: one clear error of a kind for each.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	s := open(t, ctx, dir)
	if _, err := alineo.Open(ctx, alineo.Options{StateDir: dir, Runtime: alineo.Local}); !errors.Is(err, alineo.ErrInUse) {
		t.Errorf("a second program: %v", err)
	}
	for _, o := range []alineo.Options{{}, {StateDir: dir, Runtime: "podman"}, {StateDir: dir, Retain: -1}} {
		if _, err := alineo.Open(ctx, o); !errors.Is(err, alineo.ErrInvalid) {
			t.Errorf("Open(%+v): %v", o, err)
		}
	}
	_, err := s.Start(ctx, map[string]any{"harness": "none", "resources": map[string]any{"cpu": 3}}, alineo.StartOptions{})
	var of *alineo.Error
	if !errors.As(err, &of) || !errors.Is(err, alineo.ErrInvalid) || len(of.Fields) != 2 {
		t.Errorf("a wrong spec: %v, %+v", err, of)
	}
	if _, err := s.Start(ctx, []byte("{"), alineo.StartOptions{}); !errors.Is(err, alineo.ErrInvalid) {
		t.Errorf("no JSON: %v", err)
	}
	if _, err := s.Start(ctx, spec, alineo.StartOptions{Key: "k"}); err != nil {
		t.Error(err)
	}
	clear(t, dir)
	if _, err := s.Start(ctx, map[string]any{"harness": "scripted"}, alineo.StartOptions{Key: "k"}); !errors.Is(err, alineo.ErrConflict) {
		t.Errorf("a key used for something else: %v", err)
	}
	if _, err := s.Start(ctx, map[string]any{"harness": "scripted", "env": map[string]string{"A": "${ALINEO_TEST_UNSET}"}}, alineo.StartOptions{}); err == nil || !strings.Contains(err.Error(), "ALINEO_TEST_UNSET") {
		t.Errorf("an unset variable: %v", err)
	}
	if _, err := s.Agent(ctx, "a_ffffffffffff"); !errors.Is(err, alineo.ErrNotFound) {
		t.Errorf("an unknown agent: %v", err)
	}
	if _, _, err := s.Reattach(ctx, "s_ffffffffffff"); !errors.Is(err, alineo.ErrNotFound) {
		t.Errorf("an unknown sandbox: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Start(ended, spec, alineo.StartOptions{}); err == nil {
		t.Error("an ended context starts an agent")
	}
	s.Close()
}
