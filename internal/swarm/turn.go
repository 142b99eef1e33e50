package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// fromHarness are the events a sandbox may put into the ledger. Anything else
// that it says is kept as a diagnostic.
var fromHarness = map[string]bool{
	ledger.SessionStarted: true, ledger.SessionEnded: true, ledger.MessageEnded: true,
	ledger.ToolStarted: true, ledger.ToolEnded: true, ledger.PermissionRequested: true,
	ledger.PermissionResolved: true, ledger.CompactionStarted: true, ledger.CompactionEnded: true,
	ledger.RetryStarted: true, ledger.RetryEnded: true, ledger.ExtensionError: true,
	ledger.DiagnosticStored: true, ledger.AgentQuotaExhausted: true,
}

// ingest stores what a sandbox's journal says, together with the cursor, in one
// transaction: each event once, however often it is read.
func (o *owner) ingest(sandboxID string, batch []bridge.Record) {
	if err := o.store(sandboxID, batch); err != nil {
		if o.s.ctx.Err() != nil {
			return
		}
		// The disk may be full. The batch waits, and with it the journal.
		o.waiting = batch
		o.fail("storing what the sandbox said", err)
	}
}

func (o *owner) retryWaiting() {
	batch := o.waiting
	o.waiting = nil
	o.ingest(o.row.SandboxID, batch)
	if o.waiting == nil {
		o.calm()
	}
}

func (o *owner) store(sandboxID string, batch []bridge.Record) error {
	cursor, err := o.s.Ledger.Cursor(o.s.ctx, sandboxID)
	if err != nil {
		return err
	}
	for len(batch) > 0 && batch[0].Pos <= cursor.Pos {
		batch = batch[1:]
	}
	if len(batch) == 0 {
		return nil
	}
	t := &translation{o: o, sandbox: sandboxID, state: o.row.State, turn: o.turnID}
	for i := range batch {
		if err := t.record(&batch[i]); err != nil {
			return err
		}
	}
	last := batch[len(batch)-1]
	hit("swarm.before-ingest")
	if _, err := o.appendBatch(ledger.Batch{Entries: t.entries,
		Cursor: &ledger.Cursor{SandboxID: sandboxID, Epoch: last.Epoch, Pos: last.Pos}}); err != nil {
		return err
	}
	hit("swarm.after-ingest")
	o.turnID = t.turn
	for _, outcome := range t.ended {
		o.s.Metrics.TurnEnded(outcome)
	}
	// A frozen bridge answers nothing; the next record after it acknowledges
	// these too.
	if o.live != nil && o.live.SandboxID() == sandboxID && o.row.State != StatePaused {
		ctx, cancel := o.ctxShort()
		defer cancel()
		if err := o.live.Ack(ctx, last.Pos); err != nil {
			o.log.Debug("acknowledging the journal", zap.Error(err))
		}
	}
	if t.exited && !o.catching {
		// The connection still stands; the harness does not.
		o.log.Info("harness exited", zap.String("sandbox", sandboxID), zap.String("exit", t.exit))
		if o.row.StopMode == "" && o.live != nil && o.live.SandboxID() == sandboxID && o.task == nil {
			o.lostBridge(fmt.Errorf("harness exited: %s", t.exit))
		}
	}
	return nil
}

// translation turns records into entries of the ledger. It keeps in step with
// what the entries before it will have changed.
type translation struct {
	o       *owner
	sandbox string
	entries []ledger.Entry
	state   string
	turn    string
	ended   []string
	exited  bool
	exit    string
	done    map[string]bool // turns this batch ends
	given   map[string]bool // parked requests whose answer was given again
	asked   map[string]bool // permission requests without an answer; nil: not read yet
}

func (t *translation) add(turn, event string, payload, body any) {
	t.entries = append(t.entries, ledger.Entry{SandboxID: t.sandbox, TurnID: turn, Event: event, Payload: payload, Body: body})
}

