package swarm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/clocktest"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/inside"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/swarm"
)

// patience bounds every wait; only a hang uses it up.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if code, handled := inside.Main(os.Args[1:]); handled { // this program is the bridge, too
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// faulty is the local runtime, which can be made to stop answering.
type faulty struct {
	runtime.Runtime
	silent  atomic.Bool // to everything
	deaf    atomic.Bool // to Dial alone
	created atomic.Int32
	gate    atomic.Pointer[chan struct{}] // Create waits for it to be closed
}

// shut has Create wait until the returned function is called.
func (f *faulty) shut() (open func()) {
	gate := make(chan struct{})
	f.gate.Store(&gate)
	return func() { f.gate.Store(nil); close(gate) }
}

func (f *faulty) err() error {
	if f.silent.Load() {
		return fmt.Errorf("faulty: %w", runtime.ErrUnreachable)
	}
	return nil
}

func (f *faulty) Ping(ctx context.Context) error {
	return errors.Join(f.err(), f.Runtime.Ping(ctx))
}

func (f *faulty) List(ctx context.Context) ([]runtime.Info, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Runtime.List(ctx)
}

func (f *faulty) Inspect(ctx context.Context, id string) (runtime.Info, error) {
	if err := f.err(); err != nil {
		return runtime.Info{}, err
	}
	return f.Runtime.Inspect(ctx, id)
}

func (f *faulty) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if err := f.err(); err != nil || f.deaf.Load() {
		return nil, errors.Join(err, runtime.ErrUnreachable)
	}
	return f.Runtime.Dial(ctx, id)
}

func (f *faulty) Create(ctx context.Context, req runtime.CreateRequest) (runtime.Info, error) {
	f.created.Add(1)
	if gate := f.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return runtime.Info{}, ctx.Err()
		}
	}
	if err := f.err(); err != nil {
		return runtime.Info{}, err
	}
	return f.Runtime.Create(ctx, req)
}

// world is a state directory with a swarm on it.
type world struct {
	*swarm.Swarm
	t      *testing.T
	ctx    context.Context
	dir    string
	clock  *clocktest.Shifted
	rt     *faulty
	ledger *ledger.Ledger
	close  func()
	admits int // sandboxes made at once; 0: the default
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, 0)
}

