package ledger

import (
	"context"
	"encoding/json"
	"fmt"
)

// Wait is what an agent that is held waits for.
type Wait struct {
	AgentID string
	RunID   string
	WaitOpenedPayload
	State string // open, resolved, blocked
	// Answer says how it was resolved; zero while it is open.
	Answer WaitResolvedPayload
}

func foldWaitOpened(f *folder, e *Event) error {
	p, err := decode[WaitOpenedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	var state string
	if known, err := f.t.get("SELECT state FROM waits WHERE agent_id = ?", []any{e.AgentID}, &state); err != nil {
		return err
	} else if known {
		return conflict(e, "agent %s waits already", e.AgentID)
	}
	_, err = f.t.exec("INSERT INTO waits (agent_id, run_id, request, deadline_at, state, opened_seq) VALUES (?, ?, ?, ?, 'open', ?)",
		e.AgentID, e.RunID, string(e.Payload), p.DeadlineAt, e.Seq)
	return err
}

func foldWaitResolved(f *folder, e *Event) error {
	if _, err := decode[WaitResolvedPayload](e); err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	state := "resolved"
	if e.Event == WaitBlocked {
		state = "blocked"
	}
	n, err := f.t.exec("UPDATE waits SET state = ?, answer = ? WHERE agent_id = ? AND state = 'open'", state, string(e.Payload), e.AgentID)
	if err == nil && n == 0 {
		return conflict(e, "agent %s does not wait", e.AgentID)
	}
	return err
}

// Wait reads what an agent waits, or waited, for; ErrNotFound for one that
// never did.
func (l *Ledger) Wait(ctx context.Context, agentID string) (Wait, error) {
	return single(ctx, l, "reading the wait of "+agentID, "SELECT agent_id, run_id, request, state, answer FROM waits WHERE agent_id = ?",
		[]any{agentID}, scanWait)
}

func scanWait(s scanner) (w Wait, err error) {
	var request, answer string
	if err := s.Scan(&w.AgentID, &w.RunID, &request, &w.State, &answer); err != nil {
		return w, err
	}
	if err := json.Unmarshal([]byte(request), &w.WaitOpenedPayload); err != nil {
		return w, fmt.Errorf("reading a wait: %w", err)
	}
	if answer != "" {
		if err := json.Unmarshal([]byte(answer), &w.Answer); err != nil {
			return w, fmt.Errorf("reading the answer of a wait: %w", err)
		}
	}
	return w, nil
}