func (t *translation) to(state, reason string) {
	// Only these follow a turn; an agent that is paused, stopping or on the
	// ladder goes on from there by its owner's word.
	switch t.state {
	case StateProvisioning, StateRunning, StateBlocked, StateDone, StateFailed:
	default:
		return
	}
	if t.state == state {
		return
	}
	t.add("", ledger.AgentStateChanged, ledger.AgentStateChangedPayload{From: t.state, To: state, Reason: reason}, nil)
	t.state = state
}

func (t *translation) record(r *bridge.Record) error {
	if r.Kind == bridge.KindDropped {
		t.add("", ledger.DiagnosticStored, map[string]any{"class": "journal_overflow", "dropped": r.Dropped}, nil)
	}
	turn, err := t.turnOf(r.TurnID)
	if err != nil {
		return err
	}
	for i := range r.Events {
		if err := t.event(r, turn, &r.Events[i]); err != nil {
			return err
		}
	}
	if err := t.taken(r.Taken, r.TurnID); err != nil {
		return err
	}
	if r.Kind == bridge.KindExit {
		t.exited = true
		if r.Exit != nil {
			t.exit = r.Exit.String()
			if r.Exit.OOMHint {
				t.add("", ledger.AgentDiagnosed, ledger.AgentDiagnosedPayload{Class: ClassOutOfMemory,
					Error: "the kernel killed a process of this sandbox for memory: " + t.exit}, nil)
			}
		}
	}
	if r.Kind == bridge.KindStarted {
		t.exited = false
	}
	return nil
}

