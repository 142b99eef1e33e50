package swarm

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/telemetry"
)

// Actions of a reconciliation.
const (
	actionRecover = "recover"
	actionKeep    = "keep"
	actionRemove  = "remove"
	actionForget  = "forget"
)

// orphanage remembers the sandboxes that nobody claims. A daemon that starts
// anew gives them their whole grace time again.
type orphanage struct {
	mu   sync.Mutex
	seen map[string]*orphan // by sandbox
}

type orphan struct {
	runtime  string
	since    time.Time
	reported bool
}

// since is when the orphan was first seen.
func (o *orphanage) since(sandboxID, runtime string, now time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]*orphan{}
	}
	if o.seen[sandboxID] == nil {
		o.seen[sandboxID] = &orphan{runtime: runtime, since: now}
	}
	return o.seen[sandboxID].since
}

// report is true once for each orphan.
func (o *orphanage) report(sandboxID string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.seen[sandboxID]
	if known == nil || known.reported {
		return false
	}
	known.reported = true
	return true
}

// forget drops those of a runtime that are no longer there.
func (o *orphanage) forget(runtimeName string, there map[string]runtime.Info) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, known := range o.seen {
		if _, ok := there[id]; !ok && known.runtime == runtimeName {
			delete(o.seen, id)
		}
	}
}

func (s *Swarm) reconcileLoop() {
	ticker := s.Clock.NewTicker(s.ReconcileEvery)
	defer ticker.Stop()
	for {
		if _, err := s.Reconcile(s.ctx, false); err != nil && s.ctx.Err() == nil {
			s.Log.Warn("reconciling", zap.Error(err))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.Chan():
		}
	}
}

// ReconcileOnce is Reconcile for a client, whose repeated request gets the first
// answer.
func (s *Swarm) ReconcileOnce(ctx context.Context, dryRun bool, idem Idempotency) ([]Action, error) {
	return kept(ctx, s, idem, func() ([]Action, error) { return s.Reconcile(ctx, dryRun) })
}

