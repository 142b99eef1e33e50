package ledger

func foldRunStarted(f *folder, e *Event) error {
	p, err := decode[RunStartedPayload](e)
	if err != nil {
		return err
	}
	if e.RunID == "" {
		return conflict(e, "names no run")
	}
	var state string
	if known, err := f.t.get("SELECT state FROM runs WHERE run_id = ?", []any{e.RunID}, &state); err != nil {
		return err
	} else if known {
		return conflict(e, "run %s was started before", e.RunID)
	}
	_, err = f.t.exec(`INSERT INTO runs (run_id, root_agent_id, close_when, max_agents_total, state, created_at, started_seq)
		VALUES (?, ?, ?, ?, 'open', ?, ?)`, e.RunID, p.RootAgentID, p.CloseWhen, p.MaxAgentsTotal, e.TS, e.Seq)
	return err
}

// foldRunQuiescent refuses what was found out before something began again.
func foldRunQuiescent(f *folder, e *Event) error {
	p, err := decode[RunQuiescentPayload](e)
	if err != nil {
		return err
	}
	n, err := f.t.exec("UPDATE runs SET quiescent = 1 WHERE run_id = ? AND state = 'open' AND quiescent = 0 AND stirred_seq <= ?", e.RunID, p.AsOf)
	if err == nil && n == 0 {
		return conflict(e, "run %q is not known to have come to rest since event %d", e.RunID, p.AsOf)
	}
	return err
}

func foldRunClosed(f *folder, e *Event) error {
	n, err := f.t.exec("UPDATE runs SET state = 'closed', closed_at = ? WHERE run_id = ? AND state = 'open'",
		e.TS, e.RunID)
	if err == nil && n == 0 {
		return conflict(e, "run %q is not open", e.RunID)
	}
	return err
}

