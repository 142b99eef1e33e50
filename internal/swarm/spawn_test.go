package swarm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
)

// tree is an agent that may spawn so many levels.
func tree(depth int) string {
	return fmt.Sprintf(`{"harness": "scripted", "checkpoint": true, "spawnDepth": %d}`, depth)
}

func (w *world) runOf(id string) string {
	w.t.Helper()
	v, err := w.Agent(w.ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return v.RunID
}

// spawn makes an agent below another one.
func (w *world) spawn(parent, prompt, waitFor string) (swarm.SpawnAnswer, error) {
	r := swarm.SpawnRequest{RunID: w.runOf(parent), ParentAgentID: parent, Spec: json.RawMessage(plain), Prompt: prompt}
	if waitFor != "" {
		r.WaitFor = json.RawMessage(waitFor)
	}
	return w.Spawn(w.ctx, r)
}

func (w *world) mustSpawn(parent, prompt, waitFor string) string {
	w.t.Helper()
	a, err := w.spawn(parent, prompt, waitFor)
	if err != nil {
		w.t.Fatal(err)
	}
	return a.AgentID
}

// TestSpawn: a child begins with its parent's files, on a session of its own,
// also of a parent that is in mid-turn; and it is restored with them.
func TestSpawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(2))
	w.ask(root, "write note.txt from the root\nsay one")
	if _, err := w.prompt(root, "ask may I?", ""); err != nil {
		t.Fatal(err)
	}
	w.await(root, swarm.StateBlocked)
	first, second := w.mustSpawn(root, "run cat note.txt\ncount", ""), w.mustSpawn(root, "say two", "")
	w.want("the child's own session", w.result(first), "success count: 0")
	w.want("result", w.result(second), "success two")
	for i, id := range []string{first, second} {
		v := w.await(id, swarm.StateDone)
		if *v.ParentAgentID != root || v.Depth != 1 || v.SpawnIndex != i || v.RunID != w.runOf(root) {
			t.Errorf("child %d: %+v", i, v)
		}
		b, err := os.ReadFile(w.home(id, "note.txt"))
		w.want("inherited file", string(b), "from the root\n")
		if err != nil {
			t.Error(err)
		}
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			left, err := filepath.Glob(w.home(id, ".alineo-fork-*"))
			if err == nil && len(left) == 0 {
				tick.Stop()
				break
			}
			select {
			case <-tick.C:
			case <-w.ctx.Done():
				t.Fatalf("marks left: %v, %v", left, err)
			}
		}
	}
	w.want("the parent's turn", w.await(root, swarm.StateBlocked).State, swarm.StateBlocked)
	grandchild := w.mustSpawn(first, "run cat note.txt\nsay deep", "")
	w.want("grandchild", w.result(grandchild), "success deep")
	w.want("its depth", w.await(grandchild, swarm.StateDone).Depth, 2)

	// A lost child comes back with what it had inherited.
	sandbox := *w.await(first, swarm.StateDone).SandboxID
	w.close()
	if err := w.rt.Remove(w.ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	w.open()
	<-w.Booted()
	back := w.recovered(first)
	w.want("rung", back[len(back)-1].Rung, "restored")
	b, err := os.ReadFile(w.home(first, "note.txt"))
	if err != nil || string(b) != "from the root\n" {
		t.Errorf("inherited file after a restore: %q, %v", b, err)
	}

	// Images of agents that are over are given back.
	images, err := w.rt.Images(w.ctx)
	if err != nil || len(images) != 3 {
		t.Errorf("images: %v, %v", images, err)
	}
	if err := w.DeleteRun(w.ctx, w.runOf(root), swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{root, first, second, grandchild} {
		w.await(id, swarm.StateAborted)
	}
	if _, err := w.Reconcile(w.ctx, false); err != nil {
		t.Fatal(err)
	}
	if images, err = w.rt.Images(w.ctx); err != nil || len(images) != 0 {
		t.Errorf("images left: %v, %v", images, err)
	}
}

// TestBudgets: a spawn that a budget refuses is recorded, ends at once and says
// which; what is handed down is less at each level.
func TestBudgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	three := 3
	a, err := w.StartRun(w.ctx, swarm.StartRunRequest{Spec: json.RawMessage(`{"harness": "scripted", "spawnDepth": 2, "maxAgents": 2}`),
		Budget: &swarm.Budget{MaxAgentsTotal: &three}})
	if err != nil {
		t.Fatal(err)
	}
	root := a.RootAgentID
	w.await(root, swarm.StateDone)
	denied := func(what, id, dimension string) {
		t.Helper()
		v := w.await(id, swarm.StateAborted)
		w.want(what, *v.Outcome, "budget-exceeded")
		w.want(what+": result", strings.SplitN(w.result(id), " ", 2)[0], "budget-exceeded")
		var p ledger.BudgetDeniedPayload
		events := w.events(id, ledger.BudgetDenied)
		if len(events) != 1 || json.Unmarshal(events[0].Payload, &p) != nil || p.Dimension != dimension {
			t.Errorf("%s: %v, want %s", what, events, dimension)
		}
	}
	child := w.mustSpawn(root, "say one", "")
	w.want("child", w.result(child), "success one")
	grandchild := w.mustSpawn(child, "say two", "")
	w.want("grandchild", w.result(grandchild), "success two")
	denied("a fourth level", w.mustSpawn(grandchild, "say three", ""), "spawnDepth")
	// The refused one counts for the whole run, so that is used up now.
	denied("a third agent below the root", w.mustSpawn(root, "say three", ""), "maxAgentsTotal")

	bare := w.run(plain)
	denied("a child of one that may have none", w.mustSpawn(bare, "say x", ""), "spawnDepth")

	small := w.run(`{"harness": "scripted", "spawnDepth": 1, "maxAgents": 1}`)
	w.mustSpawn(small, "", "")
	denied("a second one", w.mustSpawn(small, "say x", ""), "maxAgents")
}

