package swarm_test

import (
	"errors"
	"testing"

	"github.com/alineod/alineod/internal/swarm"
)

// asked waits until an agent waits for an answer, and returns the request.
func (w *world) asked(id, state string) swarm.PermissionView {
	w.t.Helper()
	stream := w.Follow(-1, "")
	defer stream.Close()
	for {
		all, err := w.Permissions(w.ctx, id)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, p := range all {
			if p.State == state {
				return p
			}
		}
		if _, err := stream.Next(w.ctx); err != nil {
			w.t.Fatalf("waiting for a request of %s that is %s: %+v, %v", id, state, all, err)
		}
	}
}

func (w *world) answer(id, requestID, decision string) {
	w.t.Helper()
	if _, err := w.AnswerPermission(w.ctx, id, requestID, decision, "", swarm.Idempotency{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestParkedRequest: a request whose turn did not survive is answered with what
// was decided of it, where it is asked again; once.
func TestParkedRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The answer comes while the agent is away, and its sandbox is lost.
	id := w.run(`{"harness": "scripted", "onInterrupt": "retry"}`)
	if _, err := w.prompt(id, "ask may I?\nsay yes", ""); err != nil {
		t.Fatal(err)
	}
	first := w.asked(id, "pending")
	sandbox := *w.await(id, swarm.StateBlocked).SandboxID
	w.close()
	if err := w.rt.Remove(w.ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	w.rt.silent.Store(true)
	w.open()
	w.await(id, swarm.StateRecovering)
	w.answer(id, first.RequestID, "once")
	if _, err := w.AnswerPermission(w.ctx, id, first.RequestID, "reject", "", swarm.Idempotency{}); !errors.Is(err, swarm.ErrConflict) {
		t.Errorf("a second answer: %v", err)
	}
	w.rt.silent.Store(false)
	w.want("asked again and answered", w.result(id), "success yes")
	w.want("turns", w.await(id, swarm.StateDone).Turn, 2)

	// One that is answered only after its turn was given up.
	idle := w.run(plain)
	if _, err := w.prompt(idle, "ask may I?\nsay yes", ""); err != nil {
		t.Fatal(err)
	}
	w.asked(idle, "pending")
	sandbox = *w.await(idle, swarm.StateBlocked).SandboxID
	if err := w.rt.Remove(w.ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	w.want("given up", w.result(idle), "interrupted")
	w.answer(idle, w.asked(idle, "parked").RequestID, "reject")
	w.want("asked again", w.ask(idle, "ask may I?"), "success answer: reject")
	if _, err := w.prompt(idle, "ask may I?", ""); err != nil {
		t.Fatal(err)
	}
	w.answer(idle, w.asked(idle, "pending").RequestID, "once") // it is not answered by itself
	w.want("answered", w.result(idle), "success answer: once")
}