// turnOf finds the turn a record names, where it is one of this agent.
func (t *translation) turnOf(id string) (*ledger.Turn, error) {
	if id == "" {
		return nil, nil
	}
	turn, err := t.o.s.Ledger.Turn(t.o.s.ctx, id)
	if errors.Is(err, ledger.ErrNotFound) || err == nil && turn.AgentID != t.o.id {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &turn, nil
}

func (t *translation) event(r *bridge.Record, turn *ledger.Turn, e *harness.Event) error {
	open := turn != nil && turn.State != "ended" && !t.done[turn.TurnID]
	switch e.Name {
	case ledger.TurnStarted:
		if !open || turn.State == "started" || t.turn == turn.TurnID && t.state == StateRunning {
			return nil
		}
		t.turn = turn.TurnID
		t.add(turn.TurnID, ledger.TurnStarted, ledger.TurnStartedPayload{Turn: turn.Number}, nil)
		t.to(StateRunning, "turn started")
	case ledger.TurnEnded:
		if !open {
			return nil
		}
		t.endTurn(r, turn, e)
	default:
		if !fromHarness[e.Name] || !object(e.Data) || !object(e.Body) {
			t.add(r.TurnID, ledger.DiagnosticStored, map[string]string{"class": harness.ClassProtocolError,
				"error": fmt.Sprintf("record %d carries an event that is not taken: %.100q", r.Pos, e.Name)}, nil)
			return nil
		}
		id := ""
		if turn != nil {
			id = turn.TurnID
		}
		t.add(id, e.Name, raw(e.Data), raw(e.Body))
		if e.Name == ledger.PermissionRequested || e.Name == ledger.PermissionResolved {
			return t.request(id, e)
		}
	}
	return nil
}

// request has an agent blocked while its turn waits for an answer.
func (t *translation) request(turnID string, e *harness.Event) error {
	var of ledger.PermissionRequestedPayload
	if err := json.Unmarshal(e.Data, &of); err != nil {
		return nil // the ledger says what it thinks of it
	}
	if t.asked == nil {
		pending, err := t.o.s.Ledger.Permissions(t.o.s.ctx, t.o.id, requestPending, requestAnswered)
		if err != nil {
			return err
		}
		t.asked = map[string]bool{}
		for _, p := range pending {
			t.asked[p.RequestID] = true
		}
	}
	if e.Name == ledger.PermissionRequested {
		t.asked[of.RequestID] = true
		if t.state == StateRunning {
			t.to(StateBlocked, blockedByRequest)
		}
		return t.answerParked(turnID, e, of)
	}
	delete(t.asked, of.RequestID)
	if len(t.asked) == 0 && t.state == StateBlocked && t.turn != "" {
		t.to(StateRunning, "answered")
	}
	return nil
}

// object reports whether m is a JSON object or nothing: what the ledger takes.
func object(m json.RawMessage) bool {
	var v map[string]json.RawMessage
	return len(m) == 0 || json.Unmarshal(m, &v) == nil && len(m) <= ledger.MaxEntryBytes
}

// raw keeps an absent message absent: a nil RawMessage in an interface is not.
func raw(m json.RawMessage) any {
	if len(m) == 0 {
		return nil
	}
	return m
}

func (t *translation) endTurn(r *bridge.Record, turn *ledger.Turn, e *harness.Event) {
	var end harness.TurnEnd
	if err := json.Unmarshal(e.Data, &end); err != nil {
		end = harness.TurnEnd{Outcome: OutcomeFailed, Class: harness.ClassProtocolError, Error: "unreadable end of a turn"}
	}
	switch end.Outcome {
	case OutcomeSuccess, OutcomeFailed, OutcomeAborted:
	default:
		end.Error = fmt.Sprintf("unknown outcome %.40q", end.Outcome)
		end.Outcome, end.Class = OutcomeFailed, harness.ClassProtocolError
	}
	p := ledger.TurnEndedPayload{Turn: turn.Number, Outcome: end.Outcome, Class: end.Class, Error: end.Error,
		SessionID: end.SessionID, Messages: end.Messages, TookMs: r.TS - turn.StartedAt}
	if turn.StartedAt == 0 || p.TookMs < 0 {
		p.TookMs = 0
	}
	if r.Kind == bridge.KindExit {
		// The harness did not end the turn; its death did. What its session
		// holds is asked of the next process.
		p.Outcome, p.SessionID, p.Messages = OutcomeInterrupted, "", 0
		if t.o.row.StopMode != "" {
			p.Outcome = OutcomeAborted
		}
		p.ToolCalls = t.o.inFlight(turn.TurnID, t.entries)
	}
	if turn.TurnID == t.o.silenced && p.Outcome != OutcomeSuccess {
		p.Outcome, p.Class = OutcomeFailed, ClassTurnIdle
		p.Error = fmt.Sprintf("ended: the harness had said nothing for %s", t.o.s.TurnIdle)
	}
	if p.Outcome == OutcomeAborted && t.o.row.StopMode == "" {
		// Nobody asked for that here: its sandbox was told to end, by the
		// engine or by other people, and the harness ended the turn first.
		p.Outcome = OutcomeInterrupted
		p.ToolCalls = t.o.inFlight(turn.TurnID, t.entries)
	}
	p.OwesCheckpoint = p.Outcome == OutcomeSuccess && t.o.row.Checkpointing
	t.settle(turn, p, raw(e.Body))
	if t.turn == turn.TurnID {
		t.turn = ""
	}
}

// settle adds the end of a turn and all that goes with it.
func (t *translation) settle(turn *ledger.Turn, p ledger.TurnEndedPayload, body any) {
	if t.done == nil {
		t.done = map[string]bool{}
	}
	t.done[turn.TurnID] = true
	t.ended = append(t.ended, p.Outcome)
	again := false
	if t.state != "" { // else it is over for another reason than the turn's
		again, p.Blocked = t.o.policy(turn, p)
		p.Retried = again
	}
	p.Parks = p.Outcome == OutcomeInterrupted
	t.add(turn.TurnID, ledger.TurnEnded, p, body)
	t.add(turn.TurnID, ledger.HandleSettled, ledger.HandleSettledPayload{Outcome: p.Outcome, ResultRef: "turn:" + turn.TurnID}, nil)
	switch p.Outcome {
	case OutcomeSuccess, OutcomeAborted:
		t.to(StateDone, "turn "+p.Outcome)
		return
	case OutcomeInterrupted:
		t.add(turn.TurnID, ledger.AgentTurnInterrupted, ledger.AgentTurnInterruptedPayload{Turn: turn.Number, Error: p.Error, ToolCalls: p.ToolCalls}, nil)
		t.o.cutOff = turn.TurnID
		t.retry(turn, p.ToolCalls)
	default:
		t.add(turn.TurnID, ledger.AgentTurnFailed, ledger.AgentTurnFailedPayload{Turn: turn.Number, Class: p.Class, Error: p.Error}, nil)
		if p.Class != "" {
			t.add(turn.TurnID, ledger.AgentDiagnosed, ledger.AgentDiagnosedPayload{Class: p.Class, Error: p.Error}, nil)
		}
		if again {
			t.again(turn)
		}
		if p.Blocked != "" {
			t.to(StateBlocked, p.Blocked)
			t.tellParent(turn, p)
			return
		}
	}
	t.to(StateFailed, strings.TrimSpace("turn "+p.Outcome+" "+p.Class))
}

// retry asks for an interrupted turn again, where its spec opted in, in the
// transaction that ends it. inFlight are its calls that began and did not end.
func (t *translation) retry(turn *ledger.Turn, inFlight []ledger.ToolCall) {
	o := t.o
	if o.spec == nil { // a record that cannot be read
		return
	}
	how := o.spec.Interrupt()
	if how == spec.InterruptIdle || turn.Attempt >= o.spec.Retries() || o.row.StopMode != "" {
		return
	}
	if how == spec.InterruptRetry && len(inFlight) > 0 {
		return // the call may have done its work already
	}
	t.again(turn)
}

// again asks for a turn's prompt once more.
func (t *translation) again(turn *ledger.Turn) {
	o := t.o
	body, err := o.s.Ledger.Body(o.s.ctx, turn.RequestedSeq)
	if err != nil {
		o.log.Warn("reading the prompt of a turn", zap.Error(err))
		return
	}
	of := turn.RetryOf
	if of == "" {
		of = turn.TurnID
	}
	t.add(ids.New(ids.Turn), ledger.TurnRequested, ledger.TurnRequestedPayload{Turn: o.row.Turn + 1, RetryOf: of, Attempt: turn.Attempt + 1}, raw(body))
}

// inFlight lists the tool calls of a turn that began and did not end; entries
// are those about to be stored.
func (o *owner) inFlight(turnID string, entries []ledger.Entry) []ledger.ToolCall {
	events, err := o.s.Ledger.Events(o.s.ctx, ledger.EventFilter{AgentID: o.id, TurnID: turnID,
		Names: []string{ledger.ToolStarted, ledger.ToolEnded}})
	if err != nil {
		o.log.Warn("reading the tool calls of a turn", zap.String("turn", turnID), zap.Error(err))
	}
	var calls []ledger.ToolCall
	note := func(name string, data json.RawMessage) {
		var c ledger.ToolCall
		if json.Unmarshal(data, &c) != nil || c.ID == "" {
			return
		}
		if name == ledger.ToolStarted {
			calls = append(calls, c)
			return
		}
		for i := range calls {
			if calls[i].ID == c.ID {
				calls = append(calls[:i], calls[i+1:]...)
				return
			}
		}
	}
	for _, e := range events {
		note(e.Event, e.Payload)
	}
	for _, e := range entries {
		if data, ok := e.Payload.(json.RawMessage); ok && e.TurnID == turnID && (e.Event == ledger.ToolStarted || e.Event == ledger.ToolEnded) {
			note(e.Event, data)
		}
	}
	return calls
}

// deliverNext hands the oldest waiting prompt to the harness.
func (o *owner) deliverNext() {
	next, err := o.s.Ledger.Turns(o.s.ctx, ledger.TurnFilter{AgentID: o.id, States: []string{"requested"}, Limit: 1})
	if err != nil {
		o.fail("reading the waiting prompts", err)
		return
	}
	if len(next) == 0 {
		if woken, err := o.wakeTurn(false, nil); err != nil {
			o.fail("waking for the inbox", err)
		} else if woken {
			o.deliverNext()
		}
		return
	}
	turn := next[0]
	body, err := o.s.Ledger.Body(o.s.ctx, turn.RequestedSeq)
	if err != nil {
		o.fail("reading a prompt", err)
		return
	}
	var prompt harness.Prompt
	if err := json.Unmarshal(body, &prompt); err != nil {
		o.settleAs(turn, OutcomeFailed, harness.ClassProtocolError, "the stored prompt cannot be read: "+err.Error())
		return
	}
	ctx, cancel := o.ctxShort()
	defer cancel()
	hit("swarm.before-deliver")
	known, err := o.live.Deliver(ctx, bridge.Turn{ID: turn.TurnID, Prompt: prompt})
	hit("swarm.after-deliver")
	switch {
	case err == nil && !known:
		o.turnID, o.heard = turn.TurnID, o.s.Clock.Now()
		o.calm()
	case err == nil:
		o.knownTurn(turn)
	case errors.Is(err, harness.ErrBusy):
		o.fail("handing over a prompt", err)
	case errors.Is(err, harness.ErrNotReady), connectionLost(err):
		o.lostBridge(err)
		o.again()
	default:
		o.settleAs(turn, OutcomeFailed, harness.ClassProtocolError, "the harness does not take the prompt: "+err.Error())
	}
}

// knownTurn is for a turn that the bridge had before: its records are on their
// way, unless the journal lost them.
func (o *owner) knownTurn(turn ledger.Turn) {
	o.turnID, o.heard = turn.TurnID, o.s.Clock.Now()
	ctx, cancel := o.ctxShort()
	defer cancel()
	hello, err := o.live.Status(ctx)
	if err != nil {
		o.lostBridge(err)
		return
	}
	if hello.TurnID == turn.TurnID {
		return
	}
	if err := o.catchUp(ctx, hello.Head); err != nil {
		o.lostBridge(err)
		return
	}
	if o.turnID == turn.TurnID {
		o.settleAs(turn, OutcomeInterrupted, "", "the sandbox took this turn before and no longer knows what became of it")
	}
}

// settleAs ends a turn by the owner's own word.
func (o *owner) settleAs(turn ledger.Turn, outcome, class, why string) {
	t := &translation{o: o, sandbox: o.row.SandboxID, state: o.row.State, turn: o.turnID}
	t.settle(&turn, ledger.TurnEndedPayload{Turn: turn.Number, Outcome: outcome, Class: class, Error: why,
		ToolCalls: o.inFlight(turn.TurnID, nil)}, nil)
	if err := o.append(t.entries...); err != nil {
		o.fail("settling a turn", err)
		return
	}
	o.s.Metrics.TurnEnded(outcome)
	if o.turnID == turn.TurnID {
		o.turnID = ""
	}
}

// catchUp takes in the journal up to a position.
func (o *owner) catchUp(ctx context.Context, head int64) error {
	o.catching = true
	defer func() { o.catching = false }()
	for {
		cursor, err := o.s.Ledger.Cursor(ctx, o.row.SandboxID)
		if err != nil {
			return err
		}
		if cursor.Pos >= head {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: position %d of %d", bridge.ErrNoAnswer, cursor.Pos, head)
		case batch, ok := <-o.records:
			if !ok {
				return fmt.Errorf("reading the journal: %w", o.live.Err())
			}
			if err := o.store(o.live.SandboxID(), batch); err != nil {
				o.waiting = batch
				return err
			}
		}
		if o.live == nil {
			return bridge.ErrClosed
		}
	}
}

// salvage reads what a sandbox that cannot be asked any more had still written.
func (o *owner) salvage(sandboxID string) {
	if o.rt == nil || sandboxID == "" {
		return
	}
	dir := o.rt.JournalDir(sandboxID)
	if dir == "" {
		return
	}
	const atOnce = 1000
	for {
		cursor, err := o.s.Ledger.Cursor(o.s.ctx, sandboxID)
		if err != nil {
			o.log.Warn("reading the cursor", zap.Error(err))
			return
		}
		records, err := bridge.ReadJournal(dir, cursor.Pos, atOnce)
		if err == nil && len(records) > 0 {
			err = o.store(sandboxID, records)
		}
		if err != nil {
			o.log.Info("nothing more can be read of the sandbox's journal", zap.String("sandbox", sandboxID), zap.Error(err))
			return
		}
		if len(records) < atOnce {
			return
		}
	}
}