// TestWaits: a held agent starts when what it waits for has come, with the
// results as files, over a restart in between; or is told why it cannot.
func TestWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(3))
	gate := filepath.Join(w.dir, "gate")
	hold := "run while [ ! -e " + gate + " ]; do sleep 0.02; done\n"
	a, b := w.mustSpawn(root, hold+"say from a", ""), w.mustSpawn(root, "say from b", "")
	w.want("b", w.result(b), "success from b")
	list := fmt.Sprintf("[%q, %q]", a, b)
	gather := w.mustSpawn(root, `run echo "$ALINEO_INPUTS" > where; cat "$ALINEO_INPUTS"/*.txt > all`+"\nsay gathered", list)
	some := w.mustSpawn(root, "say some", fmt.Sprintf(`{"agents": %s, "mode": "any"}`, list))
	w.want("one of them", w.result(some), "success some")
	late := w.mustSpawn(root, "say late", fmt.Sprintf(`{"agents": [%q], "deadlineSec": 3600, "onDeadline": "proceed"}`, a))
	for _, id := range []string{gather, late} {
		w.want("held", w.await(id, swarm.StateSpawning).SandboxID == nil, true)
	}
	w.close()
	w.clock.Shift(2 * 3600 * 1e9) // the deadline passes while no daemon runs
	w.open()
	w.want("at its deadline", w.result(late), "success late")
	w.want("still held", w.await(gather, swarm.StateSpawning).State, swarm.StateSpawning)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.want("gathered", w.result(gather), "success gathered")
	all, err := os.ReadFile(w.home(gather, "all"))
	if err != nil || !strings.Contains(string(all), "from a") || !strings.Contains(string(all), "from b") {
		t.Errorf("inputs: %q, %v", all, err)
	}
	var listed []struct{ AgentID, Outcome, Result string }
	raw, err := os.ReadFile(w.home(gather, "inputs.json"))
	if err != nil || json.Unmarshal(raw, &listed) != nil || len(listed) != 2 || listed[0].AgentID != a || listed[0].Result != "from a" || listed[0].Outcome != "success" {
		t.Errorf("inputs.json: %s, %v", raw, err)
	}
	w.want("wait events", len(w.events(gather, ledger.WaitResolved)), 1)

	bad := w.mustSpawn(root, "fail no luck", "")
	w.result(bad)
	blocked := w.mustSpawn(root, "say never", fmt.Sprintf(`{"agents": [%q], "mode": "all"}`, bad))
	v := w.await(blocked, swarm.StateCrashed)
	w.want("why", v.Reason, "dependency_failed")
	w.want("its result", strings.SplitN(w.result(blocked), " ", 2)[0], "failed")
	w.want("events", len(w.events(blocked, ledger.WaitBlocked)), 1)
	// A person may start it all the same.
	if _, err := w.Revive(w.ctx, blocked, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.await(blocked, swarm.StateDone)
	w.want("revived", w.ask(blocked, "say after all"), "success after all")
}

