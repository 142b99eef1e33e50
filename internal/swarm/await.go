package swarm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/wait"
)

// AwaitRequest asks whether agents of a run have settled. Either Agents with a
// Mode, or Subtree: an agent and all that is below it.
type AwaitRequest struct {
	RunID        string
	Agents       []string
	Mode         string
	K            *int
	OnDepFailure string
	Subtree      string
	Wait         time.Duration // how long to wait for it
}

// AwaitAnswer says what has come of it.
type AwaitAnswer struct {
	Outcome  string              `json:"outcome" enum:"satisfied,partial,depfail,pending"`
	Selected []string            `json:"selected"` // those that decided it
	Settled  []ledger.WaitMember `json:"settled"`
	Pending  []string            `json:"pending"`
}

// SubtreeView says whether an agent and all that is below it are at rest.
type SubtreeView struct {
	RootAgentID string `json:"rootAgentId"`
	Quiescent   bool   `json:"quiescent"`
	AsOf        int64  `json:"asOf"` // highest seq reflected
	// Members are the agent and those below it, in the order they were spawned.
	Members []SubtreeMember `json:"members"`
	// BlockedOnPaused are the paused members that have something left to do.
	BlockedOnPaused []string `json:"blockedOnPaused"`
}

// SubtreeMember is one agent of a SubtreeView.
type SubtreeMember struct {
	AgentID string  `json:"agentId"`
	State   string  `json:"state"`
	Outcome *string `json:"outcome"`
}

// Await waits up to r.Wait for agents of a run to settle.
func (s *Swarm) Await(ctx context.Context, r AwaitRequest) (AwaitAnswer, error) {
	if _, err := s.Ledger.Run(ctx, r.RunID); errors.Is(err, ledger.ErrNotFound) {
		return AwaitAnswer{}, notFound("run", r.RunID)
	} else if err != nil {
		return AwaitAnswer{}, err
	}
	if (r.Subtree == "") == (len(r.Agents) == 0) {
		return AwaitAnswer{}, invalid("agents", "give either agents or subtree")
	}
	var answer AwaitAnswer
	err := s.until(ctx, ledger.EventFilter{RunID: r.RunID, Names: stirring}, r.Wait, func() (bool, error) {
		wish, err := s.wish(ctx, r)
		if err != nil {
			return false, err
		}
		outcomes, err := s.outcomes(ctx, wish.Agents)
		if err != nil {
			return false, err
		}
		a := wait.Evaluate(wish, outcomes, false)
		answer = AwaitAnswer{Outcome: a.Outcome, Selected: a.Selected, Settled: a.Settled, Pending: a.Pending}
		return a.Outcome != wait.Pending, nil
	})
	return answer, err
}

// wish makes an AwaitRequest what a spawn would wait for.
func (s *Swarm) wish(ctx context.Context, r AwaitRequest) (ledger.WaitOpenedPayload, error) {
	all, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: r.RunID})
	if err != nil {
		return ledger.WaitOpenedPayload{}, err
	}
	known := map[string]bool{}
	for _, a := range visible(ctx, all) {
		known[a.AgentID] = true
	}
	if r.Subtree != "" {
		if !known[r.Subtree] {
			return ledger.WaitOpenedPayload{}, notFound("agent", r.Subtree)
		}
		wish := ledger.WaitOpenedPayload{Mode: wait.Settled, OnDepFail: wait.Proceed}
		for _, a := range below(all, r.Subtree) {
			wish.Agents = append(wish.Agents, a.AgentID)
		}
		return wish, nil
	}
	wish, problems := wait.Wish{Agents: r.Agents, Mode: r.Mode, K: r.K, OnDepFailure: r.OnDepFailure}.Check("agents", "", s.Clock.Now())
	return wish, strangers(wish.Agents, "agents", known, r.RunID, problems)
}

