package ledger

func foldTurnRequested(f *folder, e *Event) error {
	p, err := decode[TurnRequestedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if e.TurnID == "" {
		return conflict(e, "names no turn")
	}
	var last int
	if _, err := f.t.get("SELECT turn FROM agents WHERE agent_id = ?", []any{e.AgentID}, &last); err != nil {
		return err
	}
	if p.Turn != last+1 {
		return conflict(e, "turn %d of agent %s does not follow its turn %d", p.Turn, e.AgentID, last)
	}
	if t, err := f.turn(e.TurnID); err != nil {
		return err
	} else if t != nil {
		return conflict(e, "turn %s was requested before", e.TurnID)
	}
	if _, err := f.t.exec(`INSERT INTO turns (turn_id, agent_id, run_id, number, state, retry_of, attempt,
		requested_seq, requested_at) VALUES (?, ?, ?, ?, 'requested', ?, ?, ?, ?)`,
		e.TurnID, e.AgentID, e.RunID, p.Turn, p.RetryOf, p.Attempt, e.Seq, e.TS); err != nil {
		return err
	}
	if _, err := f.t.exec(`INSERT INTO handles (agent_id, state, outcome, result_ref, turn_id, settled_at)
		VALUES (?, 'open', '', '', ?, 0) ON CONFLICT (agent_id) DO UPDATE
		SET state = 'open', outcome = '', result_ref = '', turn_id = excluded.turn_id, settled_at = 0`,
		e.AgentID, e.TurnID); err != nil {
		return err
	}
	if _, err := f.t.exec("UPDATE runs SET turns = turns + 1, stirred_seq = ?, quiescent = 0 WHERE run_id = ?", e.Seq, e.RunID); err != nil {
		return err
	}
	return f.setAgent(e, "turn = ?", p.Turn)
}

type turnRow struct{ agent, state string }

// turn reads what the guards ask of a turn; nil when there is none.
func (f *folder) turn(id string) (*turnRow, error) {
	var r turnRow
	known, err := f.t.get("SELECT agent_id, state FROM turns WHERE turn_id = ?", []any{id}, &r.agent, &r.state)
	if err != nil || !known {
		return nil, err
	}
	return &r, nil
}

// openTurn is the guard of what can only happen to a turn that has not ended.
func (f *folder) openTurn(e *Event) error {
	t, err := f.turn(e.TurnID)
	switch {
	case err != nil:
		return err
	case t == nil:
		return conflict(e, "no turn %q", e.TurnID)
	case t.agent != e.AgentID:
		return conflict(e, "turn %s is of agent %s", e.TurnID, t.agent)
	case t.state == "ended":
		return conflict(e, "turn %s has ended", e.TurnID)
	}
	return nil
}

func foldTurnStarted(f *folder, e *Event) error {
	if err := f.openTurn(e); err != nil {
		return err
	}
	_, err := f.t.exec("UPDATE turns SET state = 'started', sandbox_id = ?, started_seq = ?, started_at = ? WHERE turn_id = ?",
		e.SandboxID, e.Seq, e.TS, e.TurnID)
	return err
}

func foldTurnEnded(f *folder, e *Event) error {
	p, err := decode[TurnEndedPayload](e)
	if err != nil {
		return err
	}
	if err := f.openTurn(e); err != nil {
		return err
	}
	if _, err := f.t.exec(`UPDATE turns SET state = 'ended', ended_seq = ?, ended_at = ?, outcome = ?, class = ?,
		error = ?, owes_checkpoint = ? WHERE turn_id = ?`,
		e.Seq, e.TS, p.Outcome, p.Class, p.Error, p.OwesCheckpoint, e.TurnID); err != nil {
		return err
	}
	// What the turn asked and nobody settled is asked no more, or parked until
	// the next turn that comes to its own end.
	open := "state IN ('pending', 'answered', 'parked') AND (state = 'parked' OR turn_id = ?)"
	settle := "state = 'resolved', decision = coalesce(nullif(decision, ''), 'cancelled')"
	if p.Parks {
		open, settle = "state IN ('pending', 'answered') AND turn_id = ?", "state = 'parked'"
	}
	if _, err := f.t.exec("UPDATE permissions INDEXED BY permissions_by_state SET "+settle+" WHERE agent_id = ? AND "+open,
		e.AgentID, e.TurnID); err != nil {
		return err
	}
	// A turn that was aborted or interrupted without a word of why says
	// nothing about an earlier failure.
	keep := p.Error == "" && !oneOf(p.Outcome, "success", "failed")
	if p.Outcome == "success" {
		p.Error = ""
	}
	if err := f.setAgent(e, `outcome = ?, error = CASE WHEN ? THEN error ELSE ? END,
		failures = CASE WHEN ?1 = 'success' THEN 0 WHEN ?1 = 'failed' AND NOT ?4 THEN failures + 1 ELSE failures END, blocked = ?5`,
		p.Outcome, keep, p.Error, p.Retried, p.Blocked); err != nil {
		return err
	}
	// What was to be said into it is told another way.
	if _, err := f.t.exec("UPDATE inbox SET state = 'pending', turn_id = '', sent_seq = 0 WHERE agent_id = ? AND state = 'sending' AND turn_id = ?",
		e.AgentID, e.TurnID); err != nil {
		return err
	}
	return f.setSession(e, p.SessionID, p.Messages)
}

// foldHandleSettled closes the handle, unless it is open for a later turn than
// the one that was settled: the answer to the newest prompt is still owed.
func foldHandleSettled(f *folder, e *Event) error {
	p, err := decode[HandleSettledPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	_, err = f.t.exec(`INSERT INTO handles (agent_id, state, outcome, result_ref, turn_id, settled_at)
		VALUES (?1, 'settled', ?2, ?3, ?4, ?5) ON CONFLICT (agent_id) DO UPDATE
		SET state = 'settled', outcome = ?2, result_ref = ?3, settled_at = ?5
		WHERE ?4 = '' OR turn_id = ?4`, e.AgentID, p.Outcome, p.ResultRef, e.TurnID, e.TS)
	return err
}

func foldCheckpointIntended(f *folder, e *Event) error {
	_, err := f.t.exec("UPDATE turns SET owes_checkpoint = 1 WHERE turn_id = ? AND agent_id = ?", e.TurnID, e.AgentID)
	return err
}

// paidCheckpoint notes that a turn's checkpoint was taken, or has failed.
func (f *folder) paidCheckpoint(e *Event, turnID string, number int) error {
	if turnID != "" {
		_, err := f.t.exec("UPDATE turns SET owes_checkpoint = 0 WHERE turn_id = ? AND agent_id = ?", turnID, e.AgentID)
		return err
	}
	_, err := f.t.exec("UPDATE turns SET owes_checkpoint = 0 WHERE agent_id = ? AND number = ?", e.AgentID, number)
	return err
}

func foldAgentCheckpointed(f *folder, e *Event) error {
	p, err := decode[AgentCheckpointedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if p.SnapshotRef == "" {
		return conflict(e, "names no checkpoint")
	}
	turnID := orElse(p.TurnID, e.TurnID)
	if _, err := f.t.exec(`INSERT INTO checkpoints (seq, agent_id, run_id, sandbox_id, turn, turn_id, snapshot_ref,
		sha256, bytes, files, session_id, messages, imported, state, taken_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'kept', ?)`,
		e.Seq, e.AgentID, e.RunID, e.SandboxID, p.Turn, turnID, p.SnapshotRef, p.SHA256, p.Bytes, p.Files,
		p.SessionID, p.Messages, p.Imported, e.TS); err != nil {
		return err
	}
	if p.Imported {
		return nil
	}
	return f.paidCheckpoint(e, turnID, p.Turn)
}

func foldAgentCheckpointFailed(f *folder, e *Event) error {
	p, err := decode[AgentCheckpointFailedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	return f.paidCheckpoint(e, e.TurnID, p.Turn)
}

func foldCheckpointPruned(f *folder, e *Event) error {
	p, err := decode[CheckpointRefPayload](e)
	if err != nil {
		return err
	}
	n, err := f.t.exec("UPDATE checkpoints SET state = 'pruned' WHERE snapshot_ref = ? AND agent_id = ?",
		p.SnapshotRef, e.AgentID)
	if err == nil && n == 0 {
		return conflict(e, "no checkpoint %q", p.SnapshotRef)
	}
	return err
}

func foldCheckpointDamaged(f *folder, e *Event) error {
	p, err := decode[CheckpointRefPayload](e)
	if err != nil {
		return err
	}
	n, err := f.t.exec("UPDATE checkpoints SET damaged = ? WHERE snapshot_ref = ? AND agent_id = ?",
		orElse(p.Reason, "unknown reason"), p.SnapshotRef, e.AgentID)
	if err == nil && n == 0 {
		return conflict(e, "no checkpoint %q", p.SnapshotRef)
	}
	return err
}
