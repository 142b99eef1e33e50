package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// retryJournal is how often a journal that could not be written is tried
// again. Until then the harness is not read, so nothing it says is lost.
const retryJournal = time.Second

// keeper is the one goroutine that owns the harness's protocol and appends to
// the journal. Everything below the channels belongs to it.
type keeper struct {
	s     *server
	ops   chan func()
	lines chan output
	exits chan *child
	done  chan struct{} // closed when it has ended
	pid   atomic.Int64  // of the running harness, for the collector of orphans

	proto      harness.Protocol
	child      *child
	name       string
	turnID     string
	exit       *harness.Exit
	lastStderr string
	oomBase    int64
	draining   bool
	orders     map[string]chan error
	named      map[string]string // the IDs of orders not yet answered
	told       map[string]bool   // the IDs told in this turn
	orderSeq   int
	backlog    []backlogged
	changed    chan struct{} // closed and replaced when the state changes
}

// backlogged is a record to be appended and what is to be done then.
type backlogged struct {
	record Record
	sync   bool
	then   func()
}

func (k *keeper) init(s *server) {
	k.s = s
	k.ops = make(chan func())
	k.lines = make(chan output)
	k.exits = make(chan *child)
	k.done = make(chan struct{})
	k.changed = make(chan struct{})
	k.orders = make(map[string]chan error)
	k.named = make(map[string]string)
	k.told = make(map[string]bool)
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	for {
		lines, exits := k.lines, k.exits
		var retry <-chan time.Time
		if len(k.backlog) > 0 {
			lines, exits = nil, nil
			retry = k.s.cfg.Clock.After(retryJournal)
		}
		select {
		case op := <-k.ops:
			op()
		case l := <-lines:
			k.line(l)
		case c := <-exits:
			k.exited(c)
		case <-retry:
			k.work()
		case <-ctx.Done():
			return
		}
	}
}

