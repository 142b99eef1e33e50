package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

const scripted = `{"harness": "scripted", "checkpoint": true, "env": {"TOKEN": "${ALINEOD_TEST_SECRET}"}}`

// processes finds the processes of a sandbox by what stands on their command
// line beside its id.
func processes(t testing.TB, sandbox, word string) []int {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", word+".*"+sandbox).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(out)) {
		var pid int
		if _, err := fmt.Sscan(f, &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func killAll(t testing.TB, pids []int) {
	t.Helper()
	if len(pids) == 0 {
		t.Fatal("no such process")
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// recoveries lists the rungs an agent came back on, in order.
func (d *daemon) recoveries(agent string) []string {
	d.t.Helper()
	a, err := d.Agent(context.Background(), agent)
	if err != nil {
		d.t.Fatal(err)
	}
	var rungs []string
	for _, e := range d.allEvents(a.RunID) {
		if e.Name == ledger.AgentRecovered && e.field("agentId") == agent {
			rungs = append(rungs, e.field("rung"))
		}
	}
	return rungs
}

func (d *daemon) awaitRung(agent string, n int) string {
	d.t.Helper()
	var rungs []string
	d.eventually(fmt.Sprintf("recovery %d of %s", n, agent), func(context.Context) (bool, error) {
		rungs = d.recoveries(agent)
		return len(rungs) >= n, nil
	})
	return rungs[n-1]
}

// inTurn waits until an agent's harness is in the turn.
func (d *daemon) inTurn(agent, turn string) {
	d.t.Helper()
	d.eventually("the turn to run", func(ctx context.Context) (bool, error) {
		a, err := d.Agent(ctx, agent)
		return err == nil && a.SessionStats != nil && a.SessionStats.TurnID == turn && a.State == swarm.StateRunning, err
	})
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func result(v swarm.ResultView) string {
	text := "-"
	if v.Result != nil {
		text = *v.Result
	}
	return *v.Outcome + " " + text
}

// TestLadder climbs every rung, one after another, with one agent.
func TestLadder(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(scripted, "write note.txt first\nsay one")
	want(t, "first turn", result(d.result(a)), "success one")

	// The daemon dies in mid-turn; the turn goes on, and its gap is not lost.
	gate := filepath.Join(d.dir, "gate")
	turn := d.prompt(a, "run while [ ! -e "+gate+" ]; do sleep 0.02; done; echo through\nsay two")
	d.inTurn(a, turn)
	d.kill()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	want(t, "turn over the daemon's death", result(d.result(a)), "success two")
	want(t, "rung", d.awaitRung(a, 1), "reattached")

	// The bridge dies in mid-turn.
	turn = d.prompt(a, "sleep 600")
	d.inTurn(a, turn)
	before := d.await(a, swarm.StateRunning)
	killAll(t, processes(t, *before.SandboxID, "bridge serve"))
	want(t, "rung", d.awaitRung(a, 2), "resumed")
	want(t, "turn over the bridge's death", *d.result(a).Outcome, "interrupted")
	want(t, "next turn", result(d.ask(a, "say three")), "success three")

	// The harness dies in mid-turn.
	turn = d.prompt(a, "sleep 600")
	d.inTurn(a, turn)
	now, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	killAll(t, []int{now.SessionStats.PID})
	want(t, "rung", d.awaitRung(a, 3), "resumed")
	want(t, "turn over the harness's death", *d.result(a).Outcome, "interrupted")

	// The first process dies: the sandbox is stopped.
	killAll(t, processes(t, *before.SandboxID, "bridge init"))
	want(t, "rung", d.awaitRung(a, 4), "restarted")
	want(t, "file", result(d.ask(a, "run cat note.txt\nsay four")), "success four")

	// The sandbox is destroyed, twice in a row.
	for n := range 2 {
		v, err := d.Agent(context.Background(), a)
		if err != nil {
			t.Fatal(err)
		}
		d.destroy(*v.SandboxID)
		want(t, "rung", d.awaitRung(a, 5+n), "restored")
		after := d.await(a, swarm.StateDone, swarm.StateFailed)
		if *after.SandboxID == *v.SandboxID {
			t.Error("restored into the same sandbox")
		}
	}
	v := d.ask(a, "run cat note.txt\ncount")
	if !strings.HasPrefix(result(v), "success count: ") || result(v) == "success count: 0" {
		t.Errorf("conversation after the restore: %s", result(v))
	}
	d.settle()
}

// destroy kills all of a sandbox and deletes its directory.
func (d *daemon) destroy(sandbox string) {
	d.t.Helper()
	dir := filepath.Join(d.dir, "sandboxes", sandbox)
	if err := os.Rename(dir, dir+".gone"); err != nil {
		d.t.Fatal(err)
	}
	killAll(d.t, processes(d.t, sandbox, "alineod"))
	if err := os.RemoveAll(dir + ".gone"); err != nil {
		d.t.Fatal(err)
	}
}

// TestDamagedCheckpoint: the next older one is used.
func TestDamagedCheckpoint(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(scripted, "say one")
	d.result(a)
	d.ask(a, "say two")
	d.ask(a, "say three")
	var views []swarm.CheckpointView
	d.eventually("three checkpoints", func(ctx context.Context) (bool, error) {
		var err error
		views, err = d.Checkpoints(ctx, a)
		return len(views) == 3, err
	})
	file := func(i int) string { return filepath.Join(d.dir, "checkpoints", views[i].SnapshotRef) }
	if err := os.Truncate(file(0), 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file(1)); err != nil {
		t.Fatal(err)
	}
	v, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	d.destroy(*v.SandboxID)
	want(t, "rung", d.awaitRung(a, 1), "restored")
	want(t, "conversation", result(d.ask(a, "count")), "success count: 2")
	d.settle()
}

// TestCrashPoints kills the daemon at every named point between an intent, its
// side effect and its record.
func TestCrashPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	points := []string{
		"swarm.run-started", "swarm.turn-requested", "swarm.sandbox-intended", "local.create", "local.created", "local.spawned",
		"local.started", "swarm.sandbox-created", "swarm.before-provisioned", "swarm.after-provisioned", "swarm.before-deliver",
		"swarm.after-deliver", "swarm.before-ingest", "swarm.after-ingest", "checkpoint.written", "checkpoint.renamed",
		"swarm.checkpoint-stored", "swarm.before-checkpointed", "swarm.after-checkpointed", "ledger.before-commit", "ledger.after-commit",
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			d.kill()
			d.start("ALINEOD_FAILPOINT=" + point)
			key := "the one request"
			ctx := context.Background()
			req := client.RunRequest{Spec: []byte(scripted), Prompt: "run echo x >> effects\nsay one", IdempotencyKey: key}
			first, _ := d.StartRun(ctx, req)
			if first.RootAgentID != "" { // so that points of a prompt are met too
				_, _ = d.Prompt(ctx, first.RootAgentID, client.PromptRequest{Text: "say two", IdempotencyKey: key})
			}
			d.awaitDeath()
			d.start()
			again, err := d.StartRun(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if first.RootAgentID != "" && again.RootAgentID != first.RootAgentID {
				t.Errorf("the repeated request made %s beside %s", again.RootAgentID, first.RootAgentID)
			}
			a := again.RootAgentID
			if _, err := d.Prompt(ctx, a, client.PromptRequest{Text: "say two", IdempotencyKey: key}); err != nil {
				t.Fatal(err)
			}
			want(t, "result", result(d.result(a)), "success two")
			v := d.ask(a, "run grep -c x effects\nsay three")
			want(t, "result", result(v), "success three")
			agents, err := d.Agents(ctx)
			if err != nil || len(agents) != 1 {
				t.Errorf("%d agents (%v), want 1", len(agents), err)
			}
			if b, err := os.ReadFile(filepath.Join(d.dir, "sandboxes", *agents[0].SandboxID, "home", "effects")); err != nil || string(b) != "x\n" {
				t.Errorf("effects of the one turn: %q, %v", b, err)
			}
			d.settle()
		})
	}
}

// TestCrashPointsOfRecovery kills the daemon while it restores an agent.
func TestCrashPointsOfRecovery(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	for _, point := range []string{"swarm.sandbox-intended", "local.created", "local.started", "swarm.climbed", "swarm.before-recovered",
		"swarm.after-recovered", "swarm.sandbox-removed"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			a := d.run(scripted, "write f kept\nsay one")
			d.result(a)
			d.eventually("a checkpoint", func(ctx context.Context) (bool, error) {
				v, err := d.Checkpoints(ctx, a)
				return len(v) == 1, err
			})
			v, err := d.Agent(context.Background(), a)
			if err != nil {
				t.Fatal(err)
			}
			d.kill()
			d.destroy(*v.SandboxID)
			d.launch("ALINEOD_FAILPOINT=" + point)
			d.awaitDeath()
			d.start()
			d.ready()
			after := d.await(a, swarm.StateDone)
			if *after.SandboxID == *v.SandboxID {
				t.Error("the agent claims the sandbox that is gone")
			}
			want(t, "conversation", result(d.ask(a, "run cat f\ncount")), "success count: "+countAfterFirst)
			d.eventually("one sandbox to be left", func(ctx context.Context) (bool, error) {
				if _, err := d.Reconcile(ctx, false); err != nil {
					return false, err
				}
				left, err := os.ReadDir(filepath.Join(d.dir, "sandboxes"))
				return len(left) == 1, err
			})
			d.settle()
		})
	}
}

// countAfterFirst: prompt, tool call and its result, answer.
const countAfterFirst = "4"

// TestStop: stop keeps the file system, revive brings it back, abort is final.
func TestStop(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	ctx := context.Background()
	a := d.run(scripted, "write f kept\nsay one")
	d.result(a)
	if _, err := d.Stop(ctx, a, client.StopRequest{Mode: "stop"}); err != nil {
		t.Fatal(err)
	}
	d.await(a, swarm.StateStopped)
	d.restart()
	d.await(a, swarm.StateStopped)
	way, err := d.Revive(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "rung", way.Rung, "restarted")
	want(t, "after the revival", result(d.ask(a, "run cat f\nsay two")), "success two")
	turn := d.prompt(a, "sleep 600")
	d.inTurn(a, turn)
	if _, err := d.Stop(ctx, a, client.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	d.await(a, swarm.StateAborted)
	want(t, "outcome", *d.result(a).Outcome, "aborted")
	d.settle()
}

// TestPause: a paused agent is reattached without being thawed.
func TestPause(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	ctx := context.Background()
	a := d.run(scripted, "")
	turn := d.prompt(a, "run for i in $(seq 200); do echo $i > beat; sleep 0.02; done\nsay one")
	d.inTurn(a, turn)
	if _, err := d.Pause(ctx, a); err != nil {
		t.Fatal(err)
	}
	v := d.await(a, swarm.StatePaused)
	beat := func() string {
		b, _ := os.ReadFile(filepath.Join(d.dir, "sandboxes", *v.SandboxID, "home", "beat"))
		return string(b)
	}
	d.restart()
	want(t, "rung", d.awaitRung(a, 1), "reattached")
	d.await(a, swarm.StatePaused)
	frozen := beat()
	if _, err := d.Unpause(ctx, a); err != nil {
		t.Fatal(err)
	}
	want(t, "same turn", result(d.result(a)), "success one")
	if beat() == frozen && frozen == "200\n" {
		t.Error("it was never frozen")
	}
	d.settle()
}

// TestKillLoop kills the daemon at random moments under a swarm at work.
func TestKillLoop(t *testing.T) {
	t.Parallel()
	rounds, agents := 50, 10
	if testing.Short() {
		rounds = 5
	}
	d := newDaemon(t)
	var ids []string
	for i := range agents {
		ids = append(ids, d.run(scripted, fmt.Sprintf("say agent %d", i)))
	}
	expected := map[string][]string{}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		for i, id := range ids {
			if (round+i)%3 != 0 {
				continue
			}
			text := fmt.Sprintf("round %d", round)
			key := fmt.Sprintf("%s/%d", id, round)
			d.eventually("a prompt to be taken", func(ctx context.Context) (bool, error) {
				_, err := d.Prompt(ctx, id, client.PromptRequest{Text: fmt.Sprintf("run echo %d >> rounds\nsleep 0.0%d\nsay %s", round, i, text), IdempotencyKey: key})
				return err == nil, nil
			})
			expected[id] = append(expected[id], text)
		}
		// A random moment is what this test is about; nothing waits on it.
		<-time.After(time.Duration(rng.IntN(150)) * time.Millisecond)
		d.restart()
	}
	for _, id := range ids {
		d.result(id)
	}
	d.eventually("every turn to have ended", func(ctx context.Context) (bool, error) {
		for _, id := range ids {
			view, err := d.Transcript(ctx, id, false)
			if err != nil {
				return false, err
			}
			if slices.ContainsFunc(view.Turns, func(turn swarm.TranscriptTurn) bool { return turn.Outcome == "" }) {
				return false, nil
			}
		}
		return true, nil
	})
	for _, id := range ids {
		view, err := d.Transcript(context.Background(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "turns of "+id, len(view.Turns), len(expected[id])+1)
		var said []string
		for _, turn := range view.Turns[1:] {
			want(t, "outcome", turn.Outcome, "success")
			said = append(said, turn.Messages[len(turn.Messages)-1].Text)
		}
		want(t, "results of "+id, said, expected[id])
	}
	d.settle()
}
