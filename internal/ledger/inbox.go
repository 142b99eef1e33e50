package ledger

import (
	"context"
	"encoding/json"
	"fmt"
)

// States of an item in an inbox.
const (
	ItemPending   = "pending"
	ItemSending   = "sending" // about to be said into a turn
	ItemDelivered = "delivered"
	ItemDropped   = "dropped"
)

// InboxItem is something that an agent is to be told of.
type InboxItem struct {
	Seq     int64 // its number; its Body holds the text
	AgentID string
	InboxQueuedPayload
	State    string // pending, sending, delivered, dropped
	TurnID   string // the turn it is being, or was, said into
	SentSeq  int64  // of the inbox.sending that it is part of; 0: none
	QueuedAt int64
	ToldAt   int64
	Delivery string // steer, prompt, turn
}

// Notice is owed to an agent: one that it watches has settled.
type Notice struct {
	AgentID string
	Watched string
	Wake    bool
	Outcome string
	TurnID  string // whose end it is; empty for one that never had a turn
}

func foldNotifyRegistered(f *folder, e *Event) error {
	p, err := decode[NotifyRegisteredPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	for _, id := range p.Agents {
		if _, err := f.t.exec(`INSERT INTO subscriptions (agent_id, watched, wake, state) VALUES (?, ?, ?, 'open')
			ON CONFLICT (agent_id, watched) DO UPDATE SET wake = excluded.wake, state = 'open'`, e.AgentID, id, p.Wake); err != nil {
			return err
		}
	}
	return nil
}

// foldInboxQueued refuses to tell of the same end twice.
func foldInboxQueued(f *folder, e *Event) error {
	p, err := decode[InboxQueuedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if p.Kind == InboxSettled {
		n, err := f.t.exec(`UPDATE subscriptions SET state = 'told', told_turn = ?1
			WHERE agent_id = ?2 AND watched = ?3 AND state = 'open' AND (told_turn IS NULL OR told_turn <> ?1)`, p.FromTurn, e.AgentID, p.From)
		if err != nil {
			return err
		}
		if n == 0 {
			return conflict(e, "agent %s does not wait to be told of %s", e.AgentID, p.From)
		}
	}
	if _, err := f.t.exec("INSERT INTO inbox (seq, agent_id, item, state, queued_at) VALUES (?, ?, ?, ?, ?)",
		e.Seq, e.AgentID, string(e.Payload), ItemPending, e.TS); err != nil {
		return err
	}
	return f.setAgent(e, "inbox = inbox + 1")
}

// moveItems takes items from one of some states to another, all or none.
func (f *folder) moveItems(e *Event, assignments string, from []string, args ...any) (int, error) {
	p, err := decode[InboxItemsPayload](e)
	if err != nil {
		return 0, err
	}
	if err := needAgent(e); err != nil {
		return 0, err
	}
	items, err := json.Marshal(p.Items)
	if err != nil {
		return 0, err
	}
	var found int
	where := "agent_id = ? AND seq IN (SELECT value FROM json_each(?)) AND state IN (SELECT value FROM json_each(?))"
	which := []any{e.AgentID, string(items), list(from)}
	if _, err := f.t.get("SELECT count(*) FROM inbox WHERE "+where, which, &found); err != nil {
		return 0, err
	}
	if found == 0 || found != len(p.Items) {
		return 0, conflict(e, "%d of %d items of agent %s are still to be told", found, len(p.Items), e.AgentID)
	}
	_, err = f.t.exec("UPDATE inbox SET "+assignments+" WHERE "+where, append(args, which...)...)
	return found, err
}

func foldInboxSending(f *folder, e *Event) error {
	if err := f.openTurn(e); err != nil {
		return err
	}
	_, err := f.moveItems(e, "state = ?, turn_id = ?, sent_seq = ?", []string{ItemPending}, ItemSending, e.TurnID, e.Seq)
	return err
}

func foldInboxDelivered(f *folder, e *Event) error {
	p, err := decode[InboxItemsPayload](e)
	if err != nil {
		return err
	}
	n, err := f.moveItems(e, "state = ?, turn_id = ?, told_at = ?, delivery = ?", []string{ItemPending, ItemSending},
		ItemDelivered, e.TurnID, e.TS, p.Delivery)
	if err != nil {
		return err
	}
	return f.setAgent(e, "inbox = inbox - ?", n)
}

func foldInboxDropped(f *folder, e *Event) error {
	n, err := f.moveItems(e, "state = ?", []string{ItemPending, ItemSending}, ItemDropped)
	if err != nil {
		return err
	}
	return f.setAgent(e, "inbox = inbox - ?", n)
}

func foldAdmissionQueued(f *folder, e *Event) error {
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "queued_at = ?", e.TS)
}

func foldAdmissionOver(f *folder, e *Event) error {
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "queued_at = 0")
}

// Notices reads what agents are owed to be told: each end of an agent that one
// of them watches and has not been told of.
func (l *Ledger) Notices(ctx context.Context) ([]Notice, error) {
	const query = `SELECT s.agent_id, s.watched, s.wake, coalesce(h.outcome, a.outcome), coalesce(h.turn_id, '')
		FROM subscriptions s JOIN agents a ON a.agent_id = s.watched LEFT JOIN handles h ON h.agent_id = s.watched
		WHERE s.state = 'open' AND (h.state = 'settled' OR h.state IS NULL AND a.ended_at > 0)
		AND (s.told_turn IS NULL OR s.told_turn <> coalesce(h.turn_id, '')) ORDER BY s.watched, s.agent_id`
	return all(ctx, l, "reading what agents are to be told", query, nil, func(s scanner) (n Notice, err error) {
		err = s.Scan(&n.AgentID, &n.Watched, &n.Wake, &n.Outcome, &n.TurnID)
		return n, err
	})
}

// Inbox reads the items of an agent's inbox that are in one of the states, in
// order; of all states where none is given.
func (l *Ledger) Inbox(ctx context.Context, agentID string, states ...string) ([]InboxItem, error) {
	var s selection
	s.equal("agent_id", agentID)
	s.in("state", states)
	return all(ctx, l, "reading the inbox of "+agentID,
		s.sql("seq, agent_id, item, state, turn_id, sent_seq, queued_at, told_at, delivery FROM inbox", "seq", 0), s.args,
		func(s scanner) (i InboxItem, err error) {
			var item string
			if err := s.Scan(&i.Seq, &i.AgentID, &item, &i.State, &i.TurnID, &i.SentSeq, &i.QueuedAt, &i.ToldAt, &i.Delivery); err != nil {
				return i, err
			}
			if err := json.Unmarshal([]byte(item), &i.InboxQueuedPayload); err != nil {
				return i, fmt.Errorf("reading an item of an inbox: %w", err)
			}
			return i, nil
		})
}

// Watching lists the agents that one has still to be told about.
func (l *Ledger) Watching(ctx context.Context, agentID string) ([]string, error) {
	return all(ctx, l, "reading whom "+agentID+" watches",
		"SELECT watched FROM subscriptions WHERE agent_id = ? AND state = 'open' ORDER BY watched", []any{agentID},
		func(s scanner) (id string, err error) { err = s.Scan(&id); return id, err })
}

// Undelivered reads the agents in one of the states that have something left
// in their inbox.
func (l *Ledger) Undelivered(ctx context.Context, states []string) ([]Agent, error) {
	return all(ctx, l, "reading undelivered inboxes", "SELECT "+agentColumns+
		" WHERE inbox > 0 AND state IN (SELECT value FROM json_each(?)) ORDER BY spawned_seq", []any{list(states)}, scanAgent)
}
