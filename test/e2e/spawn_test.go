package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
	"github.com/alineod/alineod/internal/swarm"
)

const treeSpec = `{"harness": "scripted", "checkpoint": true, "spawnDepth": 2}`

// TestSpawnCrashPoints kills the daemon between the request of a spawn, the
// copy of the parent, and their records: there is one child, in one sandbox,
// with one copy, and what it waited for is there before its one first prompt.
func TestSpawnCrashPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	for _, point := range []string{"swarm.spawned", "swarm.wait-resolved", "local.commit", "swarm.forked", "swarm.after-forked",
		"swarm.sandbox-intended", "local.created", "swarm.before-provisioned", "swarm.after-provisioned"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			root := d.run(treeSpec, "write note.txt inherited\nsay ready")
			d.result(root)
			v := d.await(root, swarm.StateDone)
			d.checkpoints(root, 1)
			ctx := context.Background()
			req := client.SpawnRequest{ParentAgentID: root, Spec: json.RawMessage(scripted), WaitFor: json.RawMessage(fmt.Sprintf("[%q]", root)),
				Prompt: `run echo x >> effects; cat note.txt "$ALINEO_INPUTS"/*.txt > seen` + "\nsay done", IdempotencyKey: "the child"}
			d.kill()
			d.start("ALINEOD_FAILPOINT=" + point)
			d.ready()
			_, _ = d.Spawn(ctx, v.RunID, req)
			d.awaitDeath()
			d.start()
			answer, err := d.Spawn(ctx, v.RunID, req)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "child", result(d.result(answer.AgentID)), "success done")
			want(t, "runs of its prompt", d.home(answer.AgentID, "effects"), "x\n")
			want(t, "what it saw", d.home(answer.AgentID, "seen"), "inherited\nready")
			agents, err := d.Agents(ctx)
			if err != nil || len(agents) != 2 {
				t.Errorf("%d agents, %v", len(agents), err)
			}
			d.eventually("one sandbox for each agent, and one copy", func(ctx context.Context) (bool, error) {
				if _, err := d.Reconcile(ctx, false); err != nil {
					return false, err
				}
				sandboxes, err := os.ReadDir(filepath.Join(d.dir, "sandboxes"))
				if err != nil {
					return false, err
				}
				images, err := os.ReadDir(filepath.Join(d.dir, "local-images"))
				return len(sandboxes) == 2 && len(images) == 1, err
			})
			d.settle()
		})
	}
}

// TestDockerSpawn: a child has its parent's whole file system, also of one in
// mid-turn; and has it still when its container is lost.
func TestDockerSpawn(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	d := newDockerDaemon(t)
	ctx := context.Background()
	root := d.run(smallSpec(image, `, "spawnDepth": 1`), "write note.txt inherited\nsay ready")
	want(t, "root", result(d.result(root)), "success ready")
	v := d.await(root, swarm.StateDone)
	docker(t, "exec", "-u", "0:0", container(*v.SandboxID), "sh", "-c", "mkdir -p /srv && echo outside > /srv/tool")
	turn := d.prompt(root, "run while [ ! -e /tmp/gate ]; do sleep 0.02; done\nsay through")
	d.inTurn(root, turn)
	var children []string
	for range 2 {
		answer, err := d.Spawn(ctx, v.RunID, client.SpawnRequest{ParentAgentID: root, Spec: json.RawMessage(smallSpec(image, "")),
			Prompt: "run cat note.txt /srv/tool > seen\nsay done"})
		if err != nil {
			t.Fatal(err)
		}
		children = append(children, answer.AgentID)
	}
	for _, id := range children {
		want(t, "child", result(d.result(id)), "success done")
		want(t, "what it saw", d.in(id, "cat /home/agent/seen"), "inherited\noutside")
		d.checkpoints(id, 1)
	}
	want(t, "the parent, after its copies", len(d.recoveries(root)), 0)
	d.in(root, "touch /tmp/gate")
	want(t, "the parent's turn", result(d.result(root)), "success through")

	lost := d.await(children[0], swarm.StateDone)
	docker(t, "rm", "-f", container(*lost.SandboxID))
	want(t, "rung", d.awaitRung(children[0], 1), "restored")
	d.await(children[0], swarm.StateDone)
	want(t, "inherited outside the home, after a restore", d.in(children[0], "cat /srv/tool"), "outside")
	want(t, "made in the home", d.in(children[0], "cat /home/agent/seen"), "inherited\noutside")
	d.oneContainer(children[0])

	if _, err := d.Stop(ctx, children[1], client.StopRequest{Mode: "abort"}); err != nil {
		t.Fatal(err)
	}
	d.await(children[1], swarm.StateAborted)
	if _, err := d.Reconcile(ctx, false); err != nil {
		t.Fatal(err)
	}
	want(t, "copies left", docker(t, "images", "-q", "--filter", "label=alineo.fork="+children[1]), "")
	d.settle()
}

