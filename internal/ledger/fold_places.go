package ledger

import "encoding/json"

func foldSandboxIntended(f *folder, e *Event) error {
	p, err := decode[SandboxIntendedPayload](e)
	if err != nil {
		return err
	}
	if e.SandboxID == "" {
		return conflict(e, "names no sandbox")
	}
	var x string
	if known, err := f.t.get("SELECT state FROM sandboxes WHERE sandbox_id = ?", []any{e.SandboxID}, &x); err != nil {
		return err
	} else if known {
		return conflict(e, "sandbox %s was intended before", e.SandboxID)
	}
	if _, err := f.t.exec(`INSERT INTO sandboxes (sandbox_id, agent_id, run_id, runtime, generation, purpose, image,
		state, intended_at, intended_seq) VALUES (?, ?, ?, ?, ?, ?, ?, 'intended', ?, ?)`,
		e.SandboxID, e.AgentID, e.RunID, p.Runtime, p.Generation, p.Purpose, p.Image, e.TS, e.Seq); err != nil {
		return err
	}
	if e.AgentID == "" {
		return nil
	}
	return f.setAgent(e, "generation = max(generation, ?)", p.Generation)
}

// foldSandboxCreated may come again for a sandbox that was adopted after a
// crash: the last handle and transport are the ones that hold.
func foldSandboxCreated(f *folder, e *Event) error {
	p, err := decode[SandboxCreatedPayload](e)
	if err != nil {
		return err
	}
	n, err := f.t.exec(`UPDATE sandboxes SET handle = ?, transport = ?,
		state = CASE state WHEN 'intended' THEN 'created' ELSE state END
		WHERE sandbox_id = ? AND state IN ('intended', 'created', 'current')`, p.Handle, p.Transport, e.SandboxID)
	if err == nil && n == 0 {
		return conflict(e, "sandbox %q is not there to be created", e.SandboxID)
	}
	return err
}

func foldSandboxReleased(f *folder, e *Event) error {
	n, err := f.t.exec("UPDATE sandboxes SET state = 'released' WHERE sandbox_id = ? AND state <> 'removed'", e.SandboxID)
	if err == nil && n == 0 {
		return conflict(e, "no sandbox %q to release", e.SandboxID)
	}
	return err
}

// foldSandboxRemoved also comes for orphans that the ledger never knew, and
// for removals that two passes saw: the first one counts.
func foldSandboxRemoved(f *folder, e *Event) error {
	_, err := f.t.exec("UPDATE sandboxes SET state = 'removed', removed_at = ? WHERE sandbox_id = ? AND state <> 'removed'",
		e.TS, e.SandboxID)
	return err
}

func foldSnapshotIntended(f *folder, e *Event) error { return foldSnapshot(f, e, "intended") }
func foldSnapshotCreated(f *folder, e *Event) error  { return foldSnapshot(f, e, "created") }

func foldSnapshot(f *folder, e *Event, state string) error {
	p, err := decode[SnapshotPayload](e)
	if err != nil {
		return err
	}
	if p.Hash == "" {
		return conflict(e, "names no setup hash")
	}
	skipped := "[]"
	if len(p.Skipped) > 0 {
		b, err := json.Marshal(p.Skipped)
		if err != nil {
			return conflict(e, "skipped steps: %v", err)
		}
		skipped = string(b)
	}
	_, err = f.t.exec(`INSERT INTO setup_snapshots (runtime, hash, ref, state, skipped, created_at)
		VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (runtime, hash) DO UPDATE SET ref = excluded.ref,
		state = excluded.state, skipped = excluded.skipped, created_at = excluded.created_at`,
		p.Runtime, p.Hash, p.Ref, state, skipped, e.TS)
	return err
}

func foldSnapshotGone(f *folder, e *Event) error {
	p, err := decode[SnapshotPayload](e)
	if err != nil {
		return err
	}
	_, err = f.t.exec("UPDATE setup_snapshots SET state = 'gone' WHERE runtime = ? AND hash = ?", p.Runtime, p.Hash)
	return err
}

func foldRequestAccepted(f *folder, e *Event) error {
	p, err := decode[RequestAcceptedPayload](e)
	if err != nil {
		return err
	}
	if err := f.freshRequest(p.Scope, p.Key, p.BodyHash); err != nil {
		return err
	}
	_, err = f.t.exec("INSERT INTO idempotency (scope, key, body_hash, status, answer) VALUES (?, ?, ?, ?, ?)",
		p.Scope, p.Key, p.BodyHash, p.Status, p.Answer)
	return err
}

// freshRequest is the guard of idempotency keys: ErrDuplicate for a repetition,
// ErrKeyReused for another use of the key.
func (f *folder) freshRequest(scope, key, hash string) error {
	var stored string
	known, err := f.t.get("SELECT body_hash FROM idempotency WHERE scope = ? AND key = ?", []any{scope, key}, &stored)
	switch {
	case err != nil:
		return err
	case !known:
		return nil
	case stored == hash:
		return ErrDuplicate
	}
	return ErrKeyReused
}

// foldPermissionRequested may come again for the same request: after a restore
// it is asked for again.
func foldPermissionRequested(f *folder, e *Event) error {
	p, err := decode[PermissionRequestedPayload](e)
	if err != nil || p.RequestID == "" || e.AgentID == "" {
		return err
	}
	_, err = f.t.exec(`INSERT INTO permissions (agent_id, request_id, sandbox_id, turn_id, title, state, request_seq, requested_at)
		VALUES (?, ?, ?, ?, ?, 'pending', ?, ?) ON CONFLICT (agent_id, request_id) DO UPDATE SET
		sandbox_id = excluded.sandbox_id, turn_id = excluded.turn_id, title = excluded.title, state = 'pending',
		decision = '', feedback = '', request_seq = excluded.request_seq, requested_at = excluded.requested_at`,
		e.AgentID, p.RequestID, e.SandboxID, e.TurnID, p.Title, e.Seq, e.TS)
	return err
}

func foldPermissionAnswered(f *folder, e *Event) error {
	p, err := decode[PermissionResolvedPayload](e)
	if err != nil {
		return err
	}
	n, err := f.t.exec(`UPDATE permissions SET state = CASE state WHEN 'pending' THEN 'answered' ELSE state END, decision = ?, feedback = ?
		WHERE agent_id = ? AND request_id = ? AND (state = 'pending' OR state = 'parked' AND decision = '')`, p.Decision, p.Feedback, e.AgentID, p.RequestID)
	if err == nil && n == 0 {
		return conflict(e, "permission request %q is not pending", p.RequestID)
	}
	if err == nil && p.Of != "" {
		_, err = f.t.exec("UPDATE permissions SET state = 'resolved' WHERE agent_id = ? AND request_id = ? AND state = 'parked'", e.AgentID, p.Of)
	}
	return err
}

// foldPermissionResolved comes from the sandbox, which may name a request that
// was never seen. That must not hold up its other events.
func foldPermissionResolved(f *folder, e *Event) error {
	p, err := decode[PermissionResolvedPayload](e)
	if err != nil {
		return err
	}
	_, err = f.t.exec(`UPDATE permissions SET state = 'resolved', decision = coalesce(nullif(?, ''), decision),
		feedback = coalesce(nullif(?, ''), feedback)
		WHERE agent_id = ? AND request_id = ?`, p.Decision, p.Feedback, e.AgentID, p.RequestID)
	return err
}