// strangers is the refusal of a wish: for its problems, and for agents that are
// not of the run.
func strangers(agents []string, path string, known map[string]bool, runID string, problems []spec.Problem) error {
	for i, id := range agents {
		if !known[id] {
			problems = append(problems, spec.Problem{Path: fmt.Sprintf("%s[%d]", path, i), Message: id + " is no agent of run " + runID})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return &Error{Kind: ErrInvalid, Code: "invalid_wait", Message: problems[0].Path + ": " + problems[0].Message, Fields: problems}
}

// below are an agent and all its descendants, in the order they were spawned.
func below(run []ledger.Agent, root string) []ledger.Agent {
	in := map[string]bool{root: true}
	var all []ledger.Agent
	for _, a := range run { // parents were spawned before their children
		if a.AgentID == root || in[a.ParentAgentID] {
			in[a.AgentID] = true
			all = append(all, a)
		}
	}
	return all
}

// until asks again after every event of a filter, until the answer is yes or
// the time is over.
func (s *Swarm) until(ctx context.Context, filter ledger.EventFilter, limit time.Duration, done func() (bool, error)) error {
	after := s.Ledger.LastSeq() // what comes after this is not in the first answer
	if ok, err := done(); ok || err != nil || limit <= 0 {
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f := s.Ledger.Follow(after, filter)
	defer f.Close()
	for {
		if _, err := f.Next(waitCtx); err != nil {
			if waitCtx.Err() != nil && ctx.Err() == nil {
				return nil // the time is over; the last answer stands
			}
			return err
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
	}
}

// AwaitSubtree waits up to limit for an agent and all below it to be at rest.
func (s *Swarm) AwaitSubtree(ctx context.Context, id string, limit time.Duration) (SubtreeView, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return SubtreeView{}, err
	}
	var view SubtreeView
	err = s.until(ctx, ledger.EventFilter{RunID: row.RunID, Names: stirring}, limit, func() (bool, error) {
		view, err = s.subtree(ctx, row.RunID, id)
		return view.Quiescent, err
	})
	return view, err
}

func (s *Swarm) subtree(ctx context.Context, runID, root string) (SubtreeView, error) {
	view := SubtreeView{RootAgentID: root, Quiescent: true, AsOf: s.Ledger.LastSeq(), Members: []SubtreeMember{}, BlockedOnPaused: []string{}}
	all, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: runID})
	if err != nil {
		return view, err
	}
	open, err := s.Ledger.OpenTurns(ctx, runID)
	if err != nil {
		return view, err
	}
	for _, a := range below(all, root) {
		view.Members = append(view.Members, SubtreeMember{AgentID: a.AgentID, State: a.State, Outcome: optional(a.Outcome)})
		if !active(a, open) {
			continue
		}
		view.Quiescent = false
		if a.State == StatePaused {
			view.BlockedOnPaused = append(view.BlockedOnPaused, a.AgentID)
		}
	}
	return view, nil
}

// active reports whether an agent has something left to do by itself.
func active(a ledger.Agent, open map[string]bool) bool {
	switch a.State {
	case StateProvisioning, StateSpawning, StateRunning, StateBlocked, StateRecovering:
		return true
	case StateDone, StateFailed, StatePaused:
		return open[a.AgentID]
	}
	return false // what is stopped, crashed, lost or over waits for a person
}

// rest records that a run has come to rest, once for each time it does, and
// closes it where that was asked for. A run that never had a turn has not begun.
func (s *Swarm) rest(ctx context.Context, runID string) {
	r, err := s.Ledger.Run(ctx, runID)
	if err != nil || r.State != "open" || r.Quiescent || r.Turns == 0 {
		return
	}
	view, err := s.subtree(ctx, runID, r.RootAgentID)
	if err != nil || !view.Quiescent {
		return
	}
	entries := []ledger.Entry{{RunID: runID, Event: ledger.RunQuiescent, Payload: ledger.RunQuiescentPayload{AsOf: view.AsOf}}}
	if r.CloseWhen == closeQuiescent {
		entries = append(entries, ledger.Entry{RunID: runID, Event: ledger.RunClosed, Payload: ledger.RunClosedPayload{Reason: closeQuiescent}})
	}
	_, err = s.Ledger.Append(ctx, ledger.Batch{Entries: entries})
	if errors.Is(err, ledger.ErrConflict) {
		return // a turn was asked for meanwhile, or another was faster
	}
	if err != nil {
		if s.ctx.Err() == nil {
			s.Log.Warn("recording that a run is at rest", zap.String("run", runID), zap.Error(err))
		}
		return
	}
	if r.CloseWhen == closeQuiescent {
		s.letRest(ctx, view)
	}
}

// letRest stops the agents of a run that has closed itself. Their file systems
// stay until the run is deleted.
func (s *Swarm) letRest(ctx context.Context, view SubtreeView) {
	for _, m := range view.Members {
		if isFinal(m.State) {
			continue
		}
		if _, err := s.Stop(ctx, m.AgentID, stopStop, Idempotency{}); err != nil && !errors.Is(err, ErrConflict) {
			s.Log.Warn("stopping an agent of a closed run", zap.String("agent", m.AgentID), zap.Error(err))
		}
	}
}
