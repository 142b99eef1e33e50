package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/spec"
)

func hit(name string) { failpoint.Hit(name) }

const (
	mailboxSize = 64
	// askTimeout bounds a short call to a bridge that is known to be alive.
	askTimeout = 30 * time.Second
)

// owner is the one goroutine that an agent's life happens in. Its fields
// belong to that goroutine, save id, runID, mail and done.
type owner struct {
	s     *Swarm
	id    string
	runID string
	log   *zap.Logger
	mail  chan func()
	over  chan struct{} // closed when run has returned

	row  ledger.Agent
	spec *spec.Spec
	h    harness.Harness
	rt   runtime.Runtime // nil: not at hand
	bad  error           // why this record cannot be worked with
	// stale: row is older than the ledger's, which could not be read.
	stale bool

	live    *live.Agent
	records <-chan []bridge.Record
	waiting []bridge.Record // could not be stored yet
	turnID  string          // handed to the harness and not ended
	cutOff  string          // the turn that was interrupted since the agent was last brought back

	task     *task
	done     chan func()
	catching bool // the gap of the journal is being read: ends in it are old news
	settled  bool // the paused sandbox was looked at
	relook   bool // the runtime reported something during a task
	from     recovery.Rung
	gentle   bool
	known    *runtime.Info
	gone     bool
	revive   bool
	backoff  time.Duration
	timer    clockwork.Timer
	alarm    <-chan time.Time
	wake     clockwork.Timer // when a held agent looks again; nil: it need not
	waiters  []chan<- wayBack
	ticket   *ticket         // in the queue for having a sandbox made
	news     atomic.Bool     // others have changed the row
	heard    time.Time       // when the harness last said something
	silenced string          // the turn that was ended for its silence
	answered map[string]bool // requests whose answer was handed over by way of it
	said     map[int64]bool  // what of the inbox was said by way of this connection
	guests   chan struct{}   // one token for each connection of a program in the sandbox
	by       string          // the agent that asks for what is being done
	booting  bool            // not yet through the boot pass
	held     bool            // the runtime's list is not in yet
}

// taskCheckpoint names the task that the ladder waits for.
const taskCheckpoint = "checkpoint"

// task is a long operation of an agent; there is one at a time.
type task struct {
	name   string
	cancel context.CancelFunc
}

type wayBack struct {
	view WayBack
	err  error
}

func newOwner(s *Swarm, a ledger.Agent, booting bool) *owner {
	o := &owner{s: s, id: a.AgentID, runID: a.RunID, row: a, mail: make(chan func(), mailboxSize), over: make(chan struct{}),
		done: make(chan func(), 1), guests: make(chan struct{}, maxGuests), from: recovery.Reattached, booting: booting, held: booting,
		rt:  s.runtimes[a.Runtime],
		log: s.Log.With(zap.String("agent", a.AgentID), zap.String("run", a.RunID))}
	return o
}

// run is the supervisor loop of one agent.
func (o *owner) run() {
	defer close(o.over)
	defer o.s.disown(o.id)
	defer o.release()
	if o.bad = o.load(); o.bad != nil {
		o.log.Error("agent's record cannot be used; it is set aside", zap.Error(o.bad))
		o.passed()
	}
	pulse := o.s.Clock.NewTicker(pulseEvery)
	defer pulse.Stop()
	for {
		o.step()
		if o.task == nil && (o.row.State != StateProvisioning || o.row.StopMode != "" || o.alarm != nil) {
			o.leave()
		}
		if isFinal(o.row.State) && o.task == nil {
			o.passed()
			return
		}
		var ephemerals <-chan bridge.Ephemeral
		if o.live != nil {
			ephemerals = o.live.Ephemerals()
		}
		var knocks <-chan struct{}
		if o.live != nil {
			knocks = o.live.Knocks()
		}
		records := o.records
		if o.waiting != nil {
			records = nil
		}
		var wake <-chan time.Time
		if o.wake != nil {
			wake = o.wake.Chan()
		}
		select {
		case <-o.s.ctx.Done():
			return
		case <-knocks:
			o.takeIn()
		case <-wake:
			o.wake = nil
		case f := <-o.mail:
			f()
		case f := <-o.done:
			o.task = nil
			f()
			if o.relook { // something happened meanwhile
				o.relook, o.settled = false, false
			}
		case batch, ok := <-records:
			if ok {
				o.heard = o.s.Clock.Now()
				o.ingest(o.row.SandboxID, batch)
			} else {
				o.lostBridge(o.live.Err())
			}
		case e, ok := <-ephemerals:
			if ok {
				o.heard = o.s.Clock.Now()
				o.s.live.publish(o.row.RunID, o.id, e)
			}
		case <-pulse.Chan():
			o.beat()
		case <-o.alarm:
			o.alarm = nil
		}
	}
}

