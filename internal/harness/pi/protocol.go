package pi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// protocol implements harness.Protocol.
type protocol struct {
	launch harness.Launch
	status harness.Status
	seq    int               // numbers the commands
	opened string            // id of the first get_state
	orders map[string]string // command id → order, written or held, not answered
	asks   map[string]ask    // open dialogs by request id
	turn   *turn             // nil while idle
}

// turn is the turn in progress. It goes through these steps: the prompt is
// written, accepted by Pi, running; Pi has settled; the session's state is
// asked for; ended.
type turn struct {
	prompt   string // id of the prompt command
	accepted bool   // Pi took the prompt
	running  bool   // a run of the agent has begun: orders can be given now
	settled  bool   // Pi will not go on by itself
	aborted  bool   // as agent_settled says
	aborting bool   // an abort was ordered
	asked    string // id of the get_state after settling
	clearing string // id of the clear_queue after settling
	last     *message
	result   string   // last text of the assistant in this turn
	held     [][]byte // orders given before the run began
}

func (p *protocol) Status() harness.Status { return p.status }

// Open asks for the session: Pi says nothing unasked.
func (p *protocol) Open() harness.Output {
	p.opened = p.next()
	return harness.Output{Write: [][]byte{line(command{ID: p.opened, Type: "get_state"})}}
}

func (p *protocol) next() string {
	p.seq++
	return "c" + strconv.Itoa(p.seq)
}

func (p *protocol) Prompt(pr harness.Prompt) (harness.Output, error) {
	switch p.status.State {
	case harness.StateIdle:
	case harness.StateBusy:
		return harness.Output{}, harness.ErrBusy
	default:
		return harness.Output{}, fmt.Errorf("%w: it is %s", harness.ErrNotReady, p.status.State)
	}
	p.status.State = harness.StateBusy
	p.turn = &turn{}
	images := make([]image, len(pr.Images))
	for i, im := range pr.Images {
		images[i] = image{Type: "image", Data: im.Data, MIMEType: im.MIMEType}
	}
	return p.writePrompt(pr.Text, images), nil
}

// writePrompt begins the turn, or goes on with it, by a prompt.
func (p *protocol) writePrompt(text string, images []image) harness.Output {
	t := p.turn
	t.prompt, t.accepted, t.running, t.settled, t.asked, t.clearing = p.next(), false, false, false, "", ""
	return harness.Output{Write: [][]byte{line(command{
		ID: t.prompt, Type: "prompt", Message: &text, Images: images, StreamingBehavior: "followUp",
	})}}
}

func (p *protocol) Steer(order, text string) (harness.Output, error) {
	return p.queue(order, "steer", text)
}

func (p *protocol) FollowUp(order, text string) (harness.Output, error) {
	return p.queue(order, "follow_up", text)
}

func (p *protocol) queue(order, kind, text string) (harness.Output, error) {
	// Once Pi has settled a queued message would wait, in memory only, for
	// some later prompt. The caller is told, and can make a turn of it.
	if p.turn == nil || p.turn.settled {
		return harness.Output{}, harness.ErrNoTurn
	}
	return p.order(order, command{Type: kind, Message: &text}), nil
}

func (p *protocol) Abort(order string) (harness.Output, error) {
	if p.turn == nil {
		return harness.Output{}, harness.ErrNoTurn
	}
	p.turn.aborting = true
	// Pi goes on with queued messages after an abort, unless there are none;
	// and it waits for open dialogs, which belong to the work being aborted.
	out := p.write(line(command{ID: p.next(), Type: "clear_queue"}))
	for _, id := range slices.Sorted(maps.Keys(p.asks)) {
		if p.asks[id].inTurn {
			out.Write = append(out.Write, line(dialogAnswer{Type: "extension_ui_response", ID: id, Cancelled: true}))
		}
	}
	out.Events = append(out.Events, p.cancelAsks(false)...)
	o := p.order(order, command{Type: "abort"})
	out.Write = append(out.Write, o.Write...)
	return out, nil
}

// order gives an order to the turn in progress.
func (p *protocol) order(order string, c command) harness.Output {
	c.ID = p.next()
	p.orders[c.ID] = order
	return p.write(line(c))
}

// write writes a line now, or when the run has begun: before that, Pi takes a
// steering message for a later turn and an abort for one of nothing.
func (p *protocol) write(l []byte) harness.Output {
	if t := p.turn; !t.running && !t.settled {
		t.held = append(t.held, l)
		return harness.Output{}
	}
	return harness.Output{Write: [][]byte{l}}
}

func (p *protocol) Answer(order, requestID, decision, feedback string) (harness.Output, error) {
	a, open := p.asks[requestID]
	if !open {
		return harness.Output{}, fmt.Errorf("%w: %q", harness.ErrUnknownRequest, requestID)
	}
	if !harness.ValidDecision(decision) {
		return harness.Output{}, fmt.Errorf("%w: no such decision: %q", harness.ErrRefused, decision)
	}
	ans, err := a.answer(requestID, decision, feedback)
	if err != nil {
		return harness.Output{}, err
	}
	delete(p.asks, requestID)
	// Pi does not answer an answer: it counts as taken once written.
	return harness.Output{
		Write:   [][]byte{line(ans)},
		Events:  []harness.Event{harness.PermissionResolved(requestID, decision, feedback)},
		Replies: []harness.Reply{{Order: order}},
	}, nil
}

// cancelAsks forgets the open dialogs: those of the turn, or all.
func (p *protocol) cancelAsks(all bool) (events []harness.Event) {
	for _, id := range slices.Sorted(maps.Keys(p.asks)) {
		if all || p.asks[id].inTurn {
			delete(p.asks, id)
			events = append(events, harness.PermissionResolved(id, harness.DecisionCancelled, ""))
		}
	}
	return events
}

// refuseOrders answers every open order with an error.
func (p *protocol) refuseOrders(why string) (replies []harness.Reply) {
	for _, id := range slices.Sorted(maps.Keys(p.orders)) {
		replies = append(replies, harness.Reply{Order: p.orders[id], Err: why})
	}
	clear(p.orders)
	return replies
}

// endTurn reports the end of the turn in progress.
func (p *protocol) endTurn(end harness.TurnEnd) harness.Output {
	t := p.turn
	out := harness.Output{Events: p.cancelAsks(false)}
	end.SessionID, end.Messages = p.status.SessionID, p.status.Messages
	if end.Class == harness.ClassQuota {
		provider := p.launch.Provider
		if t.last != nil && t.last.Provider != "" {
			provider = t.last.Provider
		}
		out.Events = append(out.Events, harness.NewEvent(ledger.AgentQuotaExhausted, quotaOf(provider, end.Error), nil))
	}
	out.Events = append(out.Events, harness.NewEvent(ledger.TurnEnded, end, harness.TurnResult{Result: t.result}))
	p.turn = nil
	p.status.State = harness.StateIdle
	return out
}

func (p *protocol) Exited(e harness.Exit) harness.Output {
	if p.status.State == harness.StateExited {
		return harness.Output{}
	}
	out := harness.Output{Events: p.cancelAsks(true)}
	if p.turn != nil {
		end := p.endTurn(harness.TurnEnd{Outcome: harness.OutcomeFailed, Class: harness.ClassSessionFailed, Error: e.String()})
		out.Events = append(out.Events, end.Events...)
	}
	if p.status.State != harness.StateStarting {
		out.Events = append(out.Events, harness.SessionEnded(p.status))
	}
	out.Replies = p.refuseOrders(e.String())
	p.status.State = harness.StateExited
	return out
}
