package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/telemetry"
)

// Runs lists runs in the order they were started.
func (s *Swarm) Runs(ctx context.Context, state string, limit int, after string) (RunsView, error) {
	const defaultLimit, maxLimit = 100, 1000
	if limit <= 0 {
		limit = defaultLimit
	}
	limit = min(limit, maxLimit)
	runs, err := s.Ledger.Runs(ctx, ledger.RunFilter{State: state, After: after, Limit: limit})
	if errors.Is(err, ledger.ErrNotFound) {
		return RunsView{}, notFound("run", after)
	}
	if err != nil {
		return RunsView{}, err
	}
	view := RunsView{Runs: []RunSummary{}}
	for _, r := range runs {
		view.Runs = append(view.Runs, RunSummary{RunID: r.RunID, RootAgentID: r.RootAgentID, State: r.State,
			CreatedAt: r.CreatedAt, ClosedAt: optional(r.ClosedAt), Agents: r.Agents})
	}
	if len(runs) == limit {
		view.Next = runs[limit-1].RunID
	}
	return view, nil
}

// Run shows a run with its agents.
func (s *Swarm) Run(ctx context.Context, id string) (RunView, error) {
	asOf := s.Ledger.LastSeq() // read first: the rest reflects at least this
	r, err := s.Ledger.Run(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return RunView{}, notFound("run", id)
	}
	if err != nil {
		return RunView{}, err
	}
	view := RunView{RunID: r.RunID, RootAgentID: r.RootAgentID, AsOf: asOf, CloseWhen: r.CloseWhen, State: r.State, CreatedAt: r.CreatedAt}
	view.Agents, err = s.views(ctx, ledger.AgentFilter{RunID: id})
	if err == nil && actor(ctx) != "" && len(view.Agents) == 0 {
		err = notFound("run", id) // none of the actor's
	}
	return view, err
}

// Agents lists all agents.
func (s *Swarm) Agents(ctx context.Context) ([]AgentView, error) {
	return s.views(ctx, ledger.AgentFilter{})
}

func (s *Swarm) views(ctx context.Context, f ledger.AgentFilter) ([]AgentView, error) {
	rows, err := s.Ledger.Agents(ctx, f)
	if err != nil {
		return nil, err
	}
	rows = visible(ctx, rows)
	kept, err := s.Ledger.Checkpoints(ctx, ledger.CheckpointFilter{State: "kept"})
	if err != nil {
		return nil, err
	}
	newest := map[string]ledger.Checkpoint{}
	for _, c := range kept { // newest first
		if _, ok := newest[c.AgentID]; !ok {
			newest[c.AgentID] = c
		}
	}
	views := make([]AgentView, 0, len(rows))
	for _, a := range rows {
		v := s.view(a)
		if c, ok := newest[a.AgentID]; ok {
			cv := checkpointView(c)
			v.Checkpoint = &cv
		}
		views = append(views, v)
	}
	return views, nil
}

func (s *Swarm) view(a ledger.Agent) AgentView {
	v := AgentView{AgentID: a.AgentID, RunID: a.RunID, ParentAgentID: optional(a.ParentAgentID), Depth: a.Depth,
		SpawnIndex: a.SpawnIndex, State: a.State, SpecName: a.SpecName, SandboxID: optional(a.SandboxID),
		CreatedAt: a.CreatedAt, EndedAt: optional(a.EndedAt), Outcome: optional(a.Outcome), PausedBy: optional(a.PausedBy),
		Harness: a.Harness, Model: a.Model, Runtime: a.Runtime, Turn: a.Turn, Reason: a.Reason, Recovering: a.Recovering, Error: a.Error, QueuedAt: a.QueuedAt, Inbox: a.Inbox}
	if rt := s.runtimes[a.Runtime]; rt != nil {
		v.Isolated, v.Transport = rt.Capabilities().Isolated, rt.Transport()
	}
	return v
}

func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// statsWait is how long Agent waits for what the bridge says (api.md: 2 s).
const statsWait = 2 * time.Second

// Agent shows one agent, with what its bridge says just now where it answers.
func (s *Swarm) Agent(ctx context.Context, id string) (AgentView, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return AgentView{}, err
	}
	v := s.view(row)
	kept, err := s.Ledger.Checkpoints(ctx, ledger.CheckpointFilter{AgentID: id, State: "kept"})
	if err != nil {
		return AgentView{}, err
	}
	if len(kept) > 0 {
		cv := checkpointView(kept[0])
		v.Checkpoint = &cv
	}
	if row.State != StatePaused {
		v.SessionStats = s.sessionStats(ctx, id)
	}
	return v, nil
}

func (s *Swarm) sessionStats(ctx context.Context, id string) *SessionStats {
	s.mu.Lock()
	o := s.owners[id]
	s.mu.Unlock()
	if o == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsWait)
	defer cancel()
	a, err := ask(ctx, o, func() (*statusOf, error) { return &statusOf{o.live}, nil })
	if err != nil || a.live == nil {
		return nil
	}
	h, err := a.live.Status(ctx)
	if err != nil {
		return nil
	}
	return &SessionStats{SessionID: h.Harness.SessionID, Messages: h.Harness.Messages, Harness: string(h.Harness.State), PID: h.PID, TurnID: h.TurnID}
}