// release lets go of everything but the sandbox.
func (o *owner) release() {
	if o.task != nil {
		o.task.cancel()
		<-o.done // what it came to, the next boot finds out
	}
	o.disconnect()
	o.disarm()
	o.leave()
	o.s.hold(o, false)
	if o.wake != nil {
		o.wake.Stop()
	}
	err := o.s.ctx.Err()
	if err == nil {
		err = refused("wait for", o.row.State)
	}
	o.answer(WayBack{}, err)
}

// load reads what the owner needs beside the row.
func (o *owner) load() error {
	body, err := o.s.Ledger.Body(o.s.ctx, o.row.SpawnedSeq)
	if err != nil {
		return fmt.Errorf("reading the spec of %s: %w", o.id, err)
	}
	var stored struct{ Spec json.RawMessage }
	if err := json.Unmarshal(body, &stored); err != nil {
		return fmt.Errorf("reading the spec of %s: %w", o.id, err)
	}
	if o.spec, _, err = spec.Parse(stored.Spec); err != nil {
		return fmt.Errorf("reading the spec of %s: %w", o.id, err)
	}
	if o.h, err = o.s.Harness(o.row.Harness); err != nil {
		return fmt.Errorf("agent %s: %w", o.id, err)
	}
	open, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, States: []string{"started"}, Limit: 1})
	if err != nil {
		return fmt.Errorf("reading the turns of %s: %w", o.id, err)
	}
	if len(open) > 0 {
		o.turnID = open[0].TurnID
	}
	return nil
}

// post hands f to the owner without waiting: ErrUnavailable when the mailbox
// is full, ErrConflict when the owner is gone.
func (o *owner) post(f func()) error {
	select {
	case <-o.over:
		return &Error{Kind: ErrConflict, Code: "agent_ended", Message: "agent " + o.id + " has just ended"}
	default:
	}
	select {
	case o.mail <- f:
		return nil
	default:
		return &Error{Kind: ErrUnavailable, Code: "busy", Message: "agent " + o.id + " has too many requests waiting"}
	}
}

// ask has the owner run f and waits for its answer.
func ask[T any](ctx context.Context, o *owner, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	var zero T
	if err := o.post(func() {
		if o.bad != nil {
			ch <- answer{zero, &Error{Kind: ErrConflict, Code: "bad_record", Message: o.bad.Error()}}
			return
		}
		v, err := f()
		ch <- answer{v, err}
	}); err != nil {
		return zero, err
	}
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-o.over:
		select {
		case a := <-ch:
			return a.v, a.err
		default:
			return zero, &Error{Kind: ErrUnavailable, Code: "stopping", Message: "agent " + o.id + " was let go before it answered"}
		}
	}
}

// begin starts a task. What run returns is called in the owner's goroutine.
func (o *owner) begin(name string, limit time.Duration, run func(ctx context.Context) func()) {
	ctx, cancel := context.WithCancel(o.s.ctx)
	if limit > 0 {
		ctx, cancel = context.WithTimeout(o.s.ctx, limit)
	}
	o.task = &task{name: name, cancel: cancel}
	o.s.work.Go(func() {
		defer cancel()
		o.done <- run(ctx)
	})
}

// step looks at what the ledger says of the agent and begins what is to be done
// next. It is called after everything that happens and may be called at any
// time: it is level-triggered.
func (o *owner) step() {
	if o.bad != nil || o.task != nil || o.held || o.alarm != nil {
		return
	}
	if o.news.Swap(false) {
		o.reread()
	}
	if o.stale {
		if o.reread(); o.stale {
			return
		}
		o.calm()
	}
	if o.waiting != nil {
		o.retryWaiting()
		return
	}
	state := o.row.State
	switch {
	case isFinal(state):
	case o.row.StopMode == stopAbort:
		o.beginAbort()
	case o.row.StopMode == stopStop, o.row.StopMode == stopDrain && o.drained():
		o.beginStop()
	case o.revive:
		o.beginClimb()
	case state == StateStopped, state == StateCrashed:
		o.passed()
	case o.rt == nil:
		o.hold(fmt.Errorf("runtime %q is not at hand", o.row.Runtime))
	case state == StateSpawning:
		o.beginHeld()
	case state == StateProvisioning && !o.admit():
	case state == StateProvisioning && o.row.ParentAgentID != "" && o.row.ForkImage == "":
		o.passed()
		o.beginFork()
	case state == StateProvisioning:
		o.beginProvision()
	case state == StateRecovering, state == StateLost:
		o.beginClimb()
	case state == StatePaused:
		if o.live == nil && !o.settled {
			o.beginClimb()
		} else {
			o.passed()
		}
	case o.live == nil:
		o.beginClimb()
	case state == StateBlocked:
		o.passed() // until a person lets it go on, or answers
		if err := o.handAnswers(); err != nil {
			o.log.Warn("handing over an answer", zap.Error(err))
		}
	default:
		o.passed()
		o.work()
	}
}

