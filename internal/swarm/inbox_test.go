package swarm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

func (w *world) notifyOn(id string, wake bool, agents ...string) {
	w.t.Helper()
	a, err := w.NotifyOn(w.ctx, id, agents, wake, swarm.Idempotency{})
	if err != nil || fmt.Sprint(a.Subscribed) != fmt.Sprint(agents) || a.Wake != wake {
		w.t.Fatalf("%+v, %v", a, err)
	}
}

// inbox waits until an inbox has so many items to be told and told, and
// returns it.
func (w *world) inbox(id string, pending, delivered int) swarm.InboxView {
	w.t.Helper()
	stream := w.Follow(-1, "")
	defer stream.Close()
	for {
		v, err := w.Inbox(w.ctx, id)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(v.Pending) == pending && len(v.Delivered) == delivered {
			return v
		}
		if _, err := stream.Next(w.ctx); err != nil {
			w.t.Fatalf("waiting for an inbox with %d and %d: %+v, %v", pending, delivered, v, err)
		}
	}
}

func (w *world) deliver(id string) string {
	w.t.Helper()
	d, err := w.DeliverInbox(w.ctx, id, swarm.Idempotency{})
	if err != nil {
		w.t.Fatal(err)
	}
	return d.Delivery
}

// lastPrompt is the text of the newest turn that was asked for.
func (w *world) lastPrompt(id string) string {
	w.t.Helper()
	view, err := w.Transcript(w.ctx, id, true)
	if err != nil || len(view.Turns) == 0 {
		w.t.Fatalf("%+v, %v", view, err)
	}
	return view.Turns[len(view.Turns)-1].Messages[0].Text
}