// TestExampleFanout runs the example client against a daemon.
func TestExampleFanout(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	d := newDaemon(t)
	d.kill()
	d.listen = address
	d.start()
	out, err := exec.Command("go", "run", "../../examples/fanout", "-daemon", "http://"+address).CombinedOutput()
	want(t, "what it prints", string(out), "part one\npart two\npart three\ngathered\n")
	if err != nil {
		t.Error(err)
	}
	d.settle()
}

// TestKilledAtEveryStage kills the daemon again and again under a swarm whose
// agents are at every stage at once: being made, in a tool call, held by a wait,
// frozen, with prompts queued.
func TestKilledAtEveryStage(t *testing.T) {
	t.Parallel()
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	d := newDaemon(t)
	ctx := context.Background()
	root := d.run(treeSpec, "say ready")
	d.result(root)
	run := d.await(root, swarm.StateDone).RunID
	gate := filepath.Join(d.dir, "gate")
	hold := "run echo x >> runs; while [ ! -e " + gate + " ]; do sleep 0.02; done\n"
	spawn := func(key, prompt, waitFor string) string {
		t.Helper()
		req := client.SpawnRequest{ParentAgentID: root, Spec: json.RawMessage(scripted), Prompt: prompt, IdempotencyKey: key}
		if waitFor != "" {
			req.WaitFor = json.RawMessage(waitFor)
		}
		var id string
		d.eventually("a spawn to be taken", func(ctx context.Context) (bool, error) {
			answer, err := d.Spawn(ctx, run, req)
			id = answer.AgentID
			return err == nil, nil
		})
		return id
	}
	working, frozen, queued := spawn("working", hold+"say worked", ""), spawn("frozen", hold+"say thawed", ""), spawn("queued", hold+"say first", "")
	held := spawn("held", `run cat "$ALINEO_INPUTS"/*.txt > seen`+"\nsay gathered", fmt.Sprintf(`[%q, %q]`, working, queued))
	for _, id := range []string{working, frozen, queued} {
		d.await(id, swarm.StateRunning)
	}
	d.prompt(queued, "say second")
	d.eventually("the pause to be taken", func(ctx context.Context) (bool, error) {
		_, err := d.Pause(ctx, frozen)
		return err == nil, nil
	})
	made := []string{}
	rng := mathrand.New(mathrand.NewPCG(5, 6))
	for round := range rounds {
		made = append(made, spawn(fmt.Sprint("made ", round), fmt.Sprintf("say made %d", round), ""))
		// A random moment is what this test is about; nothing waits on it.
		<-time.After(time.Duration(rng.IntN(250)) * time.Millisecond)
		d.restart()
	}
	d.ready()
	for i, id := range made {
		want(t, "one that was being made", result(d.result(id)), fmt.Sprintf("success made %d", i))
	}
	want(t, "held", d.await(held, swarm.StateSpawning).State, swarm.StateSpawning)
	want(t, "frozen", d.await(frozen, swarm.StatePaused).State, swarm.StatePaused)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Unpause(ctx, frozen); err != nil {
		t.Fatal(err)
	}
	for id, text := range map[string]string{working: "worked", frozen: "thawed", queued: "second", held: "gathered"} {
		want(t, text, result(d.result(id)), "success "+text)
	}
	for _, id := range []string{working, frozen, queued} {
		want(t, "runs of the same turn", d.home(id, "runs"), "x\n")
	}
	if seen := d.home(held, "seen"); seen != "workedsecond" && seen != "secondworked" { // by the agents' ids
		t.Errorf("what the held one found: %q", seen)
	}
	agents, err := d.Agents(ctx)
	if err != nil || len(agents) != 5+rounds {
		t.Errorf("%d agents, %v", len(agents), err)
	}
	d.settle()
}
