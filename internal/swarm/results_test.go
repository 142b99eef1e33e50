package swarm_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/swarm"
)

// TestResults: the result is the last turn's own: open again when a prompt is
// accepted, and never an older turn's text where a turn had none.
func TestResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.run(plain)
	open := func(when string) {
		t.Helper()
		v, err := w.Result(w.ctx, id, 0)
		if err != nil || v.State != "pending" || v.Outcome != nil || v.Result != nil || v.ResultRef != nil {
			t.Errorf("%s: %+v, %v", when, v, err)
		}
	}
	open("before the first prompt")
	w.want("a turn that ended well", w.ask(id, "say one"), "success one")
	w.await(id, swarm.StateDone)

	if _, err := w.prompt(id, "ask may I?\nsay two", ""); err != nil {
		t.Fatal(err)
	}
	open("while the next turn runs")
	if v, err := w.Result(w.ctx, id, time.Millisecond); err != nil || v.State != "pending" {
		t.Errorf("after waiting: %+v, %v", v, err)
	}
	stream := w.Follow(0, "")
	defer stream.Close()
	var asked []swarm.PermissionView
	for len(asked) == 0 {
		if _, err := stream.Next(w.ctx); err != nil {
			t.Fatal(err)
		}
		var err error
		if asked, err = w.Permissions(w.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.AnswerPermission(w.ctx, id, asked[0].RequestID, "once", "", swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	w.want("when it was answered", w.result(id), "success two")
	w.await(id, swarm.StateDone)

	w.want("a turn that failed", w.ask(id, "fail no model"), "failed ") // its own text, which is empty
	w.await(id, swarm.StateFailed)
	if v, err := w.Result(w.ctx, id, 0); err != nil || !strings.Contains(v.Error, "no model") {
		t.Errorf("it does not say why: %+v, %v", v, err)
	}
	w.want("the next one", w.ask(id, "say three"), "success three")
	w.await(id, swarm.StateDone)
	view, err := w.Transcript(w.ctx, id, false)
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []string
	for _, turn := range view.Turns {
		outcomes = append(outcomes, turn.Outcome)
	}
	w.want("outcomes", outcomes, "[success success failed success]")
}

// TestForeign: what another instance has below the same directory is neither
// seen nor touched, however long it is nobody's.
func TestForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, err := local.New(local.Options{Instance: "other", StateDir: w.dir, Binary: os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	id := ids.New(ids.Sandbox)
	if _, err := other.Create(w.ctx, runtime.CreateRequest{Labels: runtime.Labels{SandboxID: id, RunID: "r_0000aaaa", AgentID: "a_0000aaaa", Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Remove(w.ctx, id); err != nil {
			t.Error(err)
		}
	}()
	for _, shift := range []time.Duration{0, 2 * time.Hour} {
		w.clock.Shift(shift)
		if done, err := w.Reconcile(w.ctx, false); err != nil || len(done) > 0 {
			t.Errorf("after %s: %+v, %v", shift, done, err)
		}
	}
	if info, err := other.Inspect(w.ctx, id); err != nil || info.State != runtime.StateRunning {
		t.Errorf("it is %+v, %v", info, err)
	}
	if _, err := w.SandboxAttach(w.ctx, id, swarm.Idempotency{}); !errors.Is(err, swarm.ErrNotFound) {
		t.Errorf("attaching to it: %v", err)
	}
}
