package swarm

import (
	"context"
	"errors"
	"slices"

	"github.com/alineod/alineod/internal/ledger"
)

// Outcomes of an action for one member of a subtree.
const (
	Applied = "applied"
	Skipped = "skipped" // its state does not allow it
	Failed  = "failed"
)

// ScopeAnswer is what an action on an agent and all below it came to.
type ScopeAnswer struct {
	AsOf    int64         `json:"asOf"` // highest seq reflected
	Results []ScopeResult `json:"results"`
}

// ScopeResult is that of one member.
type ScopeResult struct {
	AgentID string `json:"agentId"`
	Outcome string `json:"outcome" enum:"applied,skipped,failed"`
	Reason  string `json:"reason,omitempty"`
}

// SteerSubtree says something to every turn that runs in a subtree.
func (s *Swarm) SteerSubtree(ctx context.Context, id, message string, idem Idempotency) (ScopeAnswer, error) {
	if message == "" {
		return ScopeAnswer{}, invalid("message", "is empty")
	}
	return s.scope(ctx, id, idem, false, func(ctx context.Context, id string) error {
		_, err := s.Steer(ctx, id, message, Idempotency{})
		return err
	})
}

// PauseSubtree freezes a subtree, parents first: what is frozen spawns nothing.
func (s *Swarm) PauseSubtree(ctx context.Context, id string, idem Idempotency) (ScopeAnswer, error) {
	return s.scope(ctx, id, idem, false, func(ctx context.Context, id string) error {
		_, err := s.Pause(ctx, id, Idempotency{})
		return err
	})
}

// ResumeSubtree lets a subtree go on, children first.
func (s *Swarm) ResumeSubtree(ctx context.Context, id string, idem Idempotency) (ScopeAnswer, error) {
	return s.scope(ctx, id, idem, true, func(ctx context.Context, id string) error {
		_, err := s.Resume(ctx, id, Idempotency{})
		return err
	})
}

// StopSubtree ends a subtree, parents first.
func (s *Swarm) StopSubtree(ctx context.Context, id, mode string, idem Idempotency) (ScopeAnswer, error) {
	return s.scope(ctx, id, idem, false, func(ctx context.Context, id string) error {
		_, err := s.Stop(ctx, id, mode, Idempotency{})
		return err
	})
}

// scope does something to each member of a subtree. One that cannot take it
// does not keep it from the others. All of it may be done twice harmlessly.
func (s *Swarm) scope(ctx context.Context, root string, idem Idempotency, upwards bool, do func(context.Context, string) error) (ScopeAnswer, error) {
	return kept(ctx, s, idem, func() (ScopeAnswer, error) {
		row, err := s.agentRow(ctx, root)
		if err != nil {
			return ScopeAnswer{}, err
		}
		run, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: row.RunID})
		if err != nil {
			return ScopeAnswer{}, err
		}
		members := below(run, root)
		if upwards {
			slices.Reverse(members)
		}
		answer := ScopeAnswer{Results: []ScopeResult{}}
		for _, a := range members {
			r := ScopeResult{AgentID: a.AgentID, Outcome: Applied}
			err := do(ctx, a.AgentID)
			switch {
			case errors.Is(err, ErrInvalid), ctx.Err() != nil:
				return ScopeAnswer{}, err
			case errors.Is(err, ErrConflict):
				r.Outcome, r.Reason = Skipped, err.Error()
			case err != nil:
				r.Outcome, r.Reason = Failed, err.Error()
			}
			answer.Results = append(answer.Results, r)
		}
		answer.AsOf = s.Ledger.LastSeq()
		return answer, nil
	})
}