func newWorldOf(t *testing.T, admits int) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, dir: t.TempDir(), clock: clocktest.New(), admits: admits}
	rt, err := local.New(local.Options{Instance: "test", StateDir: w.dir, Binary: os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	w.rt = &faulty{Runtime: rt}
	t.Cleanup(func() {
		w.close()
		fresh, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		all, err := rt.List(fresh)
		for _, i := range all {
			err = errors.Join(err, rt.Remove(fresh, i.SandboxID))
		}
		if err = errors.Join(err, rt.Close()); err != nil {
			t.Error(err)
		}
	})
	w.open()
	return w
}

// open starts a swarm on what is there, as a daemon's next start does.
func (w *world) open() {
	w.t.Helper()
	l, err := ledger.Open(w.ctx, filepath.Join(w.dir, "ledger.db"), ledger.Options{Clock: w.clock})
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := checkpoint.NewFileStore(filepath.Join(w.dir, "checkpoints"), checkpoint.FileOptions{})
	if err != nil {
		w.t.Fatal(err)
	}

	w.ledger = l
	w.Swarm = swarm.New(swarm.Config{
		Ledger: l, Runtimes: []runtime.Runtime{w.rt}, Harness: registry.Get, Store: store, Clock: w.clock,
		Admitted:    w.admits,
		Choose:      func(context.Context) (runtime.Runtime, error) { return w.rt, nil },
		OrphanGrace: time.Hour, ReconcileEvery: 24 * time.Hour, Backoff: 10 * time.Millisecond, HelloTimeout: 5 * time.Second,
	})
	w.close = func() {
		w.Swarm.Close()
		if report, err := l.Verify(context.Background()); err != nil || !report.OK {
			w.t.Errorf("the projections differ from the log: %+v, %v", report, err)
		}
		store.Close()
		l.Close()
		w.close = func() {}
	}
	if err := w.Start(w.ctx); err != nil {
		w.t.Fatal(err)
	}
}

// run starts an agent and waits until it takes prompts.
func (w *world) run(spec string) string {
	w.t.Helper()
	a, err := w.StartRun(w.ctx, swarm.StartRunRequest{Spec: json.RawMessage(spec)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.await(a.RootAgentID, swarm.StateDone)
	return a.RootAgentID
}

const plain = `{"harness": "scripted"}`

// await waits for an agent to be in a state.
func (w *world) await(id, state string) swarm.AgentView {
	w.t.Helper()
	// From now on: each look asks the agent's bridge, which may be frozen.
	stream := w.Follow(-1, "")
	defer stream.Close()
	for {
		v, err := w.Agent(w.ctx, id)
		if err != nil {
			w.t.Fatal(err)
		}
		if v.State == state {
			return v
		}
		if _, err := stream.Next(w.ctx); err != nil {
			w.t.Fatalf("waiting for %s to be %s, which is %s: %v", id, state, v.State, err)
		}
	}
}

func (w *world) prompt(id, text, key string) (swarm.PromptAnswer, error) {
	r := swarm.PromptRequest{Text: text}
	if key != "" {
		r.Idempotency = swarm.Idempotency{Scope: "prompt " + id, Key: key, BodyHash: text}
	}
	return w.Prompt(w.ctx, id, r)
}

// ask asks for a turn and returns its result.
func (w *world) ask(id, text string) string {
	w.t.Helper()
	if _, err := w.prompt(id, text, ""); err != nil {
		w.t.Fatal(err)
	}
	return w.result(id)
}

func (w *world) result(id string) string {
	w.t.Helper()
	v, err := w.Result(w.ctx, id, patience)
	if err != nil || v.State != "settled" {
		w.t.Fatalf("result of %s: %+v, %v", id, v, err)
	}
	if v.Result == nil {
		return *v.Outcome
	}
	return *v.Outcome + " " + *v.Result
}

func (w *world) want(what string, got, want any) {
	w.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// events are the names of what is stored of an agent.
func (w *world) events(id string, names ...string) []ledger.Event {
	w.t.Helper()
	all, err := w.ledger.Events(w.ctx, ledger.EventFilter{AgentID: id, Names: names})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func (w *world) recovered(id string) []ledger.AgentRecoveredPayload {
	w.t.Helper()
	var all []ledger.AgentRecoveredPayload
	for _, e := range w.events(id, ledger.AgentRecovered) {
		var p ledger.AgentRecoveredPayload
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func (w *world) home(id, file string) string {
	w.t.Helper()
	v, err := w.Agent(w.ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return filepath.Join(w.dir, "sandboxes", *v.SandboxID, "home", file)
}

// TestActions: in each state each action is allowed, or refused with a
// conflict that names both.
func TestActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idem := swarm.Idempotency{}
	actions := map[string]func(id string) error{
		"steer": func(id string) error { _, err := w.Steer(w.ctx, id, "x", idem); return err },
		"pause": func(id string) error { _, err := w.Pause(w.ctx, id, idem); return err },
		"resume": func(id string) error {
			_, err := w.Resume(w.ctx, id, idem)
			return err
		},
		"revive": func(id string) error { _, err := w.Revive(w.ctx, id, idem); return err },
		"exec": func(id string) error {
			_, err := w.Exec(w.ctx, id, swarm.ExecRequest{Command: []string{"true"}}, idem)
			return err
		},
		"prompt":     func(id string) error { _, err := w.prompt(id, "say x", ""); return err },
		"checkpoint": func(id string) error { _, err := w.TakeCheckpoint(w.ctx, id, idem); return err },
		"recover":    func(id string) error { _, err := w.Recover(w.ctx, id, idem); return err },
		"stop":       func(id string) error { _, err := w.Stop(w.ctx, id, "abort", idem); return err },
	}
	states := map[string]struct {
		refuses []string
		reach   func(id string)
	}{
		swarm.StateDone: {[]string{"steer", "resume", "revive"}, func(string) {}},
		swarm.StateRunning: {[]string{"resume", "revive", "checkpoint"}, func(id string) {
			if _, err := w.prompt(id, "run while :; do sleep 0.1; done", ""); err != nil {
				t.Fatal(err)
			}
		}},
		swarm.StateBlocked: {[]string{"revive"}, func(id string) {
			if _, err := w.prompt(id, "ask may I?", ""); err != nil {
				t.Fatal(err)
			}
		}},
		swarm.StatePaused: {[]string{"steer", "revive", "exec", "checkpoint"}, func(id string) {
			if err := actions["pause"](id); err != nil {
				t.Fatal(err)
			}
		}},
		swarm.StateStopped: {[]string{"steer", "pause", "resume", "exec", "prompt", "checkpoint", "recover"}, func(id string) {
			if _, err := w.Stop(w.ctx, id, "stop", idem); err != nil {
				t.Fatal(err)
			}
		}},
		swarm.StateAborted: {[]string{"steer", "pause", "resume", "revive", "exec", "prompt", "checkpoint", "recover", "stop"}, func(id string) {
			if err := actions["stop"](id); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for state, s := range states {
		id := w.run(plain)
		s.reach(id)
		w.await(id, state)
		for name, do := range actions {
			if !slices.Contains(s.refuses, name) {
				continue
			}
			err := do(id)
			if !errors.Is(err, swarm.ErrConflict) || !strings.Contains(err.Error(), state) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s while %s: %v", name, state, err)
			}
			if v := w.await(id, state); v.State != state { // it changed nothing
				t.Errorf("%s while %s led to %s", name, state, v.State)
			}
		}
	}
	// What is allowed, each from the state the one before left.
	id := w.run(plain)
	for _, step := range []struct{ action, then string }{
		{"exec", swarm.StateDone}, {"checkpoint", swarm.StateDone}, {"recover", swarm.StateDone}, {"pause", swarm.StatePaused},
		{"resume", swarm.StateDone}, {"prompt", swarm.StateDone}, {"stop", swarm.StateAborted},
	} {
		if err := actions[step.action](id); err != nil {
			t.Errorf("%s: %v", step.action, err)
		}
		w.await(id, step.then)
		if step.action == "prompt" {
			w.result(id)
			w.await(id, step.then)
		}
	}
}

// TestPromptsInOrder: prompts are taken one after another, each key once.
func TestPromptsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.run(plain)
	first, err := w.prompt(id, "sleep 0.2\nsay 0", "key")
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 5; n++ {
		if _, err := w.prompt(id, fmt.Sprintf("say %d", n), ""); err != nil {
			t.Fatal(err)
		}
	}
	again, err := w.prompt(id, "sleep 0.2\nsay 0", "key")
	if err != nil || again != first {
		t.Errorf("the same request: %+v, %v; want %+v", again, err, first)
	}
	var of *swarm.Error
	if _, err := w.prompt(id, "say other", "key"); !errors.Is(err, swarm.ErrConflict) || !errors.As(err, &of) || of.Code != "key_reused" {
		t.Errorf("the key with another body: %v", err)
	}
	w.want("last result", w.result(id), "success 4")
	view, err := w.Transcript(w.ctx, id, false)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, turn := range view.Turns {
		said = append(said, turn.Messages[len(turn.Messages)-1].Text)
	}
	w.want("what was said", said, "[0 1 2 3 4]")
}

// TestFollow: a stream that begins anywhere gets each stored event after that
// once, in order, whether it was stored before or comes while it reads.
func TestFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.run(plain)
	w.ask(id, "say one")
	for _, after := range []int64{0, 3, w.ledger.LastSeq()} {
		stream := w.Follow(after, "")
		w.ask(id, "flood 30\nsay more")
		var got []int64
		for len(got) == 0 || got[len(got)-1] < w.ledger.LastSeq() {
			e, err := stream.Next(w.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq != 0 {
				got = append(got, e.Seq)
			}
		}
		stream.Close()
		all, err := w.ledger.Events(w.ctx, ledger.EventFilter{After: after, Upto: got[len(got)-1]})
		if err != nil {
			t.Fatal(err)
		}
		var want []int64
		for _, e := range all {
			if ledger.Public(e.Event) {
				want = append(want, e.Seq)
			}
		}
		w.want(fmt.Sprintf("stream after %d", after), got, want)
	}
	stream := w.Follow(0, "")
	stream.Close()
	for {
		if _, err := stream.Next(w.ctx); err != nil {
			w.want("a closed stream", err, io.EOF)
			break
		}
	}
}

// TestOrphan: a sandbox that nobody claims is kept for its grace time, reported
// once, and then removed. A dry run changes nothing.
func TestOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	orphan := ids.New(ids.Sandbox)
	if _, err := w.rt.Create(w.ctx, runtime.CreateRequest{Labels: runtime.Labels{SandboxID: orphan, RunID: "r_0000aaaa", AgentID: "a_0000aaaa", Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	claimed := *w.await(w.run(plain), swarm.StateDone).SandboxID
	reconcile := func(dry bool) string {
		t.Helper()
		actions, err := w.Reconcile(w.ctx, dry)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, a := range actions {
			all = append(all, a.Action+" "+strings.Replace(a.SandboxID, orphan, "orphan", 1))
		}
		return strings.Join(all, ", ")
	}
	reports := func() int {
		n := 0
		all, err := w.ledger.Events(w.ctx, ledger.EventFilter{Names: []string{ledger.SandboxOrphaned}})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.SandboxID == orphan {
				n++
			}
		}
		return n
	}
	before := w.ledger.LastSeq()
	w.want("dry run", reconcile(true), "keep orphan")
	w.want("events of a dry run", w.ledger.LastSeq()-before, 0)
	for range 2 {
		w.want("within its grace time", reconcile(false), "keep orphan")
		w.want("reports", reports(), 1)
	}
	w.clock.Shift(time.Hour + time.Minute)
	w.want("dry run after its grace time", reconcile(true), "remove orphan")
	if _, err := w.rt.Inspect(w.ctx, orphan); err != nil {
		t.Errorf("a dry run removed it: %v", err)
	}
	w.want("after its grace time", reconcile(false), "remove orphan")
	if _, err := w.rt.Inspect(w.ctx, orphan); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
	w.want("then", reconcile(false), "")
	if _, err := w.rt.Inspect(w.ctx, claimed); err != nil {
		t.Errorf("the agent's own sandbox: %v", err)
	}
}

// TestUnreachable: a runtime that does not answer is no dead agent, wherever on
// the ladder it falls silent. Nothing is made in the agent's place, and it is
// asked again.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]func(*faulty) *atomic.Bool{
		"to everything": func(f *faulty) *atomic.Bool { return &f.silent },
		"to dialling":   func(f *faulty) *atomic.Bool { return &f.deaf },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.run(plain)
			w.ask(id, "say one")
			before := *w.await(id, swarm.StateDone).SandboxID
			w.close()
			silent := silence(w.rt)
			silent.Store(true)
			made := w.rt.created.Load()
			w.open()
			v := w.await(id, swarm.StateRecovering)
			w.want("why", v.Recovering, "runtime_unreachable")
			<-w.Booted()
			w.want("ready", w.Readiness().Ready, true)
			if _, err := w.Reconcile(w.ctx, false); w.rt.silent.Load() && !errors.Is(err, swarm.ErrUnavailable) {
				t.Errorf("reconciling: %v", err)
			}
			if _, err := w.prompt(id, "say two", ""); err != nil { // it waits
				t.Error(err)
			}
			silent.Store(false)
			w.want("the prompt that waited", w.result(id), "success two")
			w.want("sandboxes made", w.rt.created.Load()-made, 0)
			w.want("sandbox", *w.await(id, swarm.StateDone).SandboxID, before)
			back := w.recovered(id)
			w.want("rung", back[len(back)-1].Rung, "reattached")
		})
	}
}

// loseSession destroys an agent's session file and its harness: what runs in
// its sandbox next has another session.
func (w *world) loseSession(id string) {
	w.t.Helper()
	v, err := w.Agent(w.ctx, id)
	if err != nil || v.SessionStats == nil {
		w.t.Fatalf("%+v, %v", v, err)
	}
	home := w.home(id, "")
	err = filepath.WalkDir(home, func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), v.SessionStats.SessionID) {
			return os.Remove(path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := os.FindProcess(v.SessionStats.PID)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		w.t.Fatal(err)
	}
}

// TestLostSession: a harness that comes back with another session has not come
// back. With a checkpoint the agent is restored; without one its workspace must
// not be lost to a blank agent, and a person decides.
func TestLostSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept, bare := w.run(`{"harness": "scripted", "checkpoint": true}`), w.run(plain)
	for _, id := range []string{kept, bare} {
		w.ask(id, "say one")
	}
	stream := w.Follow(0, "")
	defer stream.Close()
	for len(w.events(kept, ledger.AgentCheckpointed)) == 0 {
		if _, err := stream.Next(w.ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := *w.await(kept, swarm.StateDone).SandboxID
	w.loseSession(kept)
	for len(w.recovered(kept)) == 0 {
		if _, err := stream.Next(w.ctx); err != nil {
			t.Fatal(err)
		}
	}
	back := w.recovered(kept)[0]
	w.want("rung", back.Rung, "restored")
	w.want("previous sandbox", back.PreviousSandboxID, before)
	w.want("checkpoint", back.Checkpoint.Turn, 1)
	var tried []string
	for _, a := range back.Attempts {
		tried = append(tried, a.Rung)
	}
	w.want("rungs tried", tried, "[reattached resumed]")
	w.want("conversation", w.ask(kept, "count"), "success count: 2")

	w.loseSession(bare)
	v := w.await(bare, swarm.StateCrashed)
	if _, err := os.Stat(filepath.Join(w.dir, "sandboxes", *v.SandboxID, "home")); err != nil {
		t.Errorf("its workspace: %v", err)
	}
}

// TestBlank: an agent without a checkpoint whose sandbox is gone comes back
// blank, and says so.
func TestBlank(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.run(plain)
	w.ask(id, "say one")
	sandbox := *w.await(id, swarm.StateDone).SandboxID
	w.close()
	if err := w.rt.Remove(w.ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	w.open()
	<-w.Booted()
	back := w.recovered(id)[0]
	if back.Rung != "restored" || !back.Blank || back.Checkpoint != nil {
		t.Errorf("%+v", back)
	}
	w.want("conversation", w.ask(id, "count"), "success count: 0")
}

// TestUnsetVariable: it is named before anything is made; and an agent whose
// variable went missing is not lost, but waits for a person.
func TestUnsetVariable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.rt.created.Load()
	_, err := w.StartRun(w.ctx, swarm.StartRunRequest{Spec: json.RawMessage(`{"harness": "scripted", "env": {"A": "${NOWHERE}"}}`)})
	if err == nil || !strings.Contains(err.Error(), "NOWHERE") {
		t.Errorf("%v", err)
	}
	w.want("sandboxes made", w.rt.created.Load()-made, 0)
	agents, err := w.Agents(w.ctx)
	if err != nil || len(agents) != 0 {
		t.Errorf("agents: %v, %v", agents, err)
	}
}
