package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
	"github.com/alineod/alineod/internal/swarm"
)

// TestInside: a program in a sandbox spawns, waits, reads results, is told and
// remembers as its agent, and can do nothing else, nor see anybody else.
func TestInside(t *testing.T) {
	t.Parallel()
	newDaemon(t).inside("", "$HOME")
}

// TestDockerInside is the same where the sandbox has no network.
func TestDockerInside(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	newDockerDaemon(t).inside(image, "/home/agent")
}

// inside has the agents' homes at home, as a command in the sandbox sees it.
func (d *daemon) inside(image, home string) {
	t := d.t
	worker := fmt.Sprintf(`{"harness": "scripted", "image": %q}`, image)
	root := d.run(fmt.Sprintf(`{"harness": "scripted", "image": %q, "spawnDepth": 2}`, image), "say ready")
	stranger := d.run(worker, "say secret")
	d.result(stranger)
	d.result(root)
	at := func(agent, file string) string {
		t.Helper()
		a, err := d.Exec(context.Background(), agent, swarm.ExecRequest{Command: []string{"sh", "-c", "cat " + home + "/" + file}})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(a.Stdout)
	}
	d.ask(root, "write worker.json "+worker+`
run alineod spawn worker.json -p "say from below" > child && alineod await "$(cat child)" > /dev/null && alineod result "$(cat child)" > said
run alineod spawn worker.json -p 'run alineod memory set self k "[1]"; alineod ps > seen' --wait-for "$(cat child)" > second && alineod await "$(cat second)"
run alineod notify self --on "$(cat child)"; alineod ps > seen
run for c in "result `+stranger+`" "spawn `+stranger+` worker.json" "memory get `+stranger+` k" "stop $(cat child)" "exec $(cat child) -- true" "spawn worker.json --wait-for `+stranger+`"; do alineod $c >> refused 2>&1; echo "$?" >> codes; done`)
	child, second := at(root, "child"), at(root, "second")
	want(t, "the child's result", at(root, "said"), "from below")
	want(t, "exit codes of what is not its own", strings.Fields(at(root, "codes")), "[4 4 4 1 1 2]")
	seen := at(root, "seen")
	for _, id := range []string{root, child, second} {
		if !strings.Contains(seen, id) {
			t.Errorf("%s is not in\n%s", id, seen)
		}
	}
	if strings.Contains(seen, stranger) || strings.Contains(at(second, "seen"), root) {
		t.Errorf("an agent sees others:\n%s\n%s", seen, at(second, "seen"))
	}
	m, err := d.Memory(context.Background(), second, "k")
	want(t, "memory", string(m.Value), "[1]")
	if err != nil {
		t.Error(err)
	}
	inbox, err := d.Inbox(context.Background(), root)
	if err != nil || len(inbox.Pending)+len(inbox.Delivered) != 1 {
		t.Errorf("%+v, %v", inbox, err)
	}

	// A program that waits goes on over the daemon's death.
	gate := "run while [ ! -e gate ]; do sleep 0.05; done\nsay through"
	held, err := d.Spawn(context.Background(), d.await(root, swarm.StateDone).RunID,
		client.SpawnRequest{ParentAgentID: root, Spec: json.RawMessage(worker), Prompt: gate})
	if err != nil {
		t.Fatal(err)
	}
	d.await(held.AgentID, swarm.StateRunning)
	turn := d.prompt(root, "run touch waiting; alineod await "+held.AgentID+" > /dev/null && alineod result "+held.AgentID+" > late")
	d.inTurn(root, turn)
	d.restart()
	if _, err := d.Exec(context.Background(), held.AgentID, swarm.ExecRequest{Command: []string{"sh", "-c", "touch " + home + "/gate"}}); err != nil {
		t.Fatal(err)
	}
	d.result(root)
	want(t, "what came over a restart", at(root, "late"), "through")

	by := map[string]int{}
	for _, e := range d.allEvents(d.await(root, swarm.StateDone).RunID) {
		if who := e.field("by"); who != "" {
			by[e.Name+" "+map[string]string{root: "root", second: "second"}[who]]++
		}
	}
	want(t, "what programs did", by, map[string]int{ledger.AgentSpawned + " root": 2, ledger.TurnRequested + " root": 2, ledger.NotifyRegistered + " root": 1})
	d.settle()
}
