package swarm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/faketest"
	"github.com/alineod/alineod/internal/setup"
)

const (
	deskRun   = "r_0000aaaa"
	deskGrace = time.Hour
)

// desk is a swarm that was not started: its agents are what a test says, its
// sandboxes rows in memory, and nothing happens but what is asked for.
type desk struct {
	*Swarm
	t     *testing.T
	ctx   context.Context
	clock *clockwork.FakeClock
	rt    *faketest.Runtime
	peer  string // an agent of the same run
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	ctx := context.Background() // the cleanup needs it, too
	d := &desk{t: t, ctx: ctx, clock: clockwork.NewFakeClockAt(time.UnixMilli(1_700_000_000_000)), rt: faketest.New()}
	dir := t.TempDir()
	l, err := ledger.Open(ctx, filepath.Join(dir, "ledger.db"), ledger.Options{Clock: d.clock})
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.NewFileStore(filepath.Join(dir, "checkpoints"), checkpoint.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Swarm = New(Config{Ledger: l, Runtimes: []runtime.Runtime{d.rt}, Harness: registry.Get, Store: store, Clock: d.clock,
		Choose: func(context.Context) (runtime.Runtime, error) { return d.rt, nil }, OrphanGrace: deskGrace})
	t.Cleanup(func() {
		d.Close()
		if report, err := l.Verify(ctx); err != nil || !report.OK {
			t.Errorf("the projections differ from the log: %+v, %v", report, err)
		}
		store.Close()
		l.Close()
	})
	d.append(ledger.Entry{RunID: deskRun, Event: ledger.RunStarted, Payload: ledger.RunStartedPayload{CloseWhen: closeExplicit}})
	return d
}

func (d *desk) append(entries ...ledger.Entry) {
	d.t.Helper()
	if _, err := d.Ledger.Append(d.ctx, ledger.Batch{Entries: entries}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) want(what string, got, want any) {
	d.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		d.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// intended records a sandbox of an agent, which may be none.
func intended(agent, sandbox, purpose string, generation int) ledger.Entry {
	return ledger.Entry{RunID: deskRun, AgentID: agent, SandboxID: sandbox, Event: ledger.SandboxIntended,
		Payload: ledger.SandboxIntendedPayload{Runtime: "fake", Generation: generation, Purpose: purpose}}
}

func provisioned(agent, sandbox string) ledger.Entry {
	return ledger.Entry{RunID: deskRun, AgentID: agent, SandboxID: sandbox, Event: ledger.AgentProvisioned,
		Payload: ledger.AgentProvisionedPayload{SandboxID: sandbox}}
}

func spawnedIn(agent, state, runtimeName string) ledger.Entry {
	return ledger.Entry{RunID: deskRun, AgentID: agent, Event: ledger.AgentSpawned,
		Payload: ledger.AgentSpawnedPayload{Harness: "scripted", Runtime: runtimeName, State: state}}
}

// agent is one in a state, with a sandbox that is recorded; whether it is there
// is another matter.
func (d *desk) agent(state string) (id, sandbox string) {
	d.t.Helper()
	id, sandbox = ids.New(ids.Agent), ids.New(ids.Sandbox)
	d.append(spawnedIn(id, state, "fake"), intended(id, sandbox, recovery.PurposeProvision, 1), provisioned(id, sandbox))
	return id, sandbox
}

// there puts a sandbox into the runtime.
func (d *desk) there(id string, state runtime.State) string {
	d.rt.Add(runtime.Labels{SandboxID: id}, state, "", 0)
	return id
}

// own gives an agent an owner that answers its mail and does nothing else:
// whoever waits for the ladder is told at once that it is done.
func (d *desk) own(id string, prepare func(*owner)) *owner {
	d.t.Helper()
	o := d.deaf(id)
	if prepare != nil {
		prepare(o)
	}
	quit := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case f := <-o.mail:
				f()
				o.answer(WayBack{AgentID: id, Rung: "resumed"}, nil)
			case <-quit:
				return
			}
		}
	})
	d.t.Cleanup(func() { close(quit); work.Wait() })
	return o
}

