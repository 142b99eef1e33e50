package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// How the items of an inbox are, or were, told.
const (
	DeliverySteer   = "steer"   // into the turn that runs
	DeliveryPrompt  = "prompt"  // with the next prompt
	DeliveryTurn    = "turn"    // in a turn of their own
	DeliveryHeld    = "held"    // not yet: the agent cannot be told now
	DeliveryDropped = "dropped" // the agent is over
	DeliveryNone    = "none"    // there is nothing to tell
)

// Subscription is the answer to NotifyOn: the agents it will be told about.
type Subscription struct {
	Subscribed []string `json:"subscribed"`
	Wake       bool     `json:"wake"`
}

// InboxView is what an agent is to be told, and what it was.
type InboxView struct {
	AgentID   string      `json:"agentId"`
	Pending   []InboxItem `json:"pending"`
	Delivered []InboxItem `json:"delivered"`
	// Watching are the agents it has still to be told about.
	Watching []string `json:"watching"`
}

// InboxItem is one of them.
type InboxItem struct {
	Item        int64  `json:"item"` // its number, in the order of time
	Kind        string `json:"kind" enum:"settled,blocked"`
	From        string `json:"from"`
	Outcome     string `json:"outcome,omitempty"`
	Text        string `json:"text"`
	QueuedAt    int64  `json:"queuedAt"`
	Delivery    string `json:"delivery,omitempty" enum:"steer,prompt,turn"`
	DeliveredAt int64  `json:"deliveredAt,omitempty"`
	TurnID      string `json:"turnId,omitempty"` // the turn it was told in
}

// InboxDelivery says how an inbox is being delivered.
type InboxDelivery struct {
	Delivery string `json:"delivery" enum:"steer,turn,held,dropped,none"`
}

// NotifyOn has an agent told when others of its run settle, of each once; at
// once of those that are settled. With wake an idle agent is told in a turn of
// its own, else with its next prompt.
func (s *Swarm) NotifyOn(ctx context.Context, id string, agents []string, wake bool, idem Idempotency) (Subscription, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return Subscription{}, err
	}
	run, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: row.RunID})
	if err != nil {
		return Subscription{}, err
	}
	known := make(map[string]bool, len(run))
	for _, a := range visible(ctx, run) {
		known[a.AgentID] = true
	}
	p := ledger.NotifyRegisteredPayload{Agents: agents, Wake: wake}
	if err := checkSubscription(p, "agents", id, row.RunID, known); err != nil {
		return Subscription{}, err
	}
	return request(ctx, s, id, actNotify, idem, func(o *owner, key withKey) (Subscription, error) {
		answer := Subscription{Subscribed: agents, Wake: wake}
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{Event: ledger.NotifyRegistered, Payload: p}}, Request: key(answer)})
		return answer, err
	})
}

func checkSubscription(p ledger.NotifyRegisteredPayload, path, self, runID string, known map[string]bool) error {
	var problems []spec.Problem
	if len(p.Agents) == 0 {
		problems = append(problems, spec.Problem{Path: path, Message: "names no agent"})
	}
	seen := map[string]bool{}
	for i, id := range p.Agents {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case id == self:
			problems = append(problems, spec.Problem{Path: at, Message: "is the agent itself"})
		case seen[id]:
			problems = append(problems, spec.Problem{Path: at, Message: id + " is named twice"})
		}
		seen[id] = true
	}
	return strangers(p.Agents, path, known, runID, problems)
}

// parseNotify reads what a new agent wants to be told about: a list of agents,
// or {agents, wake}. It is nil where that is nothing.
func parseNotify(raw json.RawMessage, runID string, known map[string]bool) (*ledger.NotifyRegisteredPayload, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var p ledger.NotifyRegisteredPayload
	path := "notifyOn"
	if err := json.Unmarshal(raw, &p.Agents); err != nil {
		d := json.NewDecoder(strings.NewReader(string(raw)))
		d.DisallowUnknownFields()
		if err := d.Decode(&p); err != nil {
			return nil, invalid(path, "must be a list of agents' ids, or {agents, wake}")
		}
		path += ".agents"
	}
	return &p, checkSubscription(p, path, "", runID, known)
}

// Inbox shows an agent's inbox.
func (s *Swarm) Inbox(ctx context.Context, id string) (InboxView, error) {
	v := InboxView{AgentID: id, Pending: []InboxItem{}, Delivered: []InboxItem{}, Watching: []string{}}
	if _, err := s.agentRow(ctx, id); err != nil {
		return v, err
	}
	items, err := s.Ledger.Inbox(ctx, id)
	if err != nil {
		return v, err
	}
	for _, i := range items {
		text, err := s.itemText(ctx, i)
		if err != nil {
			return v, err
		}
		item := InboxItem{Item: i.Seq, Kind: i.Kind, From: i.From, Outcome: i.Outcome, Text: text, QueuedAt: i.QueuedAt,
			Delivery: i.Delivery, DeliveredAt: i.ToldAt, TurnID: i.TurnID}
		switch i.State {
		case ledger.ItemPending, ledger.ItemSending:
			v.Pending = append(v.Pending, item)
		case ledger.ItemDelivered:
			v.Delivered = append(v.Delivered, item)
		}
	}
	watching, err := s.Ledger.Watching(ctx, id)
	v.Watching = append(v.Watching, watching...)
	return v, err
}