// TestInbox: an agent is told once of each end that it asked to be told about,
// in the way that its state allows, over restarts.
func TestInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(2))
	a, b := w.mustSpawn(root, "", ""), w.mustSpawn(root, "", "")
	w.await(a, swarm.StateDone)

	w.want("an empty inbox", w.deliver(root), "none")
	w.notifyOn(root, false, a, b)
	w.want("watching", len(w.inbox(root, 0, 0).Watching), 2)
	w.ask(a, "say from a")
	item := w.inbox(root, 1, 0).Pending[0]
	w.want("item", item.Kind+" "+item.From+" "+item.Outcome, "settled "+a+" success")
	w.close()
	w.open()
	w.inbox(root, 1, 0)
	w.want("with the next prompt", w.ask(root, "say ok"), "success ok")
	w.want("delivery", w.inbox(root, 0, 1).Delivered[0].Delivery, "prompt")
	if p := w.lastPrompt(root); !strings.Contains(p, "from a") || !strings.HasSuffix(p, "say ok") {
		t.Errorf("prompt: %q", p)
	}

	// The same end is not told twice, and a subscription is used up.
	w.notifyOn(root, false, a)
	w.ask(a, "say again")
	w.ask(a, "say and again")
	w.inbox(root, 1, 1)
	w.want("as a turn", w.deliver(root), "turn")
	w.want("which says it", w.result(root), "success echo: again")
	w.inbox(root, 0, 2)

	// One that has settled already is told of at once; an idle agent is woken.
	c := w.mustSpawn(root, "say from c", "")
	w.result(c)
	w.ask(root, "say before")
	w.notifyOn(root, true, c)
	w.want("woken", w.inbox(root, 0, 3).Delivered[2].Delivery, "turn")
	w.want("by", w.result(root), "success echo: from c")

	// Two at once, merged, into the turn that runs; the paused one is told later.
	gate := filepath.Join(w.dir, "gate")
	if _, err := w.prompt(root, "run while [ ! -e "+gate+" ]; do sleep 0.02; done\nsay through", ""); err != nil {
		t.Fatal(err)
	}
	w.await(root, swarm.StateRunning)
	if _, err := w.Pause(w.ctx, root, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.ask(b, "say from b")
	w.inbox(root, 1, 3)
	w.want("while paused", w.deliver(root), "held")
	if _, err := w.Resume(w.ctx, root, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.want("while running", w.inbox(root, 0, 4).Delivered[3].Delivery, "steer")
	w.close() // the bridge told the harness; it is not told again
	w.open()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.want("steered", w.result(root), "success through")
	view, err := w.Transcript(w.ctx, root, true)
	if err != nil {
		t.Fatal(err)
	}
	times := 0
	for _, turn := range view.Turns {
		for _, m := range turn.Messages {
			if m.Role == "assistant" && strings.Contains(m.Text, "from b") {
				times++
			}
		}
	}
	w.want("times the harness heard of b", times, 1)

	// What is for one that is over is dropped.
	d := w.mustSpawn(root, "", "")
	w.await(d, swarm.StateDone)
	w.notifyOn(d, false, b)
	w.inbox(d, 1, 0)
	if _, err := w.Stop(w.ctx, d, "abort", swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.await(d, swarm.StateAborted)
	w.inbox(d, 0, 0)
	w.want("dropped", w.deliver(d), "dropped")
	w.want("events", len(w.events(d, ledger.InboxDropped)), 1)
}

// TestNotifyOnSpawn: a new agent may want to be told from its start.
func TestNotifyOnSpawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(1))
	a := w.mustSpawn(root, "say from a", "")
	w.result(a)
	r := swarm.SpawnRequest{RunID: w.runOf(root), ParentAgentID: root, Spec: []byte(plain), NotifyOn: []byte(`{"agents": ["` + a + `"], "wake": true}`)}
	s, err := w.Spawn(w.ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	w.want("woken", w.inbox(s.AgentID, 0, 1).Delivered[0].Delivery, "turn")
	w.want("result", w.result(s.AgentID), "success echo: from a")

	w.want("refusals", fmt.Sprintln(
		w.refusedNotify(root, root), w.refusedNotify(root), w.refusedNotify(root, a, a), w.refusedNotify(root, "a_00000000")),
		"agents[0] agents agents[1] agents[0]\n")
	for raw, path := range map[string]string{`"x"`: "notifyOn", `{"agents": ["a_1"]}`: "notifyOn.agents[0]", `{"who": []}`: "notifyOn", `["` + a + `","a_1"]`: "notifyOn[1]"} {
		r.NotifyOn = []byte(raw)
		_, err := w.Spawn(w.ctx, r)
		var of *swarm.Error
		if !errors.Is(err, swarm.ErrInvalid) || !errors.As(err, &of) || of.Fields[0].Path != path {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// refusedNotify is the path that a subscription is refused for.
func (w *world) refusedNotify(id string, agents ...string) string {
	_, err := w.NotifyOn(w.ctx, id, agents, false, swarm.Idempotency{})
	var of *swarm.Error
	if !errors.Is(err, swarm.ErrInvalid) || !errors.As(err, &of) {
		return fmt.Sprint(err)
	}
	return of.Fields[0].Path
}

// TestFailurePolicy: a failed turn is asked again, or has the agent wait for a
// person, as its spec says; so does the third in a row.
func TestFailurePolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	resume := func(id string) {
		t.Helper()
		if _, err := w.Resume(w.ctx, id, swarm.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	again := w.run(`{"harness": "scripted", "onFailure": "retry", "maxRetries": 2}`)
	w.want("asked again in vain", w.ask(again, "fail no luck"), "failed ")
	w.want("turns", w.await(again, swarm.StateFailed).Turn, 3)
	w.want("a refused key is not asked again", w.ask(again, "unauthorized"), "failed ")
	w.want("turns", w.await(again, swarm.StateFailed).Turn, 4)
	w.want("and the third failure blocks", w.ask(again, "fail no luck"), "failed ")
	w.want("why", w.await(again, swarm.StateBlocked).Reason, "3 failed turns in a row")

	root := w.run(tree(1))
	a, err := w.Spawn(w.ctx, swarm.SpawnRequest{RunID: w.runOf(root), ParentAgentID: root, Prompt: "fail no luck",
		Spec: []byte(`{"harness": "scripted", "onFailure": "ask"}`)})
	if err != nil {
		t.Fatal(err)
	}
	id := a.AgentID
	w.await(id, swarm.StateBlocked)
	item := w.inbox(root, 1, 0).Pending[0]
	w.want("what the parent is told", item.Kind+" "+item.From, "blocked "+id)
	view, err := w.AwaitSubtree(w.ctx, root, 0)
	if err != nil || view.Quiescent {
		t.Errorf("at rest with a blocked agent: %+v, %v", view, err)
	}
	if _, err := w.prompt(id, "say at last", ""); err != nil {
		t.Fatal(err)
	}
	w.close()
	w.open()
	<-w.Booted()
	if _, err := w.Recover(w.ctx, id, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.await(id, swarm.StateBlocked)
	if _, err := w.Pause(w.ctx, id, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	resume(id)
	v, err := w.Result(w.ctx, id, 0)
	if err != nil || v.State != "pending" || w.await(id, swarm.StateBlocked).Turn != 2 {
		t.Errorf("a blocked agent took a prompt: %+v, %v", v, err)
	}
	resume(id)
	w.want("the waiting prompt", w.result(id), "success at last")

	breaks := w.run(`{"harness": "scripted", "maxConsecutiveFailures": 2}`)
	w.ask(breaks, "fail one")
	w.ask(breaks, "say well")
	w.ask(breaks, "fail two")
	w.await(breaks, swarm.StateFailed)
	w.ask(breaks, "fail three")
	w.await(breaks, swarm.StateBlocked)
	resume(breaks)
	w.await(breaks, swarm.StateFailed)
	w.ask(breaks, "fail four")
	w.await(breaks, swarm.StateFailed)

	asks := w.run(plain)
	if _, err := w.prompt(asks, "ask may I?\nsay yes", ""); err != nil {
		t.Fatal(err)
	}
	w.await(asks, swarm.StateBlocked)
	if _, err := w.Resume(w.ctx, asks, swarm.Idempotency{}); !errors.Is(err, swarm.ErrConflict) {
		t.Errorf("resuming one that waits for an answer: %v", err)
	}
	if _, err := w.Pause(w.ctx, asks, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	resume(asks)
	w.await(asks, swarm.StateBlocked)
	pending, err := w.Permissions(w.ctx, asks)
	if err != nil || len(pending) != 1 {
		t.Fatalf("%+v, %v", pending, err)
	}
	if _, err := w.AnswerPermission(w.ctx, asks, pending[0].RequestID, "once", "", swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.want("answered", w.result(asks), "success yes")
}

// TestAdmission: sandboxes are made so many at a time; runs take turns, and
// within a run the first that was spawned goes first, over a restart as well.
func TestAdmission(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 1)
	first, second := w.run(tree(1)), w.run(tree(1))
	open := w.rt.shut()
	making := w.mustSpawn(first, "say made", "")
	w.waitFor(making, ledger.SandboxIntended)
	queued := []string{w.mustSpawn(first, "say 2", ""), w.mustSpawn(first, "say 3", "")}
	for _, id := range queued { // in this order
		w.waitFor(id, ledger.AdmissionQueued)
	}
	other := w.mustSpawn(second, "say 4", "")
	w.waitFor(other, ledger.AdmissionQueued)
	if v := w.await(other, swarm.StateProvisioning); v.QueuedAt == 0 {
		t.Errorf("not seen to be queued: %+v", v)
	}
	open()
	w.want("made", w.result(making), "success made")
	var granted []int64
	for _, id := range []string{queued[0], other, queued[1]} {
		w.result(id)
		events := w.events(id, ledger.AdmissionGranted)
		w.want("granted", len(events), 1)
		granted = append(granted, events[0].Seq)
		w.want("queued", w.await(id, swarm.StateDone).QueuedAt, 0)
	}
	if granted[0] > granted[1] || granted[1] > granted[2] {
		t.Errorf("granted in the order %v", granted)
	}

	open = w.rt.shut()
	making = w.mustSpawn(first, "say made", "")
	w.waitFor(making, ledger.SandboxIntended)
	late := w.mustSpawn(second, "", "")
	w.waitFor(late, ledger.AdmissionQueued)
	w.close()
	w.open()
	w.clock.Shift(2 * 3600 * 1e9)
	if _, err := w.prompt(late, "say never", ""); err != nil { // it looks at the clock
		t.Fatal(err)
	}
	v := w.await(late, swarm.StateCrashed)
	w.want("why", v.Reason, "admission_timeout")
	open()
	if _, err := w.Revive(w.ctx, late, swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.want("revived", w.ask(late, "say after all"), "success after all")
	w.want("made", w.result(making), "success made")
}

// waitFor waits until something is stored of an agent.
func (w *world) waitFor(id, event string) {
	w.t.Helper()
	f := w.ledger.Follow(0, ledger.EventFilter{AgentID: id, Names: []string{event}})
	defer f.Close()
	if _, err := f.Next(w.ctx); err != nil {
		w.t.Fatalf("waiting for %s of %s: %v", event, id, err)
	}
}
