package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// TurnFilter says which turns are meant; fields that are zero let all through.
type TurnFilter struct {
	AgentID        string
	States         []string
	OwesCheckpoint bool // only those that owe one
	After          int  // those with a higher number
	Limit          int
	Desc           bool // newest first
}

const turnColumns = `turn_id, agent_id, run_id, number, state, sandbox_id, retry_of, attempt, requested_seq, started_seq,
	ended_seq, outcome, class, error, owes_checkpoint, requested_at, started_at, ended_at FROM turns`

func scanTurn(s scanner) (t Turn, err error) {
	err = s.Scan(&t.TurnID, &t.AgentID, &t.RunID, &t.Number, &t.State, &t.SandboxID, &t.RetryOf, &t.Attempt, &t.RequestedSeq, &t.StartedSeq,
		&t.EndedSeq, &t.Outcome, &t.Class, &t.Error, &t.OwesCheckpoint, &t.RequestedAt, &t.StartedAt, &t.EndedAt)
	return t, err
}

// Turn reads a turn, or is ErrNotFound.
func (l *Ledger) Turn(ctx context.Context, id string) (Turn, error) {
	return single(ctx, l, "reading turn "+id, "SELECT "+turnColumns+" WHERE turn_id = ?", []any{id}, scanTurn)
}

// Turns reads turns in the order they were requested.
func (l *Ledger) Turns(ctx context.Context, f TurnFilter) ([]Turn, error) {
	var s selection
	s.equal("agent_id", f.AgentID)
	s.in("state", f.States)
	from := turnColumns
	// The indexes of the few turns that are open, or owe something. Without
	// being told, SQLite reads all turns there ever were in their order.
	switch {
	case f.OwesCheckpoint:
		s.where("owes_checkpoint = 1")
		from += " INDEXED BY turns_owing"
	case len(f.States) > 0 && !slices.Contains(f.States, "ended"):
		s.where("state <> 'ended'")
		from += " INDEXED BY turns_open"
	}
	if f.After > 0 {
		s.where("number > ?", f.After)
	}
	order := "requested_seq"
	if f.AgentID != "" {
		order = "number"
	}
	if f.Desc {
		order += " DESC"
	}
	return all(ctx, l, "reading turns", s.sql(from, order, f.Limit), s.args, scanTurn)
}

// SandboxFilter says which sandboxes are meant; fields that are zero let all
// through.
type SandboxFilter struct {
	AgentID string
	States  []string
}

const sandboxColumns = `sandbox_id, agent_id, run_id, runtime, generation, purpose, image, state, handle, transport,
	intended_at, removed_at FROM sandboxes`

func scanSandbox(s scanner) (b Sandbox, err error) {
	err = s.Scan(&b.SandboxID, &b.AgentID, &b.RunID, &b.Runtime, &b.Generation, &b.Purpose, &b.Image, &b.State, &b.Handle, &b.Transport,
		&b.IntendedAt, &b.RemovedAt)
	return b, err
}

// Sandbox reads a sandbox, or is ErrNotFound.
func (l *Ledger) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	return single(ctx, l, "reading sandbox "+id, "SELECT "+sandboxColumns+" WHERE sandbox_id = ?", []any{id}, scanSandbox)
}

// Sandboxes reads sandboxes in the order they were intended.
func (l *Ledger) Sandboxes(ctx context.Context, f SandboxFilter) ([]Sandbox, error) {
	var s selection
	s.equal("agent_id", f.AgentID)
	s.in("state", f.States)
	return all(ctx, l, "reading sandboxes", s.sql(sandboxColumns, "intended_seq", 0), s.args, scanSandbox)
}

// CheckpointFilter says which checkpoints are meant; fields that are empty let
// all through.
type CheckpointFilter struct {
	AgentID   string
	SandboxID string
	State     string
}

func scanCheckpoint(s scanner) (c Checkpoint, err error) {
	err = s.Scan(&c.Seq, &c.AgentID, &c.RunID, &c.SandboxID, &c.Turn, &c.TurnID, &c.SnapshotRef, &c.SHA256, &c.Bytes, &c.Files,
		&c.SessionID, &c.Messages, &c.Imported, &c.State, &c.Damaged, &c.TakenAt)
	return c, err
}