func foldAgentSpawned(f *folder, e *Event) error {
	p, err := decode[AgentSpawnedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	var x string
	if known, err := f.t.get("SELECT run_id FROM agents WHERE agent_id = ?", []any{e.AgentID}, &x); err != nil {
		return err
	} else if known {
		return conflict(e, "agent %s was spawned before", e.AgentID)
	}
	if known, err := f.t.get("SELECT state FROM runs WHERE run_id = ?", []any{e.RunID}, &x); err != nil {
		return err
	} else if !known {
		return conflict(e, "no run %q", e.RunID)
	}
	_, err = f.t.exec(`INSERT INTO agents (agent_id, run_id, parent_agent_id, depth, spawn_index, spec_name, harness,
		model, runtime, setup_hash, checkpointing, spawn_depth, max_agents, spawned_seq, state, created_at, updated_seq)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.AgentID, e.RunID, p.ParentAgentID, p.Depth, p.SpawnIndex, p.SpecName, p.Harness, p.Model, p.Runtime,
		p.SetupHash, p.Checkpointing, p.SpawnDepth, p.MaxAgents, e.Seq, p.State, e.TS, e.Seq)
	if err != nil {
		return err
	}
	if p.ParentAgentID != "" {
		// A child starts with what its parent remembers.
		if _, err := f.t.exec("INSERT INTO memory (agent_id, key, value, updated_at) SELECT ?, key, value, updated_at FROM memory WHERE agent_id = ?",
			e.AgentID, p.ParentAgentID); err != nil {
			return err
		}
	}
	_, err = f.t.exec("UPDATE runs SET agents = agents + 1, stirred_seq = ?, quiescent = 0 WHERE run_id = ?", e.Seq, e.RunID)
	return err
}

func foldAgentStateChanged(f *folder, e *Event) error {
	p, err := decode[AgentStateChangedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if p.To == "" {
		return conflict(e, "names no state to go to")
	}
	if p.From != "" {
		var state string
		if _, err := f.t.get("SELECT state FROM agents WHERE agent_id = ?", []any{e.AgentID}, &state); err != nil {
			return err
		}
		if state != p.From {
			return conflict(e, "agent %s is %s, not %s", e.AgentID, state, p.From)
		}
	}
	// Both say something about one state only, and go with it.
	if p.To != "paused" {
		p.PausedBy = ""
	}
	if p.To != "recovering" {
		p.Recovering = ""
	}
	// What blocks an agent outlives a pause and the ladder.
	return f.setAgent(e, `state = ?, reason = ?, paused_by = ?, recovering = ?,
		blocked = CASE WHEN ?1 IN ('blocked', 'paused', 'recovering') THEN blocked ELSE '' END,
		failures = CASE WHEN ?5 THEN 0 ELSE failures END`,
		p.To, p.Reason, p.PausedBy, p.Recovering, p.Forgiven)
}

func foldAgentEnded(f *folder, e *Event) error {
	p, err := decode[AgentEndedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if p.EndedAt == 0 {
		p.EndedAt = e.TS
	}
	return f.setAgent(e, `ended_at = ?, stop_mode = '', outcome = coalesce(nullif(?, ''), outcome),
		error = coalesce(nullif(?, ''), error)`, p.EndedAt, p.Outcome, p.Error)
}

func foldIntentStop(f *folder, e *Event) error {
	p, err := decode[IntentStopPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "stop_mode = ?", p.Mode)
}

func foldAgentStopped(f *folder, e *Event) error {
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "stop_mode = ''")
}

func foldAgentRevived(f *folder, e *Event) error {
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "stop_mode = '', ended_at = 0, failures = 0, blocked = ''")
}

// foldSession takes the session's id only: the number of messages is what the
// harness says when it is idle.
func foldSession(f *folder, e *Event) error {
	p, err := decode[SessionPayload](e)
	if err != nil || p.SessionID == "" || e.AgentID == "" {
		return err
	}
	return f.setAgent(e, "session_id = ?", p.SessionID)
}

func foldAgentProvisioned(f *folder, e *Event) error {
	p, err := decode[AgentProvisionedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	if e.SandboxID == "" {
		e.SandboxID = p.SandboxID
	}
	if err := f.moveAgent(e, orElse(p.SandboxID, e.SandboxID)); err != nil {
		return err
	}
	return f.setSession(e, p.SessionID, p.Messages)
}

func foldAgentRecovered(f *folder, e *Event) error {
	p, err := decode[AgentRecoveredPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	var current string
	if _, err := f.t.get("SELECT sandbox_id FROM agents WHERE agent_id = ?", []any{e.AgentID}, &current); err != nil {
		return err
	}
	if p.SandboxID != "" && p.SandboxID != current {
		if err := f.moveAgent(e, p.SandboxID); err != nil {
			return err
		}
	}
	if p.Blank && p.SessionID == "" {
		return f.setAgent(e, "session_id = '', messages = 0, ended_at = 0")
	}
	if err := f.setSession(e, p.SessionID, p.Messages); err != nil {
		return err
	}
	return f.setAgent(e, "ended_at = 0")
}

// moveAgent makes a sandbox its agent's current one and releases the one
// before.
func (f *folder) moveAgent(e *Event, sandbox string) error {
	var agent, state string
	known, err := f.t.get("SELECT agent_id, state FROM sandboxes WHERE sandbox_id = ?", []any{sandbox}, &agent, &state)
	switch {
	case err != nil:
		return err
	case !known:
		return conflict(e, "no sandbox %q", sandbox)
	case agent != e.AgentID:
		return conflict(e, "sandbox %s is of agent %q", sandbox, agent)
	case !oneOf(state, "intended", "created"):
		return conflict(e, "sandbox %s is %s", sandbox, state)
	}
	if _, err := f.t.exec("UPDATE sandboxes INDEXED BY sandboxes_by_agent SET state = 'released' WHERE agent_id = ? AND state = 'current'",
		e.AgentID); err != nil {
		return err
	}
	if _, err := f.t.exec("UPDATE sandboxes SET state = 'current' WHERE sandbox_id = ?", sandbox); err != nil {
		return err
	}
	return f.setAgent(e, "sandbox_id = ?", sandbox)
}

func foldAgentForked(f *folder, e *Event) error {
	p, err := decode[AgentForkedPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	return f.setAgent(e, "fork_image = ?, fork_setup = ?, fork_marked = ?", p.Image, p.SetupHash, p.Marked)
}