// deaf gives an agent an owner that reads no mail.
func (d *desk) deaf(id string) *owner {
	d.t.Helper()
	row, err := d.Ledger.Agent(d.ctx, id)
	if err != nil {
		d.t.Fatal(err)
	}
	o := newOwner(d.Swarm, row, false)
	d.mu.Lock()
	d.owners[id] = o
	d.mu.Unlock()
	return o
}

// request asks an agent for an action.
func (d *desk) request(action, id string, idem Idempotency) error {
	var err error
	switch action {
	case actPrompt:
		_, err = d.Prompt(d.ctx, id, PromptRequest{Text: "x", Idempotency: idem})
	case actSteer:
		_, err = d.Steer(d.ctx, id, "x", idem)
	case actPause:
		_, err = d.Pause(d.ctx, id, idem)
	case actResume:
		_, err = d.Resume(d.ctx, id, idem)
	case actStop:
		_, err = d.Stop(d.ctx, id, stopAbort, idem)
	case actRevive:
		_, err = d.Revive(d.ctx, id, idem)
	case actRecover:
		_, err = d.Recover(d.ctx, id, idem)
	case actCheckpoint:
		_, err = d.TakeCheckpoint(d.ctx, id, idem)
	case actRollback:
		_, err = d.RestoreCheckpoint(d.ctx, id, 1, idem)
	case actExec:
		_, err = d.Exec(d.ctx, id, ExecRequest{Command: []string{"true"}}, idem)
	case actNotify:
		_, err = d.NotifyOn(d.ctx, id, []string{d.peer}, false, idem)
	case actAnswer:
		_, err = d.AnswerPermission(d.ctx, id, "q", "once", "", idem)
	default:
		d.t.Fatalf("no action %q", action)
	}
	return err
}

func code(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	return e.Code
}

// actions by state, as lifecycle.md and api.md have it. It is written down a
// second time on purpose: a change of the table in states.go shows here.
var actions = map[string]string{
	StateProvisioning: "notify prompt stop",
	StateSpawning:     "notify prompt stop",
	StateRunning:      "answer exec notify pause prompt recover steer stop",
	StateBlocked:      "answer checkpoint exec notify pause prompt recover restore resume steer stop",
	StatePaused:       "answer notify pause prompt recover resume stop",
	StateDone:         "answer checkpoint exec notify pause prompt recover restore stop",
	StateFailed:       "answer checkpoint exec notify pause prompt recover restore stop",
	StateRecovering:   "answer notify prompt recover stop",
	StateStopped:      "notify restore revive stop",
	StateCrashed:      "notify recover restore revive stop",
	StateLost:         "notify recover restore revive stop",
	StateAborted:      "",
	StatePurged:       "",
}

// TestTable: every action in every state is let through, or refused with a
// conflict that names both and changes nothing.
func TestTable(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.peer, _ = d.agent(StateDone)
	for _, state := range States() {
		may, known := actions[state]
		if !known {
			t.Errorf("no line for agents that are %s", state)
		}
		for action := range allowed {
			id, sandbox := d.agent(state)
			d.append(ledger.Entry{RunID: deskRun, AgentID: id, SandboxID: sandbox, Event: ledger.AgentCheckpointed,
				Payload: ledger.AgentCheckpointedPayload{Turn: 1, SnapshotRef: id, Imported: true}})
			d.there(sandbox, runtime.StateRunning)
			if !isFinal(state) { // those have no owner any more
				// Whatever is let through finds the agent busy, and ends there.
				d.own(id, func(o *owner) { o.task = &task{name: "test", cancel: func() {}} })
			}
			before := d.Ledger.LastSeq()
			err := d.request(action, id, Idempotency{})
			refused := errors.Is(err, ErrConflict) && code(err) == "wrong_state"
			if slices.Contains(strings.Fields(may), action) == refused {
				t.Errorf("%s while %s: %v", action, state, err)
			}
			if refused && (!strings.Contains(err.Error(), action) || !strings.Contains(err.Error(), state)) {
				t.Errorf("%s while %s: %q does not name both", action, state, err)
			}
			if row, err := d.Ledger.Agent(d.ctx, id); refused && (err != nil || row.State != state || d.Ledger.LastSeq() != before) {
				t.Errorf("%s while %s changed something: %+v, %v", action, state, row, err)
			}
		}
	}
}

