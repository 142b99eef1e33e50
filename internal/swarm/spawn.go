package swarm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/wait"
)

// parents are the states in which an agent may be spawned from.
var parents = []string{StateProvisioning, StateSpawning, StateRunning, StateBlocked, StatePaused, StateDone, StateFailed, StateRecovering}

// Spawn makes an agent below another one. When it returns, the agent, what it
// waits for and its first prompt are in the ledger. A spawn that a budget
// refuses is no error: the agent is recorded, and has ended with the outcome
// budget-exceeded.
func (s *Swarm) Spawn(ctx context.Context, r SpawnRequest) (SpawnAnswer, error) {
	return idempotent(ctx, s, r.Idempotency, func(key withKey) (SpawnAnswer, error) {
		// Budgets, and the order of siblings, are counted and used up by one
		// spawn of a run at a time.
		unlock, err := s.spawns.Lock(ctx, r.RunID)
		if err != nil {
			return SpawnAnswer{}, err
		}
		defer unlock()
		f, err := s.family(ctx, r.RunID, r.ParentAgentID)
		if err != nil {
			return SpawnAnswer{}, err
		}
		rt := s.runtimes[f.parent.Runtime]
		if rt == nil {
			return SpawnAnswer{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: fmt.Sprintf("runtime %q is not at hand", f.parent.Runtime)}
		}
		sp, warnings, err := s.parseSpec(r.Spec)
		if err != nil {
			return SpawnAnswer{}, err
		}
		if err := s.suits(sp, rt); err != nil {
			return SpawnAnswer{}, err
		}
		waits, err := s.parseWait(r, f)
		if err != nil {
			return SpawnAnswer{}, err
		}
		told, err := parseNotify(r.NotifyOn, r.RunID, f.seen)
		if err != nil {
			return SpawnAnswer{}, err
		}
		spawned, denied, err := f.allot(sp, r.Budget, spawnedPayload(sp, rt))
		if err != nil {
			return SpawnAnswer{}, err
		}
		return s.record(ctx, r, sp, warnings, f, spawned, denied, waits, told, key)
	})
}

func (s *Swarm) record(ctx context.Context, r SpawnRequest, sp *spec.Spec, warnings []spec.Warning, f *family,
	spawned ledger.AgentSpawnedPayload, denied *ledger.BudgetDeniedPayload, waits *ledger.WaitOpenedPayload, told *ledger.NotifyRegisteredPayload, key withKey) (SpawnAnswer, error) {
	if denied != nil || waits != nil || f.parent.SandboxID == "" {
		spawned.State = StateSpawning
	}
	answer := SpawnAnswer{AgentID: ids.New(ids.Agent), State: spawned.State, Warnings: warnings}
	entries := []ledger.Entry{{Event: ledger.AgentSpawned, Payload: spawned, Body: map[string]any{"spec": sp}}}
	if waits != nil {
		entries = append(entries, ledger.Entry{Event: ledger.WaitOpened, Payload: *waits})
	}
	if told != nil {
		entries = append(entries, ledger.Entry{Event: ledger.NotifyRegistered, Payload: *told})
	}
	turn := ""
	if r.Prompt != "" {
		turn = ids.New(ids.Turn)
		entries = append(entries, ledger.Entry{TurnID: turn, Event: ledger.TurnRequested,
			Payload: ledger.TurnRequestedPayload{Turn: 1}, Body: harness.Prompt{Text: r.Prompt}})
	}
	if denied != nil {
		why := fmt.Sprintf("%s is used up: %d", denied.Dimension, denied.Limit)
		entries = append(entries, ledger.Entry{Event: ledger.BudgetDenied, Payload: *denied})
		if turn != "" {
			entries = append(entries, ledger.Entry{TurnID: turn, Event: ledger.TurnEnded,
				Payload: ledger.TurnEndedPayload{Turn: 1, Outcome: OutcomeBudget, Error: why}})
		}
		entries = append(entries,
			ledger.Entry{TurnID: turn, Event: ledger.HandleSettled, Payload: ledger.HandleSettledPayload{Outcome: OutcomeBudget}},
			ledger.Entry{Event: ledger.AgentEnded, Payload: ledger.AgentEndedPayload{Outcome: OutcomeBudget, EndedAt: s.Clock.Now().UnixMilli(), Error: why}},
			ledger.Entry{Event: ledger.AgentStateChanged, Payload: ledger.AgentStateChangedPayload{From: StateSpawning, To: StateAborted, Reason: OutcomeBudget}})
	}
	for i := range entries {
		entries[i].RunID, entries[i].AgentID, entries[i].By = r.RunID, answer.AgentID, actor(ctx)
	}
	if _, err := s.Ledger.Append(ctx, ledger.Batch{Entries: entries, Request: key(answer)}); err != nil {
		return SpawnAnswer{}, err
	}
	hit("swarm.spawned")
	if denied != nil {
		return answer, nil
	}
	return answer, s.adoptNew(ctx, answer.AgentID)
}