// TestSpawnRefusals: each is one clear answer, and nothing is made.
func TestSpawnRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root, other := w.run(tree(1)), w.run(tree(1))
	run := w.runOf(root)
	for name, c := range map[string]struct {
		r    swarm.SpawnRequest
		kind error
		path string
	}{
		"no such run":           {swarm.SpawnRequest{RunID: "r_00000000", ParentAgentID: root}, swarm.ErrNotFound, ""},
		"a parent elsewhere":    {swarm.SpawnRequest{RunID: run, ParentAgentID: other}, swarm.ErrNotFound, ""},
		"no spec":               {swarm.SpawnRequest{RunID: run, ParentAgentID: root, Spec: json.RawMessage("")}, swarm.ErrInvalid, ""},
		"a wrong spec":          {swarm.SpawnRequest{RunID: run, ParentAgentID: root, Spec: json.RawMessage(`{"harness":"x"}`)}, swarm.ErrInvalid, "spec.harness"},
		"an unknown dependency": {swarm.SpawnRequest{RunID: run, ParentAgentID: root, WaitFor: json.RawMessage(`["a_00000000"]`)}, swarm.ErrInvalid, "waitFor[0]"},
		"a dependency elsewhere": {swarm.SpawnRequest{RunID: run, ParentAgentID: root, WaitFor: json.RawMessage(`["` + other + `"]`)},
			swarm.ErrInvalid, "waitFor[0]"},
		"k out of range": {swarm.SpawnRequest{RunID: run, ParentAgentID: root, WaitFor: json.RawMessage(`{"agents":["` + root + `"],"mode":"quorum","k":2}`)},
			swarm.ErrInvalid, "waitFor.k"},
		"a negative budget": {swarm.SpawnRequest{RunID: run, ParentAgentID: root, Budget: &swarm.Budget{MaxAgents: new(int)}}, nil, ""},
	} {
		if c.kind == nil { // zero is allowed
			*c.r.Budget.MaxAgents = -1
			c.kind, c.path = swarm.ErrInvalid, "budget.maxAgents"
		}
		if c.r.Spec == nil {
			c.r.Spec = json.RawMessage(plain)
		}
		_, err := w.Spawn(w.ctx, c.r)
		var of *swarm.Error
		if !errors.Is(err, c.kind) || !errors.As(err, &of) ||
			c.path != "" && !slices.ContainsFunc(of.Fields, func(f spec.Problem) bool { return f.Path == c.path }) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.Stop(w.ctx, other, "abort", swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.await(other, swarm.StateAborted)
	after := w.ledger.LastSeq()
	if _, err := w.spawn(other, "", ""); !errors.Is(err, swarm.ErrConflict) {
		t.Errorf("a parent that is over: %v", err)
	}
	w.want("events of refusals", w.ledger.LastSeq()-after, 0)
	if err := w.DeleteRun(w.ctx, run, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.spawn(root, "", ""); !errors.Is(err, swarm.ErrConflict) {
		t.Errorf("a closed run: %v", err)
	}
}

// TestParentGone: a parent that is over before the fork is the child's end, told
// as such.
func TestParentGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(2))
	holder := w.mustSpawn(root, "ask may I?", "")
	w.await(holder, swarm.StateBlocked)
	parent := w.mustSpawn(root, "", "")
	w.await(parent, swarm.StateDone)
	child := w.mustSpawn(parent, "say never", fmt.Sprintf("[%q]", holder))
	w.await(child, swarm.StateSpawning)
	for _, id := range []string{parent, holder} {
		if _, err := w.Stop(w.ctx, id, "abort", swarm.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	v := w.await(child, swarm.StateCrashed)
	w.want("why", v.Reason, "parent_lost")
}

// TestAwait: who waits for others is told when they have settled, and what has
// settled when the time is over.
func TestAwait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(2))
	run := w.runOf(root)
	gate := filepath.Join(w.dir, "gate")
	a, b := w.mustSpawn(root, "run while [ ! -e "+gate+" ]; do sleep 0.02; done\nsay a", ""), w.mustSpawn(root, "fail b", "")
	w.result(b)
	await := func(r swarm.AwaitRequest) string {
		t.Helper()
		r.RunID = run
		answer, err := w.Await(w.ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %d %d %v", answer.Outcome, len(answer.Selected), len(answer.Settled), answer.Pending)
	}
	both := []string{a, b}
	w.want("at once", await(swarm.AwaitRequest{Agents: both}), "pending 0 1 ["+a+"]")
	w.want("after a while", await(swarm.AwaitRequest{Agents: both, Wait: 50e6}), "pending 0 1 ["+a+"]")
	w.want("all", await(swarm.AwaitRequest{Agents: both, Mode: "all", Wait: patience}), "depfail 0 1 ["+a+"]")
	view, err := w.AwaitSubtree(w.ctx, root, 0)
	if err != nil || view.Quiescent || len(view.Members) != 3 {
		t.Errorf("%+v, %v", view, err)
	}
	got := make(chan string, 1)
	go func() { got <- await(swarm.AwaitRequest{Agents: both, Wait: patience}) }()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.want("waited for", <-got, "satisfied 2 2 []")
	w.want("any", await(swarm.AwaitRequest{Agents: both, Mode: "any"}), "satisfied 1 2 []")
	w.ask(root, "say root")
	w.want("subtree", await(swarm.AwaitRequest{Subtree: root}), "satisfied 3 3 []")
	if view, err = w.AwaitSubtree(w.ctx, root, patience); err != nil || !view.Quiescent || view.AsOf == 0 {
		t.Errorf("%+v, %v", view, err)
	}
	for _, r := range []swarm.AwaitRequest{{}, {Agents: both, Subtree: root}, {Agents: []string{"a_00000000"}}, {Agents: both, Mode: "quorum"}} {
		r.RunID = run
		if _, err := w.Await(w.ctx, r); !errors.Is(err, swarm.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestSubtree: an action goes to all below an agent, and says for each what
// came of it. A paused member keeps the subtree from rest, and is named.
func TestSubtree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(2))
	child := w.mustSpawn(root, "run while [ ! -e \"$HOME/gate\" ]; do sleep 0.02; done\nsay through", "")
	w.await(child, swarm.StateRunning)
	said := func(a swarm.ScopeAnswer, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, r := range a.Results {
			all = append(all, map[string]string{root: "root", child: "child"}[r.AgentID]+" "+r.Outcome)
		}
		return strings.Join(all, ", ")
	}
	idem := swarm.Idempotency{}
	a, err := w.SteerSubtree(w.ctx, root, "hurry", idem)
	w.want("steer", said(a, err), "root skipped, child applied")
	a, err = w.PauseSubtree(w.ctx, root, idem)
	w.want("pause", said(a, err), "root applied, child applied")
	view, err := w.AwaitSubtree(w.ctx, root, 0)
	if err != nil || view.Quiescent || fmt.Sprint(view.BlockedOnPaused) != "["+child+"]" {
		t.Errorf("%+v, %v", view, err)
	}
	a, err = w.ResumeSubtree(w.ctx, root, idem)
	w.want("resume", said(a, err), "child applied, root applied")
	if err := os.WriteFile(w.home(child, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.want("the same turn", w.result(child), "success through")
	a, err = w.StopSubtree(w.ctx, root, "abort", swarm.Idempotency{Scope: "stop", Key: "k"})
	first := said(a, err)
	w.want("stop", first, "root applied, child applied")
	w.await(root, swarm.StateAborted)
	w.await(child, swarm.StateAborted)
	a, err = w.StopSubtree(w.ctx, root, "abort", swarm.Idempotency{Scope: "stop", Key: "k"})
	w.want("the same request", said(a, err), first)
}

// TestQuiescent: a run that has come to rest says so, once each time; one that
// is to close then does, and keeps what its agents made.
func TestQuiescent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := func(run string) string {
		t.Helper()
		all, err := w.ledger.Events(w.ctx, ledger.EventFilter{RunID: run, Names: []string{ledger.RunQuiescent, ledger.RunClosed}})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range all {
			names = append(names, e.Event)
		}
		return strings.Join(names, " ")
	}
	stream := w.Follow(0, "")
	defer stream.Close()
	until := func(run, want string) {
		t.Helper()
		for names(run) != want {
			if _, err := stream.Next(w.ctx); err != nil {
				t.Fatalf("waiting for %q, there is %q: %v", want, names(run), err)
			}
		}
	}
	root := w.run(tree(1))
	run := w.runOf(root)
	w.want("before its first turn", names(run), "")
	child := w.mustSpawn(root, "say one", "")
	w.result(child)
	until(run, "run.quiescent")
	w.ask(root, "say two")
	until(run, "run.quiescent run.quiescent")

	a, err := w.StartRun(w.ctx, swarm.StartRunRequest{Spec: json.RawMessage(tree(1)), CloseWhen: "quiescent", Prompt: "write made kept\nsay done"})
	if err != nil {
		t.Fatal(err)
	}
	until(a.RunID, "run.quiescent run.closed")
	w.await(a.RootAgentID, swarm.StateStopped)
	w.want("its result", w.result(a.RootAgentID), "success done")
	b, err := os.ReadFile(w.home(a.RootAgentID, "made"))
	if err != nil || string(b) != "kept\n" {
		t.Errorf("what it made: %q, %v", b, err)
	}
	v, err := w.Run(w.ctx, a.RunID)
	if err != nil || v.State != "closed" {
		t.Errorf("%+v, %v", v, err)
	}
}