// DeliverInbox tells an agent what is in its inbox now, where it can be told.
func (s *Swarm) DeliverInbox(ctx context.Context, id string, idem Idempotency) (InboxDelivery, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return InboxDelivery{}, err
	}
	if isFinal(row.State) {
		return InboxDelivery{DeliveryDropped}, nil
	}
	return idempotent(ctx, s, idem, func(key withKey) (InboxDelivery, error) {
		o, err := s.owner(ctx, id, "tell")
		if err != nil {
			return InboxDelivery{}, err
		}
		return ask(ctx, o, func() (InboxDelivery, error) { return o.deliverInbox(key) })
	})
}

func (o *owner) deliverInbox(key withKey) (InboxDelivery, error) {
	answer := InboxDelivery{DeliveryHeld}
	o.reread()
	switch {
	case o.row.Inbox == 0:
		answer.Delivery = DeliveryNone
	case o.row.StopMode != "" || o.live == nil:
	case o.row.State == StateRunning && o.turnID != "":
		answer.Delivery = DeliverySteer
		o.tell()
	case o.row.State == StateDone, o.row.State == StateFailed:
		answer.Delivery = DeliveryTurn
		_, err := o.wakeTurn(true, key(answer))
		return answer, err
	}
	if r := key(answer); r != nil {
		_, err := o.appendBatch(ledger.Batch{Request: r})
		return answer, err
	}
	return answer, nil
}

// notify queues what agents are owed to be told, and drops what is for agents
// that are over. It may be called at any time.
func (s *Swarm) notify(ctx context.Context) {
	owed, err := s.Ledger.Notices(ctx)
	for _, n := range owed {
		if err = s.queueNotice(ctx, n); err != nil {
			break
		}
	}
	if err == nil {
		err = s.dropForGone(ctx)
	}
	if err != nil && s.ctx.Err() == nil {
		s.Log.Error("telling agents of others", zap.Error(err))
	}
}

func (s *Swarm) queueNotice(ctx context.Context, n ledger.Notice) error {
	r, err := s.result(ctx, n.Watched)
	if err != nil {
		return err
	}
	watched, err := s.Ledger.Agent(ctx, n.Watched)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("agent %s (%s) has settled: %s", n.Watched, watched.SpecName, n.Outcome)
	switch {
	case r.Result != nil && *r.Result != "":
		text += "\n" + shorten(*r.Result)
	case r.Error != "":
		text += "\n" + shorten(r.Error)
	}
	_, err = s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{RunID: watched.RunID, AgentID: n.AgentID, Event: ledger.InboxQueued,
		Payload: ledger.InboxQueuedPayload{Kind: ledger.InboxSettled, From: n.Watched, FromTurn: n.TurnID, Outcome: n.Outcome, Wake: n.Wake},
		Body:    map[string]string{"text": text}}}})
	hit("swarm.inbox-queued")
	if errors.Is(err, ledger.ErrConflict) {
		return nil // told meanwhile
	}
	return err
}

func (s *Swarm) dropForGone(ctx context.Context) error {
	gone, err := s.Ledger.Undelivered(ctx, final)
	if err != nil {
		return err
	}
	for _, a := range gone {
		items, err := s.Ledger.Inbox(ctx, a.AgentID, ledger.ItemPending, ledger.ItemSending)
		if err != nil {
			return err
		}
		_, err = s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{RunID: a.RunID, AgentID: a.AgentID, Event: ledger.InboxDropped,
			Payload: ledger.InboxItemsPayload{Items: numbers(items)}}}})
		if err != nil && !errors.Is(err, ledger.ErrConflict) {
			return err
		}
	}
	return nil
}

// shorten cuts a text for a message that it is only a part of.
func shorten(text string) string {
	if utf8.RuneCountInString(text) <= maxText {
		return text
	}
	return string([]rune(text)[:maxText]) + " […]"
}

func numbers(items []ledger.InboxItem) []int64 {
	all := make([]int64, len(items))
	for i := range items {
		all[i] = items[i].Seq
	}
	return all
}

func (s *Swarm) itemText(ctx context.Context, i ledger.InboxItem) (string, error) {
	body, err := s.Ledger.Body(ctx, i.Seq)
	if err != nil {
		return "", err
	}
	var b struct{ Text string }
	err = json.Unmarshal(body, &b)
	return b.Text, err
}

