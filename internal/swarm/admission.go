package swarm

import (
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ledger"
)

// errNotAdmitted: too many sandboxes were being made for too long.
var errNotAdmitted = errors.New("its turn to have a sandbox made did not come in time")

// admission bounds how many sandboxes are made at the same time. Runs take
// turns; within a run the agent that was spawned first goes first. Its methods
// are safe for concurrent use.
type admission struct {
	mu     sync.Mutex
	free   int
	queues map[string][]*ticket // by run
	order  []string             // runs with a queue, the next one first
}

// ticket is an agent's place in the queue, then its leave to go on.
type ticket struct {
	run     string
	seq     int64
	granted bool
	call    func() // tells its owner
}

func newAdmission(places int) *admission {
	return &admission{free: places, queues: map[string][]*ticket{}}
}

// join queues for a place. call is called, with no lock held by the caller,
// when it is granted later than at once. ahead are those before it in its run.
func (a *admission) join(run string, seq int64, call func()) (t *ticket, ahead int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t = &ticket{run: run, seq: seq, call: call}
	if a.free > 0 { // then nobody waits
		a.free--
		t.granted = true
		return t, 0
	}
	q := a.queues[run]
	if len(q) == 0 {
		a.order = append(a.order, run)
	}
	ahead, _ = slices.BinarySearchFunc(q, seq, func(t *ticket, seq int64) int { return int(t.seq - seq) })
	a.queues[run] = slices.Insert(q, ahead, t)
	return t, ahead
}

// admitted reports whether the place is the ticket's.
func (a *admission) admitted(t *ticket) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return t.granted
}

// leave gives a place, or a place in the queue, back.
func (a *admission) leave(t *ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !t.granted {
		a.remove(t)
		return
	}
	if len(a.order) == 0 {
		a.free++
		return
	}
	next := a.queues[a.order[0]][0]
	a.remove(next)
	next.granted = true
	next.call()
}

// remove takes a ticket out of its queue; the run goes behind the others.
func (a *admission) remove(t *ticket) {
	q := slices.DeleteFunc(a.queues[t.run], func(o *ticket) bool { return o == t })
	first := len(a.order) > 0 && a.order[0] == t.run
	if len(q) == 0 {
		delete(a.queues, t.run)
		a.order = slices.DeleteFunc(a.order, func(run string) bool { return run == t.run })
		return
	}
	a.queues[t.run] = q
	if first {
		a.order = append(a.order[1:], t.run)
	}
}

// admit reports whether the agent's sandbox may be made now. One that has to
// wait is queued, and that is recorded.
func (o *owner) admit() bool {
	if o.ticket == nil {
		ahead := o.join()
		if !o.s.admission.admitted(o.ticket) && o.row.QueuedAt == 0 {
			if err := o.append(ledger.Entry{Event: ledger.AdmissionQueued, Payload: ledger.AdmissionPayload{Ahead: ahead}}); err != nil {
				o.fail("recording that the agent is queued", err)
				return false
			}
			hit("swarm.admission-queued")
		}
	}
	if o.s.admission.admitted(o.ticket) {
		return o.granted()
	}
	o.passed()
	deadline := time.UnixMilli(o.row.QueuedAt).Add(o.s.AdmissionTimeout)
	if o.s.Clock.Now().Before(deadline) {
		o.wakeAt(deadline)
		return false
	}
	o.leave()
	o.notAdmitted()
	return false
}

// join queues the agent; ahead are those before it in its run.
func (o *owner) join() (ahead int) {
	o.ticket, ahead = o.s.admission.join(o.runID, o.row.SpawnedSeq, func() { _ = o.post(func() {}) })
	return ahead
}

func (o *owner) granted() bool {
	if o.row.QueuedAt == 0 {
		return true
	}
	waited := max(0, o.s.Clock.Now().UnixMilli()-o.row.QueuedAt)
	if err := o.append(ledger.Entry{Event: ledger.AdmissionGranted, Payload: ledger.AdmissionPayload{WaitedMs: waited}}); err != nil {
		o.fail("recording that the agent is admitted", err)
		return false
	}
	return true
}

// notAdmitted ends the wait of an agent whose turn did not come in time.
func (o *owner) notAdmitted() {
	waited := o.s.Clock.Now().UnixMilli() - o.row.QueuedAt
	o.log.Warn("agent waited too long for its sandbox to be made", zap.Int64("waitedMs", waited))
	if err := o.append(ledger.Entry{Event: ledger.AdmissionTimeout, Payload: ledger.AdmissionPayload{WaitedMs: waited}}); err != nil {
		o.fail("recording that the agent was not admitted", err)
		return
	}
	o.notProvisioned(errNotAdmitted)
}

// leave gives back the agent's place where it makes no sandbox any more.
func (o *owner) leave() {
	if o.ticket != nil {
		o.s.admission.leave(o.ticket)
		o.ticket = nil
	}
}