// do runs f in the keeper's goroutine and waits for it.
func (k *keeper) do(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	select {
	case k.ops <- func() { defer close(ran); f() }:
		<-ran
		return nil
	case <-k.done:
		return fmt.Errorf("bridge ends: %w", ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliverLine hands a line of the child's output over.
func (k *keeper) deliverLine(o output) bool {
	select {
	case k.lines <- o:
		return true
	case <-k.done:
		return false
	}
}

func (k *keeper) changedState() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// stamp fills in what every record has.
func (k *keeper) stamp(r Record) Record {
	r.Epoch, r.TS = k.s.epoch, k.s.cfg.Clock.Now().UnixMilli()
	if r.TurnID == "" {
		r.TurnID = k.turnID
	}
	return r
}

// record appends r, now or as soon as the journal can be written, and calls
// then behind it.
func (k *keeper) record(r Record, sync bool, then func()) {
	k.backlog = append(k.backlog, backlogged{record: k.stamp(r), sync: sync, then: then})
	k.work()
}

// work appends what waits.
func (k *keeper) work() {
	for len(k.backlog) > 0 {
		b := k.backlog[0]
		pos, err := k.s.journal.append(b.record)
		if err != nil {
			k.s.log.Error("journal cannot be written; the harness waits", zap.Error(err))
			return
		}
		if b.sync {
			if err := k.s.journal.sync(pos); err != nil {
				k.s.log.Error("journal cannot be synced", zap.Error(err))
			}
		}
		k.backlog = k.backlog[1:]
		if b.then != nil {
			b.then()
		}
	}
	k.backlog = nil
}

// apply does what a protocol wants done, in that order: what is shown only is
// shown; what is kept is written to the journal; then the harness is told, and
// whoever waits. r is the record for the events; one of kind line is left out
// where there are none.
func (k *keeper) apply(out harness.Output, r Record, written func()) {
	sync := false
	turn := k.turnID
	for _, e := range out.Events {
		switch e.Name {
		case harness.MessageUpdated, harness.ToolUpdated, harness.QueueUpdated:
			k.s.conns.show(Ephemeral{TurnID: turn, Event: e})
			continue
		case ledger.TurnEnded:
			k.turnID, sync = "", true
		case ledger.PermissionRequested:
			sync = true
		}
		r.Events = append(r.Events, e)
	}
	r.TurnID = turn
	r.Taken = k.taken(out.Replies)
	if k.turnID == "" {
		clear(k.told)
	}
	child := k.child
	then := func() {
		for i, line := range out.Write {
			after := written
			if i != len(out.Write)-1 {
				after = nil
			}
			if child != nil && !child.in.push(line, after) {
				k.s.log.Error("harness does not read its input; killing it", zap.Int("pid", child.pid))
				child.signal(syscall.SIGKILL)
			}
		}
		for _, reply := range out.Replies {
			k.reply(reply)
		}
		k.changedState()
	}
	if r.Kind == KindLine && len(r.Events) == 0 && len(r.Taken) == 0 {
		then()
		return
	}
	k.record(r, sync || r.Kind == KindExit, then)
}

// taken lists the named orders among those that were answered well. One that
// was refused may be given again.
func (k *keeper) taken(replies []harness.Reply) []string {
	var ids []string
	for _, r := range replies {
		id := k.named[r.Order]
		switch {
		case id == "":
		case r.Err == "":
			ids = append(ids, id)
		default:
			delete(k.told, id)
		}
	}
	return ids
}

func (k *keeper) reply(r harness.Reply) {
	delete(k.named, r.Order)
	answer, waits := k.orders[r.Order]
	if !waits {
		return
	}
	delete(k.orders, r.Order)
	if r.Err != "" {
		answer <- fmt.Errorf("%w: %s", harness.ErrRefused, r.Err)
		return
	}
	answer <- nil
}

// line takes one line of the harness. Every line has a position of its own.
func (k *keeper) line(l output) {
	if l.from != k.child || k.proto == nil {
		return
	}
	var out harness.Output
	if l.cut {
		out.Events = []harness.Event{diagnostic(fmt.Sprintf("line of more than %d bytes was cut", k.s.cfg.MaxLine), l.line)}
	} else {
		out = k.proto.Line(l.line)
	}
	kept := len(k.taken(out.Replies)) > 0
	for _, e := range out.Events {
		switch e.Name {
		case harness.MessageUpdated, harness.ToolUpdated, harness.QueueUpdated:
		default:
			kept = true
		}
	}
	if !kept {
		k.s.journal.skip(k.stamp(Record{Kind: KindLine}))
	}
	k.apply(out, Record{Kind: KindLine}, nil)
}

// exited takes the end of the process.
func (k *keeper) exited(c *child) {
	if c != k.child {
		return
	}
	exit := c.exit
	if now := oomKills(); now > k.oomBase && k.oomBase >= 0 {
		exit.OOMHint = true
	}
	k.exit = &exit
	out := k.proto.Exited(exit)
	out.Write = nil
	if k.turnID != "" && !ends(out.Events) {
		out.Events = append(out.Events, k.failedTurn("harness exited"))
	}
	k.apply(out, Record{Kind: KindExit, Exit: &exit, PID: c.pid}, nil)
	k.lastStderr = k.stderrTail()
	k.child = nil
	k.pid.Store(0)
	for id := range k.orders {
		k.reply(harness.Reply{Order: id, Err: "harness exited"})
	}
	clear(k.named)
	k.s.log.Info("harness exited", zap.String("harness", k.name), zap.Int("pid", c.pid),
		zap.Int("code", exit.Code), zap.String("signal", exit.Signal))
	k.changedState()
}

func ends(events []harness.Event) bool {
	for _, e := range events {
		if e.Name == ledger.TurnEnded {
			return true
		}
	}
	return false
}

// failedTurn ends a turn where the protocol did not.
func (k *keeper) failedTurn(why string) harness.Event {
	end := harness.TurnEnd{Outcome: harness.OutcomeFailed, Class: harness.ClassSessionFailed, Error: why}
	if k.proto != nil {
		st := k.proto.Status()
		end.SessionID, end.Messages = st.SessionID, st.Messages
	}
	data, _ := json.Marshal(end)
	return harness.Event{Name: ledger.TurnEnded, Data: data}
}

// status is the harness's state as the bridge tells it.
func (k *keeper) status() harness.Status {
	if k.proto == nil {
		return harness.Status{State: harness.StateNone}
	}
	st := k.proto.Status()
	if k.child == nil {
		st.State = harness.StateExited
	}
	return st
}

// hello is the state of everything. The head it tells is in the journal.
func (k *keeper) hello() Hello {
	head := k.s.journal.flushed()
	oldest, _ := k.s.journal.bounds()
	h := Hello{
		Version: ProtocolVersion, SandboxID: k.s.cfg.SandboxID, Epoch: k.s.epoch,
		Harness: k.status(), Name: k.name, TurnID: k.turnID, LastTurnID: k.s.turns.newest(),
		Head: head, Oldest: oldest, Home: k.s.home, Workdir: k.s.workdir,
	}
	if k.child != nil {
		h.PID = k.child.pid
	} else {
		h.Exit = k.exit
	}
	return h
}

// deliver accepts a turn, once for each identifier.
func (k *keeper) deliver(t Turn) (known bool, err error) {
	switch {
	case !validTurnID(t.ID):
		return false, fmt.Errorf("turn id %q: %w", t.ID, ErrProtocol)
	case k.s.turns.has(t.ID):
		return true, nil
	case k.draining:
		return false, ErrDraining
	case k.child == nil:
		return false, harness.ErrNotReady
	case len(k.backlog) > 0:
		return false, ErrJournal
	case k.child.in.full():
		return false, fmt.Errorf("harness does not read its input: %w", harness.ErrNotReady)
	}
	switch k.status().State {
	case harness.StateIdle:
	case harness.StateBusy:
		return false, harness.ErrBusy
	default:
		return false, harness.ErrNotReady
	}
	if k.turnID != "" {
		return false, harness.ErrBusy
	}
	started := harness.Event{Name: ledger.TurnStarted}
	pos, err := k.s.journal.append(k.stamp(Record{Kind: KindTurn, TurnID: t.ID, Events: []harness.Event{started}}))
	if err != nil {
		return false, errors.Join(ErrJournal, err)
	}
	// From here on the turn is accepted, whatever happens: it must end.
	k.s.turns.add(t.ID)
	k.turnID = t.ID
	if err := k.s.journal.sync(pos); err != nil {
		k.endTurn("the journal could not be synced: " + err.Error())
		return false, nil
	}
	failpoint.Hit("bridge.turn-journaled")
	out, err := k.proto.Prompt(t.Prompt)
	if err != nil {
		k.endTurn("the harness did not take the prompt: " + err.Error())
		return false, nil
	}
	k.apply(out, Record{Kind: KindLine}, func() { failpoint.Hit("bridge.turn-written") })
	return false, nil
}

func (k *keeper) endTurn(why string) {
	k.apply(harness.Output{Events: []harness.Event{k.failedTurn(why)}}, Record{Kind: KindLine}, nil)
}

// order tells the harness something. The answer comes on the channel.
func (k *keeper) order(o Order) (string, chan error, error) {
	if len(k.backlog) > 0 {
		return "", nil, ErrJournal
	}
	if k.child == nil {
		switch o.Op {
		case orderFollowUp:
			return "", nil, harness.ErrNotReady
		case orderAnswer:
			return "", nil, harness.ErrUnknownRequest
		default:
			return "", nil, harness.ErrNoTurn
		}
	}
	if k.told[o.ID] {
		answer := make(chan error, 1)
		answer <- nil
		return "", answer, nil
	}
	if k.child.in.full() {
		return "", nil, fmt.Errorf("%w: it does not read its input", harness.ErrRefused)
	}
	k.orderSeq++
	id := "o" + strconv.Itoa(k.orderSeq)
	var out harness.Output
	var err error
	switch o.Op {
	case orderSteer:
		out, err = k.proto.Steer(id, o.Text)
	case orderFollowUp:
		out, err = k.proto.FollowUp(id, o.Text)
	case orderAbort:
		out, err = k.proto.Abort(id)
	case orderAnswer:
		out, err = k.proto.Answer(id, o.Request, o.Decision, o.Feedback)
	default:
		err = fmt.Errorf("order %q: %w", o.Op, ErrProtocol)
	}
	if err != nil {
		return "", nil, err
	}
	answer := make(chan error, 1)
	k.orders[id] = answer
	if o.ID != "" {
		k.named[id], k.told[o.ID] = o.ID, true
	}
	k.apply(out, Record{Kind: KindOrder, Order: &o}, nil)
	return id, answer, nil
}

// stderrTail is the end of what the harness wrote to its standard error; after
// its exit, of what it had written.
func (k *keeper) stderrTail() string {
	if k.child != nil {
		return string(bytes.ToValidUTF8(k.child.stderr.last(stderrKept), []byte("\uFFFD")))
	}
	return k.lastStderr
}