// Reconcile lists the sandboxes of every runtime, compares them with the ledger
// and acts: an agent whose sandbox is gone goes on the ladder; a sandbox that
// was let go is removed; one that nobody claims is reported, kept for a grace
// time and then removed. With dryRun it only says what it would do.
func (s *Swarm) Reconcile(ctx context.Context, dryRun bool) ([]Action, error) {
	select {
	case s.reconcile <- struct{}{}:
		defer func() { <-s.reconcile }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	begun := s.Clock.Now()
	actions, orphans, err := s.reconcileAll(ctx, dryRun)
	if !dryRun {
		outcome := telemetry.Success
		if err != nil {
			outcome = telemetry.Failed
		}
		s.Metrics.Reconciled(outcome, s.Clock.Since(begun))
		s.Metrics.Orphans(orphans)
	}
	if err != nil && len(actions) == 0 {
		return nil, runtimeError(err)
	}
	return actions, nil
}

// reconcileAll does the part of every runtime; one that fails does not keep it
// from the others.
func (s *Swarm) reconcileAll(ctx context.Context, dryRun bool) (actions []Action, orphans int, err error) {
	actions = []Action{}
	var errs []error
	for _, rt := range s.runtimes {
		infos, err := s.list(rt)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		plan, n, err := s.plan(ctx, rt, infos)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		orphans += n
		actions = append(actions, plan...)
		if !dryRun {
			s.carryOut(ctx, rt, plan)
			s.sweepForks(ctx, rt)
		}
	}
	return actions, orphans, errors.Join(errs...)
}

// plan compares one runtime's list with the ledger.
func (s *Swarm) plan(ctx context.Context, rt runtime.Runtime, infos []runtime.Info) ([]Action, int, error) {
	var plan []Action
	orphans := 0
	there := map[string]runtime.Info{}
	for _, info := range infos {
		there[info.SandboxID] = info
		a, orphan, err := s.planSandbox(ctx, rt, info)
		if err != nil {
			return nil, 0, err
		}
		if orphan {
			orphans++
		}
		if a != nil {
			plan = append(plan, *a)
		}
	}
	s.orphans.forget(rt.Name(), there)
	agents, err := s.Ledger.Agents(ctx, ledger.AgentFilter{ExceptStates: final})
	if err != nil {
		return nil, 0, err
	}
	for _, a := range agents {
		info, ok := there[a.SandboxID]
		if a.Runtime != rt.Name() || a.SandboxID == "" || !needsSandbox(a.State) {
			continue
		}
		switch {
		case !ok:
			plan = append(plan, Action{SandboxID: a.SandboxID, AgentID: a.AgentID, Action: actionRecover, Reason: "sandbox is gone"})
		case info.State == runtime.StateStopped:
			plan = append(plan, Action{SandboxID: a.SandboxID, AgentID: a.AgentID, Action: actionRecover, Reason: "sandbox is stopped"})
		}
	}
	gone, err := s.Ledger.Sandboxes(ctx, ledger.SandboxFilter{States: []string{"intended", "created", "released"}})
	if err != nil {
		return nil, 0, err
	}
	for _, sb := range gone {
		if _, ok := there[sb.SandboxID]; !ok && sb.Runtime == rt.Name() && !s.busy(sb) {
			plan = append(plan, Action{SandboxID: sb.SandboxID, AgentID: sb.AgentID, Action: actionForget, Reason: "is recorded as " + sb.State + " and does not exist"})
		}
	}
	return plan, orphans, nil
}

// planSandbox says what is to become of one sandbox that exists; nil: nothing.
func (s *Swarm) planSandbox(ctx context.Context, rt runtime.Runtime, info runtime.Info) (*Action, bool, error) {
	sb, err := s.Ledger.Sandbox(ctx, info.SandboxID)
	if errors.Is(err, ledger.ErrNotFound) {
		return s.planOrphan(rt, info), true, nil
	}
	if err != nil {
		return nil, false, err
	}
	act := &Action{SandboxID: sb.SandboxID, AgentID: sb.AgentID, Action: actionRemove}
	switch {
	case sb.State == "current":
		a, err := s.Ledger.Agent(ctx, sb.AgentID)
		if err != nil || !isFinal(a.State) {
			return nil, false, err
		}
		act.Reason = "its agent is " + a.State
	case s.busy(sb):
		return nil, false, nil
	case sb.State == "released" && s.rolledBack(ctx, sb):
		act.Action, act.Reason = actionKeep, "was rolled back; kept until the next turn has ended"
	default:
		act.Reason = "is recorded as " + sb.State
	}
	return act, false, nil
}

func (s *Swarm) planOrphan(rt runtime.Runtime, info runtime.Info) *Action {
	a := &Action{SandboxID: info.SandboxID, AgentID: info.AgentID, Action: actionKeep, Reason: "nobody claims it"}
	now := s.Clock.Now()
	if now.Sub(s.orphans.since(info.SandboxID, rt.Name(), now)) >= s.OrphanGrace {
		a.Action, a.Reason = actionRemove, "nobody claims it, and its grace time is over"
	}
	return a
}

// busy reports whether someone is working with a sandbox that is not (yet) its
// agent's.
func (s *Swarm) busy(sb ledger.Sandbox) bool {
	if sb.Purpose == setup.PurposeSetup {
		return s.setup.Holds(sb.SandboxID)
	}
	if sb.State == "released" {
		return false
	}
	s.mu.Lock()
	o := s.owners[sb.AgentID]
	s.mu.Unlock()
	if o == nil {
		return false
	}
	free, err := ask(s.ctx, o, func() (bool, error) { return o.task == nil && o.row.State != StateProvisioning, nil })
	return err != nil || !free
}

// rolledBack reports whether a released sandbox is still kept: its agent was
// rolled back and no turn has ended since.
func (s *Swarm) rolledBack(ctx context.Context, sb ledger.Sandbox) bool {
	a, err := s.Ledger.Agent(ctx, sb.AgentID)
	if err != nil || isFinal(a.State) {
		return false
	}
	current, err := s.Ledger.Sandbox(ctx, a.SandboxID)
	if err != nil || current.Purpose != recovery.PurposeRollback || current.Generation < sb.Generation {
		return false
	}
	last, err := s.Ledger.Turns(ctx, ledger.TurnFilter{AgentID: a.AgentID, States: []string{"ended"}, Desc: true, Limit: 1})
	return err == nil && (len(last) == 0 || last[0].SandboxID != current.SandboxID)
}

func (s *Swarm) carryOut(ctx context.Context, rt runtime.Runtime, plan []Action) {
	for _, a := range plan {
		switch a.Action {
		case actionRemove:
			s.Log.Info("removing a sandbox", zap.String("sandbox", a.SandboxID), zap.String("reason", a.Reason))
			runID := ""
			if row, err := s.Ledger.Agent(ctx, a.AgentID); err == nil {
				runID = row.RunID
			} else {
				a.AgentID = ""
			}
			s.removeSandbox(ctx, rt, runID, a.AgentID, a.SandboxID, a.Reason)
		case actionForget:
			if err := s.sandboxRemoved(ctx, "", a.AgentID, a.SandboxID, a.Reason); err != nil {
				s.Log.Warn("recording that a sandbox is gone", zap.String("sandbox", a.SandboxID), zap.Error(err))
			}
		case actionKeep:
			s.reportOrphan(ctx, a)
		case actionRecover:
			s.mu.Lock()
			o := s.owners[a.AgentID]
			s.mu.Unlock()
			if o != nil {
				_ = o.post(func() { o.happened(runtime.Event{Type: runtime.EventDied, SandboxID: a.SandboxID}) })
			}
		}
	}
}

// reportOrphan says once, in the ledger, that a sandbox is nobody's.
func (s *Swarm) reportOrphan(ctx context.Context, a Action) {
	if !s.orphans.report(a.SandboxID) {
		return // it is known, or was rolled back
	}
	s.Log.Warn("a sandbox of this instance belongs to no agent", zap.String("sandbox", a.SandboxID))
	if _, err := s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{SandboxID: a.SandboxID, Event: ledger.SandboxOrphaned,
		Payload: ledger.ReasonPayload{Reason: a.Reason}}}}); err != nil {
		s.Log.Warn("recording an orphan", zap.Error(err))
	}
}

func runtimeError(err error) error {
	switch {
	case errors.Is(err, runtime.ErrUnreachable):
		return &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: err.Error()}
	case errors.Is(err, runtime.ErrNotFound):
		return &Error{Kind: ErrNotFound, Code: "sandbox_gone", Message: err.Error()}
	case errors.Is(err, runtime.ErrNotRunning), errors.Is(err, runtime.ErrPaused):
		return &Error{Kind: ErrConflict, Code: "sandbox_not_running", Message: err.Error()}
	case errors.Is(err, runtime.ErrInvalid):
		return &Error{Kind: ErrInvalid, Code: "invalid", Message: err.Error()}
	}
	return err
}