// Checkpoints reads checkpoints, the newest of the ledger's order first.
func (l *Ledger) Checkpoints(ctx context.Context, f CheckpointFilter) ([]Checkpoint, error) {
	var s selection
	s.equal("agent_id", f.AgentID)
	s.equal("sandbox_id", f.SandboxID)
	if f.State == "kept" {
		s.where("state = 'kept'") // says that the small index will do
	} else {
		s.equal("state", f.State)
	}
	return all(ctx, l, "reading checkpoints", s.sql(`seq, agent_id, run_id, sandbox_id, turn, turn_id, snapshot_ref, sha256, bytes,
		files, session_id, messages, imported, state, damaged, taken_at FROM checkpoints`, "seq DESC", 0), s.args, scanCheckpoint)
}

// Handle reads an agent's handle, or is ErrNotFound before its first prompt.
func (l *Ledger) Handle(ctx context.Context, agentID string) (Handle, error) {
	return single(ctx, l, "reading the handle of agent "+agentID,
		"SELECT agent_id, state, outcome, result_ref, turn_id, settled_at FROM handles WHERE agent_id = ?", []any{agentID},
		func(s scanner) (h Handle, err error) {
			err = s.Scan(&h.AgentID, &h.State, &h.Outcome, &h.ResultRef, &h.TurnID, &h.SettledAt)
			return h, err
		})
}

// Permissions reads an agent's permission requests in the order they were
// asked; those in one of the states, or all.
func (l *Ledger) Permissions(ctx context.Context, agentID string, states ...string) ([]Permission, error) {
	var s selection
	s.where("agent_id = ?", agentID)
	s.in("state", states)
	return all(ctx, l, "reading permissions", s.sql(`agent_id, request_id, sandbox_id, turn_id, title, state, decision, feedback,
		request_seq, requested_at FROM permissions INDEXED BY permissions_by_state`, "request_seq", 0), s.args,
		func(s scanner) (p Permission, err error) {
			err = s.Scan(&p.AgentID, &p.RequestID, &p.SandboxID, &p.TurnID, &p.Title, &p.State, &p.Decision, &p.Feedback,
				&p.RequestSeq, &p.RequestedAt)
			return p, err
		})
}

// Snapshot reads a setup snapshot, or is ErrNotFound.
func (l *Ledger) Snapshot(ctx context.Context, runtime, hash string) (Snapshot, error) {
	op := "reading the setup snapshot " + hash
	var skipped string
	s, err := single(ctx, l, op, "SELECT runtime, hash, ref, state, skipped, created_at FROM setup_snapshots WHERE runtime = ? AND hash = ?",
		[]any{runtime, hash}, func(s scanner) (v Snapshot, err error) {
			err = s.Scan(&v.Runtime, &v.Hash, &v.Ref, &v.State, &skipped, &v.CreatedAt)
			return v, err
		})
	if err != nil {
		return Snapshot{}, err
	}
	if err := json.Unmarshal([]byte(skipped), &s.Skipped); err != nil {
		return Snapshot{}, damaged(op, l.path, err)
	}
	if len(s.Skipped) == 0 {
		s.Skipped = nil
	}
	return s, nil
}

// Cursor reads how far a sandbox's journal was taken in: position 0 when
// nothing was.
func (l *Ledger) Cursor(ctx context.Context, sandboxID string) (Cursor, error) {
	c := Cursor{SandboxID: sandboxID}
	err := l.one(ctx, "reading the cursor of sandbox "+sandboxID, "SELECT epoch, pos FROM cursors WHERE sandbox_id = ?",
		[]any{sandboxID}, &c.Epoch, &c.Pos)
	if errors.Is(err, ErrNotFound) {
		return Cursor{SandboxID: sandboxID}, nil
	}
	return c, err
}

// Request reads what was answered to an idempotency key, or is ErrNotFound.
func (l *Ledger) Request(ctx context.Context, scope, key string) (Request, error) {
	return single(ctx, l, fmt.Sprintf("reading request %s of %s", key, scope),
		"SELECT scope, key, body_hash, status, answer FROM idempotency WHERE scope = ? AND key = ?", []any{scope, key},
		func(s scanner) (r Request, err error) {
			err = s.Scan(&r.Scope, &r.Key, &r.BodyHash, &r.Status, &r.Answer)
			return r, err
		})
}

// OpenTurns reads which agents of a run have a turn that has not ended.
func (l *Ledger) OpenTurns(ctx context.Context, runID string) (map[string]bool, error) {
	agents, err := all(ctx, l, "reading the open turns of "+runID,
		"SELECT DISTINCT agent_id FROM turns INDEXED BY turns_open WHERE state <> 'ended' AND run_id = ?", []any{runID},
		func(s scanner) (id string, err error) { err = s.Scan(&id); return id, err })
	open := make(map[string]bool, len(agents))
	for _, id := range agents {
		open[id] = true
	}
	return open, err
}