// work is what a connected agent does: what is owed first, then the next turn.
func (o *owner) work() {
	if o.turnID != "" {
		o.tell()
		return
	}
	if owed, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, OwesCheckpoint: true, Desc: true, Limit: 1}); err != nil {
		o.fail("reading what is owed", err)
	} else if len(owed) > 0 {
		o.beginCheckpoint(owed[0])
	} else if o.row.StopMode == "" {
		o.deliverNext()
	}
}

// passed notes that the boot pass is through with this agent.
func (o *owner) passed() {
	if o.booting {
		o.booting = false
		o.s.ready.passed()
	}
}

// append writes a batch and reads the agent's row again.
func (o *owner) append(entries ...ledger.Entry) error {
	_, err := o.appendBatch(ledger.Batch{Entries: entries})
	return err
}

func (o *owner) appendBatch(b ledger.Batch) ([]ledger.Event, error) {
	for i := range b.Entries {
		b.Entries[i].RunID = o.row.RunID
		b.Entries[i].By = o.by
		if b.Entries[i].AgentID == "" { // else it is for another's inbox
			b.Entries[i].AgentID = o.id
		}
	}
	events, err := o.s.Ledger.Append(o.s.ctx, b)
	if err != nil {
		return nil, err
	}
	o.reread()
	return events, nil
}

// reread reads the agent's row again. What was appended stands, whether or not
// that works: until it does, the owner does nothing.
func (o *owner) reread() {
	row, err := o.s.Ledger.Agent(context.WithoutCancel(o.s.ctx), o.id)
	if o.stale = err != nil; o.stale {
		o.fail("reading the agent", err)
		return
	}
	if row.State != o.row.State {
		o.log.Info("state changed", zap.String("from", o.row.State), zap.String("to", row.State),
			zap.String("sandbox", row.SandboxID), zap.String("reason", row.Reason))
	}
	o.row = row
}

// change is the entry of a change of state.
func (o *owner) change(to, reason string) ledger.Entry {
	return ledger.Entry{SandboxID: o.row.SandboxID, Event: ledger.AgentStateChanged,
		Payload: ledger.AgentStateChangedPayload{From: o.row.State, To: to, Reason: reason}}
}

// fail is for what must not fail and did (a full disk, mostly): it is logged
// and the agent is looked at again after a pause.
func (o *owner) fail(doing string, err error) {
	if o.s.ctx.Err() != nil {
		return
	}
	o.log.Error("cannot go on; trying again", zap.String("doing", doing), zap.Error(err))
	o.again()
}

// again arms the alarm with the next pause of the backoff.
func (o *owner) again() {
	if o.backoff == 0 {
		o.backoff = o.s.Backoff
	}
	o.disarm()
	o.timer = o.s.Clock.NewTimer(o.backoff)
	o.alarm = o.timer.Chan()
	o.backoff = min(2*o.backoff, o.s.BackoffMax)
	o.passed()
}

func (o *owner) disarm() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer, o.alarm = nil, nil
	}
}

// calm ends the backoff: something worked.
func (o *owner) calm() {
	o.disarm()
	o.backoff = 0
}

func (o *owner) disconnect() {
	if o.live != nil {
		o.live.Close()
		o.live, o.records, o.said, o.answered = nil, nil, nil, nil
	}
}

// lostBridge takes the end of the connection: the ladder finds out why.
func (o *owner) lostBridge(err error) {
	o.log.Info("connection to the bridge ended", zap.String("sandbox", o.row.SandboxID), zap.Error(err))
	o.disconnect()
	o.from, o.known, o.gone, o.settled = recovery.Reattached, nil, false, false
}

// answer tells everyone who waits for the ladder.
func (o *owner) answer(v WayBack, err error) {
	for _, w := range o.waiters {
		w <- wayBack{v, err}
	}
	o.waiters = nil
}

// ctxShort bounds a short call to the bridge.
func (o *owner) ctxShort() (context.Context, context.CancelFunc) {
	return context.WithTimeout(o.s.ctx, askTimeout)
}

// connectionLost reports an error that says the bridge is not there any more.
func connectionLost(err error) bool {
	return errors.Is(err, bridge.ErrClosed) || errors.Is(err, bridge.ErrNoAnswer) || errors.Is(err, bridge.ErrProtocol) ||
		errors.Is(err, context.DeadlineExceeded)
}