// Result answers with an agent's last result, waiting for it up to wait.
func (s *Swarm) Result(ctx context.Context, id string, wait time.Duration) (ResultView, error) {
	var v ResultView
	filter := ledger.EventFilter{AgentID: id, Names: []string{ledger.HandleSettled, ledger.AgentEnded}}
	err := s.until(ctx, filter, wait, func() (settled bool, err error) {
		v, err = s.result(ctx, id)
		return v.State == "settled", err
	})
	return v, err
}

func (s *Swarm) result(ctx context.Context, id string) (ResultView, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return ResultView{}, err
	}
	v := ResultView{AgentID: id, State: "pending"}
	h, err := s.Ledger.Handle(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) || err == nil && h.State != "settled" {
		if row.EndedAt != 0 { // it ended and was never asked anything
			v.State, v.Outcome, v.Error = "settled", optional(row.Outcome), row.Error
		}
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.State, v.Outcome, v.ResultRef, v.TurnID = "settled", optional(h.Outcome), optional(h.ResultRef), h.TurnID
	turn, err := s.Ledger.Turn(ctx, h.TurnID)
	if err != nil {
		return v, err
	}
	v.Error = turn.Error
	body, err := s.Ledger.Body(ctx, turn.EndedSeq)
	if errors.Is(err, ledger.ErrNotFound) || len(body) == 0 {
		return v, nil
	}
	var b struct {
		Result *string `json:"result"`
	}
	if err == nil {
		err = json.Unmarshal(body, &b)
	}
	v.Result = b.Result
	return v, err
}

// maxText is how much of a message's text a transcript shows unless it is full.
const maxText = 2000

// Transcript shows what was said in an agent's turns.
func (s *Swarm) Transcript(ctx context.Context, id string, full bool) (TranscriptView, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return TranscriptView{}, err
	}
	view := TranscriptView{AgentID: id, Turns: []TranscriptTurn{}}
	turns, err := s.Ledger.Turns(ctx, ledger.TurnFilter{AgentID: id})
	if err != nil {
		return view, err
	}
	index := map[string]int{}
	for i, t := range turns {
		index[t.TurnID] = i
		view.Turns = append(view.Turns, TranscriptTurn{Seq: t.RequestedSeq, TS: t.RequestedAt, TurnID: t.TurnID, Turn: t.Number,
			Outcome: t.Outcome, Messages: []TranscriptMessage{}})
	}
	events, err := s.Ledger.Events(ctx, ledger.EventFilter{AgentID: id, Bodies: true, Names: []string{ledger.TurnRequested, ledger.MessageEnded}})
	if err != nil {
		return view, err
	}
	for _, e := range events {
		i, ok := index[e.TurnID]
		if !ok {
			continue
		}
		var m struct {
			Role    string          `json:"role"`
			Text    string          `json:"text"`
			Message json.RawMessage `json:"message"`
		}
		if err := json.Unmarshal(e.Data(), &m); err != nil {
			continue
		}
		turn := &view.Turns[i]
		if e.Event == ledger.TurnRequested {
			m.Role, m.Message = "user", nil
		} else if m.Role == "user" && len(turn.Messages) > 0 && turn.Messages[0].Text == m.Text {
			continue // the prompt, as the harness took it
		}
		msg := TranscriptMessage{Role: m.Role, Text: m.Text}
		if full {
			msg.Message = m.Message
		} else if utf8.RuneCountInString(m.Text) > maxText {
			msg.Text, msg.Truncated = string([]rune(m.Text)[:maxText]), true
		}
		turn.Messages = append(turn.Messages, msg)
	}
	return view, nil
}

// Checkpoints lists an agent's checkpoints that are kept, newest first.
func (s *Swarm) Checkpoints(ctx context.Context, id string) ([]CheckpointView, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return nil, err
	}
	kept, err := s.Ledger.Checkpoints(ctx, ledger.CheckpointFilter{AgentID: id, State: "kept"})
	views := make([]CheckpointView, 0, len(kept))
	for _, c := range kept {
		views = append(views, checkpointView(c))
	}
	return views, err
}

// Permissions lists what an agent's harness has asked, resolved or not.
func (s *Swarm) Permissions(ctx context.Context, id string) ([]PermissionView, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return nil, err
	}
	rows, err := s.Ledger.Permissions(ctx, id, requestPending, requestAnswered, requestParked)
	if err != nil {
		return nil, err
	}
	views := make([]PermissionView, 0, len(rows))
	for _, p := range rows {
		v := PermissionView{RequestID: p.RequestID, TurnID: p.TurnID, Title: p.Title, State: p.State, Decision: p.Decision, RequestedAt: p.RequestedAt}
		if body, err := s.Ledger.Body(ctx, p.RequestSeq); err == nil && len(body) > 0 {
			var b struct{ Request json.RawMessage }
			if json.Unmarshal(body, &b) == nil {
				v.Request = b.Request
			}
		}
		views = append(views, v)
	}
	return views, nil
}

// Census counts what the metrics show.
func (s *Swarm) Census() (telemetry.Census, error) {
	ctx, cancel := context.WithTimeout(s.ctx, statsWait)
	defer cancel()
	c := telemetry.Census{ByState: map[string]int{}, Recovering: int(s.climbing.Load())}
	agents, err := s.Ledger.Agents(ctx, ledger.AgentFilter{ExceptStates: final})
	if err != nil {
		return c, err
	}
	for _, a := range agents {
		c.ByState[a.State]++
	}
	queued, err := s.Ledger.Turns(ctx, ledger.TurnFilter{States: []string{"requested"}})
	if err != nil {
		return c, err
	}
	c.TurnsQueued = len(queued)
	return c, nil
}