// TestBeingStopped: of an agent that is being stopped nothing is wanted but
// that it be stopped otherwise.
func TestBeingStopped(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.peer, _ = d.agent(StateDone)
	for _, state := range []string{StateRunning, StateDone, StatePaused} {
		for _, action := range strings.Fields(actions[state]) {
			if action == actExec { // the sandbox is still there
				continue
			}
			id, sandbox := d.agent(state)
			d.append(ledger.Entry{RunID: deskRun, AgentID: id, Event: ledger.IntentStop, Payload: ledger.IntentStopPayload{Mode: stopDrain}},
				ledger.Entry{RunID: deskRun, AgentID: id, SandboxID: sandbox, Event: ledger.AgentCheckpointed,
					Payload: ledger.AgentCheckpointedPayload{Turn: 1, SnapshotRef: id, Imported: true}})
			d.own(id, func(o *owner) { o.task = &task{name: "test", cancel: func() {}} })
			err := d.request(action, id, Idempotency{})
			if action == actStop && err != nil || action != actStop && (code(err) != "wrong_state" || !strings.Contains(err.Error(), "being stopped")) {
				t.Errorf("%s while %s and being stopped: %v", action, state, err)
			}
		}
	}
}

// TestMailboxFull: a blocked owner is answered for at once, and what was not
// taken is not in the ledger.
func TestMailboxFull(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id, _ := d.agent(StateDone)
	o := d.deaf(id)
	for range mailboxSize {
		if err := o.post(func() {}); err != nil {
			t.Fatal(err)
		}
	}
	before := d.Ledger.LastSeq()
	for _, action := range []string{actPrompt, actPause, actStop} {
		if err := d.request(action, id, Idempotency{}); !errors.Is(err, ErrUnavailable) || code(err) != "busy" {
			t.Errorf("%s: %v", action, err)
		}
	}
	d.want("events", d.Ledger.LastSeq(), before)
	(<-o.mail)() // there is room for one again
	if err := o.post(func() {}); err != nil {
		t.Error(err)
	}
}

// TestOwnerGone: what is asked of an owner that has just ended, or ends before
// it answers, is told so.
func TestOwnerGone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id, _ := d.agent(StateDone)
	o := d.deaf(id)
	answered := make(chan error, 1)
	go func() { answered <- d.request(actPrompt, id, Idempotency{}) }()
	<-o.mail // it was taken, and is never answered
	close(o.over)
	if err := <-answered; !errors.Is(err, ErrUnavailable) || code(err) != "stopping" {
		t.Errorf("not answered: %v", err)
	}
	if err := d.request(actPrompt, id, Idempotency{}); !errors.Is(err, ErrConflict) || code(err) != "agent_ended" {
		t.Errorf("asked later: %v", err)
	}
	if err := d.request(actPrompt, "a_00000000", Idempotency{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an agent that never was: %v", err)
	}
}

// TestIdempotency: a repeated request gets the first answer and has no second
// effect; another one under its key is refused.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state, action string
	}{
		"prompt":                    {StateDone, actPrompt},
		"stop":                      {StateDone, actStop},
		"resume":                    {StatePaused, actResume},
		"pause of one that is so":   {StatePaused, actPause},
		"recover":                   {StateDone, actRecover},
		"revive":                    {StateCrashed, actRevive},
		"exec":                      {StateDone, actExec},
		"pause of one that goes on": {StateDone, actPause},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			id, sandbox := d.agent(test.state)
			d.there(sandbox, runtime.StateRunning)
			o := d.own(id, nil)
			idem := Idempotency{Scope: test.action + " " + id, Key: "k", BodyHash: "1"}
			first := d.request(test.action, id, idem)
			if test.action == actPause && test.state == StateDone {
				// Refused for now, since nothing is connected: it may be asked again.
				if !errors.Is(first, ErrUnavailable) {
					t.Fatalf("%v", first)
				}
				if _, err := d.Ledger.Request(d.ctx, idem.Scope, idem.Key); !errors.Is(err, ledger.ErrNotFound) {
					t.Errorf("a refusal was kept: %v", err)
				}
				return
			}
			if first != nil {
				t.Fatal(first)
			}
			if _, err := ask(d.ctx, o, func() (none, error) { // meanwhile it went elsewhere
				return none{}, o.append(o.change(StateDone, "test"))
			}); err != nil {
				t.Fatal(err)
			}
			before, calls := d.Ledger.LastSeq(), d.rt.Calls()
			if err := d.request(test.action, id, idem); err != nil {
				t.Errorf("the same again: %v", err)
			}
			other := idem
			other.BodyHash = "2"
			if err := d.request(test.action, id, other); !errors.Is(err, ErrConflict) || code(err) != "key_reused" {
				t.Errorf("another body: %v", err)
			}
			d.want("events of the repetitions", d.Ledger.LastSeq()-before, 0)
			d.want("calls", d.rt.Calls(), calls)
		})
	}
}