// family is what a spawn needs to know of its run.
type family struct {
	run    ledger.Run
	parent ledger.Agent
	agents map[string]ledger.Agent // all of the run
	seen   map[string]bool         // those the actor may know of
}

func (s *Swarm) family(ctx context.Context, runID, parentID string) (*family, error) {
	run, err := s.Ledger.Run(ctx, runID)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, notFound("run", runID)
	}
	if err != nil {
		return nil, err
	}
	if run.State != "open" {
		return nil, &Error{Kind: ErrConflict, Code: "run_closed", Message: fmt.Sprintf("run %s is %s", runID, run.State)}
	}
	all, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: runID})
	if err != nil {
		return nil, err
	}
	f := &family{run: run, agents: make(map[string]ledger.Agent, len(all)), seen: make(map[string]bool, len(all))}
	for _, a := range all {
		f.agents[a.AgentID] = a
	}
	for _, a := range visible(ctx, all) {
		f.seen[a.AgentID] = true
	}
	parent, ok := f.agents[parentID]
	if !ok || !f.seen[parentID] {
		return nil, &Error{Kind: ErrNotFound, Code: "not_found", Message: fmt.Sprintf("run %s has no agent %s to spawn from", runID, parentID)}
	}
	if !slices.Contains(parents, parent.State) || parent.StopMode != "" {
		state := parent.State
		if parent.StopMode != "" {
			state = "being stopped"
		}
		return nil, refused("spawn from", state)
	}
	f.parent = parent
	return f, nil
}

// allot gives the new agent its place and its share of the budgets, or says
// which one is used up.
func (f *family) allot(sp *spec.Spec, own *Budget, p ledger.AgentSpawnedPayload) (ledger.AgentSpawnedPayload, *ledger.BudgetDeniedPayload, error) {
	if own != nil {
		if err := own.check(); err != nil {
			return p, nil, err
		}
		if own.MaxAgentsTotal != nil {
			return p, nil, invalid("budget.maxAgentsTotal", "is the run's: it is set when the run is started")
		}
		p.SpawnDepth, p.MaxAgents = cmp.Or(own.SpawnDepth, p.SpawnDepth), cmp.Or(own.MaxAgents, p.MaxAgents)
	}
	p.ParentAgentID, p.Depth = f.parent.AgentID, f.parent.Depth+1
	children, live := map[string]int{}, map[string]int{} // by agent; live: below it, at any depth
	for _, a := range f.agents {
		children[a.ParentAgentID]++
		if isFinal(a.State) {
			continue
		}
		for up := a.ParentAgentID; up != ""; up = f.agents[up].ParentAgentID {
			live[up]++
		}
	}
	p.SpawnIndex = children[f.parent.AgentID]

	if f.parent.SpawnDepth == nil || *f.parent.SpawnDepth < 1 {
		return p, &ledger.BudgetDeniedPayload{Dimension: "spawnDepth", Limit: 0, Holder: f.parent.AgentID}, nil
	}
	if f.run.MaxAgentsTotal != nil && len(f.agents) >= *f.run.MaxAgentsTotal {
		return p, &ledger.BudgetDeniedPayload{Dimension: "maxAgentsTotal", Limit: *f.run.MaxAgentsTotal}, nil
	}
	for a := f.parent; ; a = f.agents[a.ParentAgentID] {
		if a.MaxAgents != nil && live[a.AgentID] >= *a.MaxAgents {
			return p, &ledger.BudgetDeniedPayload{Dimension: "maxAgents", Limit: *a.MaxAgents, Holder: a.AgentID}, nil
		}
		if a.ParentAgentID == "" {
			break
		}
	}
	// What is handed down is one less than what the parent has; a child may
	// ask for less, never for more.
	p.SpawnDepth = lesser(p.SpawnDepth, less(f.parent.SpawnDepth))
	p.MaxAgents = lesser(p.MaxAgents, less(f.parent.MaxAgents))
	return p, nil, nil
}

// less is one less than n; nil stays no limit.
func less(n *int) *int {
	if n == nil {
		return nil
	}
	one := max(0, *n-1)
	return &one
}

// lesser is the stricter of two limits, where nil is none.
func lesser(a, b *int) *int {
	switch {
	case a == nil:
		return b
	case b == nil || *a <= *b:
		return a
	}
	return b
}

// parseWait reads what a spawn waits for; nil where it waits for nothing.
func (s *Swarm) parseWait(r SpawnRequest, f *family) (*ledger.WaitOpenedPayload, error) {
	if len(r.WaitFor) == 0 || string(r.WaitFor) == "null" {
		return nil, nil
	}
	p, problems := wait.Parse(r.WaitFor, s.Clock.Now())
	path := "waitFor"
	if bytes.HasPrefix(bytes.TrimSpace(r.WaitFor), []byte("{")) {
		path += ".agents"
	}
	return &p, strangers(p.Agents, path, f.seen, r.RunID, problems)
}
