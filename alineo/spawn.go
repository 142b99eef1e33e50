package alineo

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/alineod/alineod/internal/swarm"
)

// SpawnOptions are what Spawn may be told beside the spec.
type SpawnOptions struct {
	// Prompt is the first turn; empty: the agent waits for one.
	Prompt string
	// WaitFor are agents of the same run that must settle before the new one
	// starts. It finds their results where ALINEO_INPUTS says.
	WaitFor []*Agent
	// Key makes a repetition of the call give the first one's agent.
	Key string
}

// Spawn makes an agent below this one, in a fork of its sandbox, and does not
// wait for it. The agent's spec must allow it (spawnDepth); one that a budget
// refuses is made all the same and has ended with the outcome budget-exceeded.
// Errors: ErrInvalid with the fields, ErrConflict where this agent is not live.
func (a *Agent) Spawn(ctx context.Context, spec any, o SpawnOptions) (*Agent, error) {
	raw, err := specOf(spec)
	if err != nil {
		return nil, err
	}
	r := swarm.SpawnRequest{RunID: a.runID, ParentAgentID: a.id, Spec: raw, Prompt: o.Prompt}
	if len(o.WaitFor) > 0 {
		ids := make([]string, len(o.WaitFor))
		for i, w := range o.WaitFor {
			ids[i] = w.id
		}
		if r.WaitFor, err = json.Marshal(ids); err != nil {
			return nil, &Error{Kind: ErrInvalid, Message: err.Error()}
		}
	}
	if o.Key != "" {
		r.Idempotency = swarm.Idempotency{Scope: "alineo.Spawn " + a.id, Key: o.Key, BodyHash: hash(slices.Concat(raw, r.WaitFor, []byte(o.Prompt)))}
	}
	answer, err := a.s.s.Spawn(ctx, r)
	if err != nil {
		return nil, wrap("spawning from "+a.id, err)
	}
	return &Agent{s: a.s, id: answer.AgentID, runID: a.runID}, nil
}

// Last waits for the end of the agent's last turn and returns its result.
// Errors: ErrConflict for an agent that was never prompted.
func (a *Agent) Last(ctx context.Context) (Result, error) {
	state, err := a.State(ctx)
	if err != nil {
		return Result{}, err
	}
	if state.Turn == 0 {
		return Result{}, &Error{Kind: ErrConflict, Code: "no_turn", Message: "agent " + a.id + " was never prompted"}
	}
	for {
		r, err := a.s.s.Result(ctx, a.id, lookTime)
		if err != nil {
			return Result{}, wrap("waiting for the result of "+a.id, err)
		}
		if r.State == "settled" {
			return Result{TurnID: r.TurnID, Outcome: text(r.Outcome), Text: text(r.Result), Error: r.Error}, nil
		}
	}
}