// message makes one of several items.
func (o *owner) message(items []ledger.InboxItem) (string, error) {
	parts := []string{"News of other agents:"}
	for _, i := range items {
		text, err := o.s.itemText(o.s.ctx, i)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n\n"), nil
}

// withInbox puts what is in the inbox before a prompt. The entry it returns
// goes into the transaction that asks for the turn.
func (o *owner) withInbox(turnID, delivery, text string) (string, []ledger.Entry, error) {
	o.reread() // the inbox is filled by others
	if o.row.Inbox == 0 {
		return text, nil, nil
	}
	items, err := o.s.Ledger.Inbox(o.s.ctx, o.id, ledger.ItemPending)
	if err != nil || len(items) == 0 {
		return text, nil, err
	}
	message, err := o.message(items)
	if err != nil {
		return text, nil, err
	}
	return strings.TrimSpace(message + "\n\n" + text), []ledger.Entry{{TurnID: turnID, Event: ledger.InboxDelivered,
		Payload: ledger.InboxItemsPayload{Items: numbers(items), Delivery: delivery}}}, nil
}

// wakeTurn asks for a turn that tells an idle agent what is in its inbox, if
// somebody wants it woken, or if it must. It reports whether it did.
func (o *owner) wakeTurn(must bool, r *ledger.Request) (bool, error) {
	if o.row.Inbox == 0 || o.row.StopMode != "" {
		return false, nil
	}
	if !must {
		items, err := o.s.Ledger.Inbox(o.s.ctx, o.id, ledger.ItemPending)
		if err != nil {
			return false, err
		}
		for _, i := range items {
			must = must || i.Wake
		}
		if !must {
			return false, nil
		}
	}
	turnID := ids.New(ids.Turn)
	text, told, err := o.withInbox(turnID, DeliveryTurn, "")
	if err != nil || len(told) == 0 {
		return false, err
	}
	entries := append([]ledger.Entry{{TurnID: turnID, Event: ledger.TurnRequested,
		Payload: ledger.TurnRequestedPayload{Turn: o.row.Turn + 1}, Body: harness.Prompt{Text: text}}}, told...)
	_, err = o.appendBatch(ledger.Batch{Entries: entries, Request: r})
	hit("swarm.inbox-turn")
	return err == nil, err
}

// orderOfInbox names the order that says items into a turn, so that the bridge
// tells the harness once.
const orderOfInbox = "inbox-"

// tell says what is in the inbox into the turn that runs. What is about to be
// said is in the ledger before, under the name the bridge knows it by; that it
// was taken, the journal tells.
func (o *owner) tell() {
	if o.row.Inbox == 0 || o.row.State != StateRunning || o.row.StopMode != "" || o.live == nil {
		return
	}
	items, err := o.s.Ledger.Inbox(o.s.ctx, o.id, ledger.ItemPending, ledger.ItemSending)
	if err != nil {
		o.fail("reading the inbox", err)
		return
	}
	sending := map[int64][]ledger.InboxItem{}
	var fresh []ledger.InboxItem
	for _, i := range items {
		if i.State == ledger.ItemPending {
			fresh = append(fresh, i)
		} else {
			sending[i.SentSeq] = append(sending[i.SentSeq], i)
		}
	}
	if len(fresh) > 0 {
		events, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{TurnID: o.turnID, Event: ledger.InboxSending,
			Payload: ledger.InboxItemsPayload{Items: numbers(fresh)}}}})
		if errors.Is(err, ledger.ErrConflict) {
			return // its turn has just ended
		}
		if err != nil {
			o.fail("recording what is about to be said", err)
			return
		}
		hit("swarm.inbox-sending")
		sending[events[0].Seq] = fresh
	}
	for seq, items := range sending {
		if o.said[seq] {
			continue
		}
		if !o.say(seq, items) {
			return
		}
	}
}

// say tells the harness once; it reports whether the bridge still answers.
func (o *owner) say(seq int64, items []ledger.InboxItem) bool {
	text, err := o.message(items)
	if err != nil {
		o.fail("reading the inbox", err)
		return false
	}
	ctx, cancel := o.ctxShort()
	defer cancel()
	err = o.live.Steer(ctx, orderOfInbox+strconv.FormatInt(seq, 10), text)
	hit("swarm.inbox-said")
	if connectionLost(err) {
		o.lostBridge(err)
		return false
	}
	if err != nil { // it comes with the next prompt
		o.log.Info("the harness does not take what was to be said into its turn", zap.Error(err))
	}
	if o.said == nil {
		o.said = map[int64]bool{}
	}
	o.said[seq] = true
	return true
}

// taken records that the harness took what was said from the inbox.
func (t *translation) taken(orders []string, turnID string) error {
	for _, order := range orders {
		seq, err := strconv.ParseInt(strings.TrimPrefix(order, orderOfInbox), 10, 64)
		if err != nil || !strings.HasPrefix(order, orderOfInbox) {
			continue // an order of a client
		}
		items, err := t.o.s.Ledger.Inbox(t.o.s.ctx, t.o.id, ledger.ItemSending)
		if err != nil {
			return err
		}
		var told []ledger.InboxItem
		for _, i := range items {
			if i.SentSeq == seq {
				told = append(told, i)
			}
		}
		if len(told) > 0 {
			t.add(turnID, ledger.InboxDelivered, ledger.InboxItemsPayload{Items: numbers(told), Delivery: DeliverySteer}, nil)
		}
	}
	return nil
}
