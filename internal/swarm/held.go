package swarm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/wait"
)

// beginHeld looks whether a held agent may start: what it waits for has come,
// and its parent has a sandbox to fork. It is called again when anything of its
// run settles, and when its deadline passes.
func (o *owner) beginHeld() {
	o.passed()
	o.s.hold(o, true)
	w, err := o.s.Ledger.Wait(o.s.ctx, o.id)
	if err == nil && w.State == "open" {
		if !o.waited(w) {
			return
		}
	} else if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		o.fail("reading what the agent waits for", err)
		return
	}
	parent, err := o.s.Ledger.Agent(o.s.ctx, o.row.ParentAgentID)
	if err != nil {
		o.fail("reading the parent", err)
		return
	}
	switch {
	case !slices.Contains(parents, parent.State):
		o.notProvisioned(fmt.Errorf("%w: %s is %s", errParentLost, parent.AgentID, parent.State))
	case parent.SandboxID == "":
		return // held until it has one
	default:
		if err := o.append(o.change(StateProvisioning, "nothing to wait for")); err != nil {
			o.fail("recording that the agent starts", err)
			return
		}
		o.s.hold(o, false)
		o.step() // nothing else would come to have it go on
		return
	}
	o.s.hold(o, false)
}

// waited reports whether the wait is over and the agent may start.
func (o *owner) waited(w ledger.Wait) bool {
	outcomes, err := o.s.outcomes(o.s.ctx, w.Agents)
	if err != nil {
		o.fail("reading how others ended", err)
		return false
	}
	now := o.s.Clock.Now()
	late := w.DeadlineAt > 0 && now.UnixMilli() >= w.DeadlineAt
	a := wait.Evaluate(w.WaitOpenedPayload, outcomes, late)
	switch a.Outcome {
	case wait.Pending:
		if w.DeadlineAt > 0 {
			o.wakeAt(time.UnixMilli(w.DeadlineAt))
		}
		return false
	case wait.DepFail:
		entries, ended := o.settleOpen(OutcomeFailed, ClassDependency, a.Reason, true)
		entries = append([]ledger.Entry{{Event: ledger.WaitBlocked, Payload: a}}, entries...)
		entries = append(entries,
			ledger.Entry{Event: ledger.AgentEnded, Payload: ledger.AgentEndedPayload{Outcome: OutcomeFailed, EndedAt: now.UnixMilli(), Error: a.Reason}},
			o.change(StateCrashed, ClassDependency))
		if err := o.append(entries...); err != nil {
			o.fail("recording that a dependency failed", err)
			return false
		}
		o.countEnded(ended, OutcomeFailed)
		o.s.hold(o, false)
		return false
	}
	if err := o.append(ledger.Entry{Event: ledger.WaitResolved, Payload: a}); err != nil {
		o.fail("recording the end of a wait", err)
		return false
	}
	hit("swarm.wait-resolved")
	return true
}

// wakeAt has the owner look again at a time.
func (o *owner) wakeAt(at time.Time) {
	if o.wake != nil {
		o.wake.Stop()
	}
	o.wake = o.s.Clock.NewTimer(max(0, at.Sub(o.s.Clock.Now())))
}

// outcomes has the outcome of each of the agents that has settled: whose last
// turn has ended, or who is over without ever having had one.
func (s *Swarm) outcomes(ctx context.Context, agents []string) (map[string]string, error) {
	all := map[string]string{}
	for _, id := range agents {
		h, err := s.Ledger.Handle(ctx, id)
		if err == nil && h.State == "settled" {
			all[id] = h.Outcome
			continue
		}
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return nil, err
		}
		a, err := s.Ledger.Agent(ctx, id)
		if err != nil {
			return nil, err
		}
		if err == nil && h.State == "" && (isFinal(a.State) || a.EndedAt > 0) {
			if a.Outcome == "" {
				a.Outcome = OutcomeAborted
			}
			all[id] = a.Outcome
		}
	}
	return all, nil
}

// hold notes that an agent is held, or is not any more.
func (s *Swarm) hold(o *owner, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held {
		s.held[o.id] = o
	} else {
		delete(s.held, o.id)
	}
}

// poke has an agent read its row again: others have changed it.
func (s *Swarm) poke(id string) {
	s.mu.Lock()
	o := s.owners[id]
	s.mu.Unlock()
	if o != nil {
		o.news.Store(true)
		_ = o.post(func() {}) // full: it comes by anyway
	}
}

// stirring are the events that may end a wait.
var stirring = []string{ledger.HandleSettled, ledger.AgentEnded, ledger.AgentProvisioned, ledger.AgentStateChanged,
	ledger.NotifyRegistered, ledger.InboxQueued}

// stir has held agents look again whenever something of their run has changed,
// and sees whether the run has come to rest.
func (s *Swarm) stir(after int64) {
	open, err := s.Ledger.Runs(s.ctx, ledger.RunFilter{State: "open"})
	if err != nil && s.ctx.Err() == nil {
		s.Log.Error("reading the open runs", zap.Error(err))
	}
	s.notify(s.ctx)
	for _, r := range open { // what came to rest just before a crash
		s.rest(s.ctx, r.RunID)
	}
	f := s.Ledger.Follow(after, ledger.EventFilter{Names: stirring})
	defer f.Close()
	for {
		events, err := f.Next(s.ctx)
		if err != nil {
			if s.ctx.Err() == nil {
				s.Log.Error("following the ledger; held agents are looked at in intervals only", zap.Error(err))
			}
			return
		}
		runs := map[string]bool{}
		news := false
		for _, e := range events {
			if e.RunID != "" {
				runs[e.RunID] = true
			}
			news = news || e.Event != ledger.AgentStateChanged && e.Event != ledger.AgentProvisioned
			if e.Event == ledger.InboxQueued {
				s.poke(e.AgentID)
			}
		}
		if news {
			s.notify(s.ctx)
		}
		for run := range runs {
			s.rest(s.ctx, run)
		}
		s.mu.Lock()
		for _, o := range s.held {
			if runs[o.runID] {
				_ = o.post(func() {}) // full: it looks again anyway
			}
		}
		s.mu.Unlock()
	}
}