// TestSameMoment: of those that come at the same moment under one key one has
// an effect, and all get its answer.
func TestSameMoment(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id, _ := d.agent(StateDone)
	d.own(id, nil)
	var work sync.WaitGroup
	answers := make([]PromptAnswer, 10)
	for i := range answers {
		work.Go(func() {
			var err error
			if answers[i], err = d.Prompt(d.ctx, id, PromptRequest{Text: "x", Idempotency: Idempotency{Scope: "p", Key: "k", BodyHash: "1"}}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for _, a := range answers {
		if a != answers[0] || a.TurnID == "" {
			t.Errorf("got %+v and %+v", a, answers[0])
		}
	}
	turns, err := d.Ledger.Turns(d.ctx, ledger.TurnFilter{AgentID: id})
	if err != nil || len(turns) != 1 {
		t.Errorf("turns: %+v, %v", turns, err)
	}
}

// TestOutcomeUnknown: what must not be done twice and was begun before a crash
// is not done again.
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id, sandbox := d.agent(StateDone)
	d.there(sandbox, runtime.StateRunning)
	idem := Idempotency{Scope: "exec", Key: "k", BodyHash: "1"}
	if _, err := d.Ledger.Append(d.ctx, ledger.Batch{Request: &ledger.Request{Scope: idem.Scope, Key: idem.Key, BodyHash: idem.BodyHash, Answer: []byte("true")}}); err != nil {
		t.Fatal(err)
	}
	if err := d.request(actExec, id, idem); !errors.Is(err, ErrConflict) || code(err) != "outcome_unknown" {
		t.Errorf("got %v", err)
	}
	d.want("calls", d.rt.Calls(), "[]")
}

// TestIntend: a provisioning that a crash cut short is taken up again under the
// sandbox it had chosen, so that what was made by then is adopted.
func TestIntend(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := ids.New(ids.Agent)
	d.append(spawnedIn(id, StateProvisioning, "fake"))
	row, err := d.Ledger.Agent(d.ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	intend := func(purpose, image string) string {
		t.Helper()
		sandbox, generation, err := d.intend(d.ctx, row, purpose, image)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := d.Ledger.Sandbox(d.ctx, sandbox)
		if err != nil || stored.State != "intended" || stored.Purpose != purpose || stored.Generation != generation {
			t.Errorf("recorded: %+v, %v", stored, err)
		}
		return fmt.Sprint(sandbox, generation)
	}
	first := intend(recovery.PurposeProvision, "image")
	d.want("again", intend(recovery.PurposeProvision, "image"), first)
	seen := []string{first}
	for _, another := range []string{intend(recovery.PurposeProvision, "other"), intend(recovery.PurposeRestore, "image"), intend(recovery.PurposeRestore, "image")} {
		if slices.Contains(seen, another) {
			t.Errorf("%s was taken before: %v", another, seen)
		}
		seen = append(seen, another)
	}
	row, err = d.Ledger.Agent(d.ctx, id)
	d.want("generation", fmt.Sprint(row.Generation, err), "4 <nil>")
}

// plan reconciles, and says what is done with which of the named sandboxes.
func (d *desk) plan(dry bool, names map[string]string) []string {
	d.t.Helper()
	done, err := d.Reconcile(d.ctx, dry)
	if err != nil {
		d.t.Fatal(err)
	}
	var all []string
	for _, a := range done {
		name := names[a.SandboxID]
		if name == "" {
			name = a.SandboxID
		}
		if a.Reason == "" {
			d.t.Errorf("%s %s: no reason", a.Action, name)
		}
		all = append(all, a.Action+": "+name)
	}
	slices.Sort(all)
	return all
}

// TestReconcile: what the runtime shows is held against the ledger. A dry run
// says the same, and changes nothing.
func TestReconcile(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	names := map[string]string{}
	name := func(sandbox, what string) string {
		if names[sandbox] != "" {
			t.Fatalf("%s bears two names", sandbox)
		}
		names[sandbox] = what
		return sandbox
	}
	want := []string{}
	expect := func(action, sandbox, what string) { want = append(want, action+": "+names[name(sandbox, what)]) }

	// Agents with the sandbox that is theirs.
	_, well := d.agent(StateDone)
	name(d.there(well, runtime.StateRunning), "of one that is well")
	goneAgent, gone := d.agent(StateRunning)
	expect(actionRecover, gone, "gone under one that runs")
	_, ended := d.agent(StatePaused)
	expect(actionRecover, d.there(ended, runtime.StateStopped), "stopped under one that is paused")
	_, stopped := d.agent(StateStopped)
	name(d.there(stopped, runtime.StateStopped), "of one that was stopped")
	_, crashed := d.agent(StateCrashed)
	name(crashed, "gone under one that crashed")
	_, over := d.agent(StateAborted)
	expect(actionRemove, d.there(over, runtime.StateRunning), "of one that is aborted")

	// Sandboxes that are no longer, or not yet, their agent's.
	replace := func(purpose string) (agent, before, now string) {
		agent, before = d.agent(StateDone)
		now = ids.New(ids.Sandbox)
		d.append(intended(agent, now, purpose, 2), provisioned(agent, now))
		name(d.there(now, runtime.StateRunning), "the one after")
		return agent, before, now
	}
	_, replaced, _ := replace(recovery.PurposeRestore)
	expect(actionRemove, d.there(replaced, runtime.StateRunning), "replaced")
	_, replacedGone, _ := replace(recovery.PurposeRestore)
	expect(actionForget, replacedGone, "replaced and gone")
	_, rolledBack, _ := replace(recovery.PurposeRollback)
	expect(actionKeep, d.there(rolledBack, runtime.StateStopped), "rolled back")
	passed, rolledPast, now := replace(recovery.PurposeRollback)
	d.append(ledger.Entry{RunID: deskRun, AgentID: passed, SandboxID: now, TurnID: "t_0000aaaa", Event: ledger.TurnRequested, Payload: ledger.TurnRequestedPayload{Turn: 1}},
		ledger.Entry{RunID: deskRun, AgentID: passed, SandboxID: now, TurnID: "t_0000aaaa", Event: ledger.TurnStarted, Payload: ledger.TurnStartedPayload{Turn: 1}},
		ledger.Entry{RunID: deskRun, AgentID: passed, SandboxID: now, TurnID: "t_0000aaaa", Event: ledger.TurnEnded, Payload: ledger.TurnEndedPayload{Turn: 1, Outcome: OutcomeSuccess}})
	expect(actionRemove, d.there(rolledPast, runtime.StateStopped), "rolled back, and a turn has ended since")
	half := func(state string, busy bool) string {
		agent, _ := d.agent(state)
		row, err := d.Ledger.Agent(d.ctx, agent)
		if err != nil {
			t.Fatal(err)
		}
		name(d.there(row.SandboxID, runtime.StateRunning), "the one before")
		next := ids.New(ids.Sandbox)
		d.append(intended(agent, next, recovery.PurposeRestore, 2))
		d.own(agent, func(o *owner) {
			if busy {
				o.task = &task{name: "climb", cancel: func() {}}
			}
		})
		return next
	}
	name(d.there(half(StateRecovering, true), runtime.StateRunning), "being made")
	name(half(StateRecovering, true), "about to be made")
	expect(actionRemove, d.there(half(StateDone, false), runtime.StateRunning), "made in vain")
	expect(actionForget, half(StateDone, false), "never made")

	// Those of nobody's.
	builder := ids.New(ids.Sandbox)
	d.append(ledger.Entry{SandboxID: builder, Event: ledger.SandboxIntended, Payload: ledger.SandboxIntendedPayload{Runtime: "fake", Generation: 1, Purpose: setup.PurposeSetup}})
	expect(actionRemove, d.there(builder, runtime.StateRunning), "of a build that was cut short")
	expect(actionKeep, d.there(ids.New(ids.Sandbox), runtime.StateRunning), "unknown")

	// An agent of another runtime is none of this one's business.
	far, farSandbox := ids.New(ids.Agent), ids.New(ids.Sandbox)
	farIntent := intended(far, farSandbox, recovery.PurposeProvision, 1)
	farIntent.Payload = ledger.SandboxIntendedPayload{Runtime: "elsewhere", Generation: 1, Purpose: recovery.PurposeProvision}
	farReleased := farIntent // and its old one is still to be removed there
	farReleased.SandboxID = ids.New(ids.Sandbox)
	d.append(spawnedIn(far, StateRunning, "elsewhere"), farReleased, provisioned(far, farReleased.SandboxID), farIntent, provisioned(far, farSandbox))

	recovers := d.deaf(goneAgent)
	slices.Sort(want)
	before, sandboxes := d.Ledger.LastSeq(), d.rt.Sandboxes()
	for range 2 {
		d.want("dry run", strings.Join(d.plan(true, names), "\n"), strings.Join(want, "\n"))
	}
	d.want("calls of a dry run", d.rt.Calls(), "[]")
	d.want("events of a dry run", d.Ledger.LastSeq()-before, 0)
	d.want("mail of a dry run", len(recovers.mail), 0)

	d.want("run", strings.Join(d.plan(false, names), "\n"), strings.Join(want, "\n"))
	d.want("mail", len(recovers.mail), 1)
	var left []string
	for _, id := range sandboxes {
		if !slices.Contains(want, actionRemove+": "+names[id]) {
			left = append(left, id)
		}
	}
	d.want("sandboxes left", d.rt.Sandboxes(), left)
	for _, c := range d.rt.Calls() {
		if !strings.HasPrefix(c, "Remove ") {
			t.Errorf("called %s", c)
		}
	}
	want = slices.DeleteFunc(want, func(w string) bool {
		return strings.HasPrefix(w, actionRemove) || strings.HasPrefix(w, actionForget)
	})
	d.want("then", strings.Join(d.plan(false, names), "\n"), strings.Join(want, "\n"))
}

// TestGrace: an orphan is reported once and removed when its grace time is over,
// to the moment. One that went and came again has it whole; so has one that a
// new daemon finds.
func TestGrace(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	orphan := ids.New(ids.Sandbox)
	names := map[string]string{orphan: "orphan"}
	reports := func() int {
		t.Helper()
		all, err := d.Ledger.Events(d.ctx, ledger.EventFilter{Names: []string{ledger.SandboxOrphaned}})
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	d.there(orphan, runtime.StateRunning)
	d.want("first seen by a dry run", d.plan(true, names), "[keep: orphan]")
	d.want("reports", reports(), 0)
	d.clock.Advance(deskGrace - time.Second)
	for range 2 {
		d.want("a second before", d.plan(false, names), "[keep: orphan]")
		d.want("reports", reports(), 1)
	}
	if err := d.rt.Remove(d.ctx, orphan); err != nil {
		t.Fatal(err)
	}
	d.want("gone", d.plan(false, names), "[]")
	d.there(orphan, runtime.StateRunning)
	d.want("it is there again", d.plan(false, names), "[keep: orphan]")
	d.clock.Advance(deskGrace - time.Second)
	d.want("a second before", d.plan(false, names), "[keep: orphan]")
	d.orphans = orphanage{} // as after a start
	d.want("a new daemon", d.plan(false, names), "[keep: orphan]")
	d.clock.Advance(deskGrace)
	d.want("dry run when it is over", d.plan(true, names), "[remove: orphan]")
	d.want("sandboxes", d.rt.Sandboxes(), []string{orphan})
	d.want("when it is over", d.plan(false, names), "[remove: orphan]")
	d.want("sandboxes", d.rt.Sandboxes(), "[]")
}

// TestReconcileUnreachable: a list that cannot be had says nothing of any
// sandbox.
func TestReconcileUnreachable(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.agent(StateRunning)
	before := d.Ledger.LastSeq()
	d.rt.Fail["List"] = runtime.ErrUnreachable
	if done, err := d.Reconcile(d.ctx, false); !errors.Is(err, ErrUnavailable) || len(done) > 0 {
		t.Errorf("got %v, %v", done, err)
	}
	d.want("events", d.Ledger.LastSeq(), before)
	d.want("calls", d.rt.Calls(), "[]")
}
