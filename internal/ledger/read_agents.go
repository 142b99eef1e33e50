package ledger

import "context"

// RunFilter says which runs are meant; fields that are zero let all through.
type RunFilter struct {
	State string
	After string // those started after this run; ErrNotFound when there is no such run
	Limit int
}

const runColumns = "run_id, root_agent_id, close_when, state, created_at, closed_at, agents, max_agents_total, turns, quiescent FROM runs"

func scanRun(s scanner) (r Run, err error) {
	err = s.Scan(&r.RunID, &r.RootAgentID, &r.CloseWhen, &r.State, &r.CreatedAt, &r.ClosedAt, &r.Agents, &r.MaxAgentsTotal, &r.Turns, &r.Quiescent)
	return r, err
}

// Run reads a run, or is ErrNotFound.
func (l *Ledger) Run(ctx context.Context, id string) (Run, error) {
	return single(ctx, l, "reading run "+id, "SELECT "+runColumns+" WHERE run_id = ?", []any{id}, scanRun)
}

// Runs reads runs in the order they were started.
func (l *Ledger) Runs(ctx context.Context, f RunFilter) ([]Run, error) {
	var s selection
	s.equal("state", f.State)
	if f.After != "" {
		var seq int64
		if err := l.one(ctx, "reading runs after "+f.After, "SELECT started_seq FROM runs WHERE run_id = ?", []any{f.After}, &seq); err != nil {
			return nil, err
		}
		s.where("started_seq > ?", seq)
	}
	return all(ctx, l, "reading runs", s.sql(runColumns, "started_seq", f.Limit), s.args, scanRun)
}

// AgentFilter says which agents are meant; fields that are zero let all
// through.
type AgentFilter struct {
	RunID        string
	States       []string // in one of these
	ExceptStates []string // in none of these
	After        string   // those spawned after this agent; ErrNotFound when there is no such agent
	Limit        int
}

const agentColumns = `agent_id, run_id, parent_agent_id, depth, spawn_index, spec_name, harness, model, runtime,
	setup_hash, checkpointing, spawn_depth, max_agents, spawned_seq, state, reason, recovering, paused_by, outcome,
	error, sandbox_id, generation, turn, session_id, messages, stop_mode, created_at, ended_at, fork_image, fork_setup, fork_marked,
	inbox, failures, blocked, queued_at, updated_seq FROM agents`

func scanAgent(s scanner) (a Agent, err error) {
	err = s.Scan(&a.AgentID, &a.RunID, &a.ParentAgentID, &a.Depth, &a.SpawnIndex, &a.SpecName, &a.Harness, &a.Model, &a.Runtime,
		&a.SetupHash, &a.Checkpointing, &a.SpawnDepth, &a.MaxAgents, &a.SpawnedSeq, &a.State, &a.Reason, &a.Recovering, &a.PausedBy, &a.Outcome,
		&a.Error, &a.SandboxID, &a.Generation, &a.Turn, &a.SessionID, &a.Messages, &a.StopMode, &a.CreatedAt, &a.EndedAt, &a.ForkImage, &a.ForkSetup, &a.ForkMarked,
		&a.Inbox, &a.Failures, &a.Blocked, &a.QueuedAt, &a.UpdatedSeq)
	return a, err
}

// Agent reads an agent, or is ErrNotFound.
func (l *Ledger) Agent(ctx context.Context, id string) (Agent, error) {
	return single(ctx, l, "reading agent "+id, "SELECT "+agentColumns+" WHERE agent_id = ?", []any{id}, scanAgent)
}

// AgentBySandbox reads the agent that has, or ever had, a sandbox.
func (l *Ledger) AgentBySandbox(ctx context.Context, sandboxID string) (Agent, error) {
	return single(ctx, l, "reading the agent of sandbox "+sandboxID,
		"SELECT "+agentColumns+" WHERE agent_id = (SELECT agent_id FROM sandboxes WHERE sandbox_id = ?)", []any{sandboxID}, scanAgent)
}

// Agents reads agents in the order they were spawned.
func (l *Ledger) Agents(ctx context.Context, f AgentFilter) ([]Agent, error) {
	var s selection
	s.equal("run_id", f.RunID)
	s.in("state", f.States)
	if len(f.ExceptStates) > 0 {
		s.where(agentsExcept, list(f.ExceptStates))
	}
	if f.After != "" {
		var seq int64
		if err := l.one(ctx, "reading agents after "+f.After, "SELECT spawned_seq FROM agents WHERE agent_id = ?", []any{f.After}, &seq); err != nil {
			return nil, err
		}
		s.where("spawned_seq > ?", seq)
	}
	return all(ctx, l, "reading agents", s.sql(agentColumns, "spawned_seq", f.Limit), s.args, scanAgent)
}

// agentsExcept lists the states that agents are in, with one look at the index
// for each, and takes those that are not excepted. A plain NOT IN would look at
// every agent there ever was.
const agentsExcept = `state IN (WITH RECURSIVE s (x) AS (
	SELECT min(state) FROM agents
	UNION ALL SELECT (SELECT min(state) FROM agents WHERE state > s.x) FROM s WHERE s.x IS NOT NULL)
	SELECT x FROM s WHERE x IS NOT NULL AND x NOT IN (SELECT value FROM json_each(?)))`
