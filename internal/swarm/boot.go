package swarm

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
)

// readiness counts the agents that have been through the boot pass.
type readiness struct {
	mu      sync.Mutex
	total   int
	done    int
	started time.Time
	over    chan struct{}
}

func (r *readiness) begin(total int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total, r.started, r.over = total, now, make(chan struct{})
	if total == 0 {
		close(r.over)
	}
}

func (r *readiness) passed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done++; r.done == r.total {
		close(r.over)
	}
}

// Readiness says how far the boot pass has come.
func (s *Swarm) Readiness() Readiness {
	r := &s.ready
	r.mu.Lock()
	defer r.mu.Unlock()
	return Readiness{Ready: r.over != nil && r.done == r.total, Recovered: r.done, Total: r.total}
}

// Booted is closed once every agent has been through the ladder, or is held.
// It is nil before Start.
func (s *Swarm) Booted() <-chan struct{} {
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	return s.ready.over
}

// Ping shows that the supervisor and its ledger still answer. An owner that
// waits for a sandbox is no reason for an error.
func (s *Swarm) Ping(ctx context.Context) error {
	s.snapshotOwners()
	return s.Ledger.Ping(ctx)
}

// boot sweeps the store, subscribes to each runtime and then lists it, in that
// order, so that nothing falls between; it lets the owners go on what the list
// showed, and reconciles when all of them are through.
func (s *Swarm) boot() {
	s.sweep()
	for _, rt := range s.runtimes {
		s.work.Go(func() { s.watch(rt) })
	}
	for _, o := range s.snapshotOwners() {
		if o.rt == nil {
			_ = o.post(func() { o.held = false })
		}
	}
	select {
	case <-s.Booted():
	case <-s.ctx.Done():
		return
	}
	took := s.Clock.Since(s.ready.started)
	s.Metrics.Booted(took)
	s.Log.Info("boot pass done", zap.Int("agents", s.Readiness().Total), zap.Duration("took", took))
	s.reconcileLoop()
}

// sweep removes archives that no event names: a crash came between the two.
func (s *Swarm) sweep() {
	kept, err := s.Ledger.Checkpoints(s.ctx, ledger.CheckpointFilter{State: "kept"})
	if err != nil {
		s.Log.Error("listing checkpoints; nothing is swept", zap.Error(err))
		return
	}
	known := make(map[string]bool, len(kept))
	for _, c := range kept {
		known[c.SnapshotRef] = true
	}
	removed, err := checkpoint.Sweep(s.ctx, s.Store, known)
	if err != nil {
		s.Log.Warn("sweeping checkpoints", zap.Error(err))
	}
	for _, ref := range removed {
		s.Log.Info("removed a checkpoint that no event names", zap.String("ref", ref))
	}
}

func (s *Swarm) snapshotOwners() []*owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*owner, 0, len(s.owners))
	for _, o := range s.owners {
		all = append(all, o)
	}
	return all
}

// watch follows a runtime's events. Each (re)connection is followed by a list;
// the events between them are only hints to look sooner.
func (s *Swarm) watch(rt runtime.Runtime) {
	first := true
	for e := range rt.Events(s.ctx) {
		switch e.Type {
		case runtime.EventResync:
			s.Metrics.RuntimeUp(rt.Name(), true)
			s.look(rt, first)
			first = false
		case runtime.EventDown:
			s.Metrics.RuntimeUp(rt.Name(), false)
			s.Log.Warn("runtime does not answer; its agents are held", zap.String("runtime", rt.Name()))
			s.look(rt, first)
			first = false
		case runtime.EventDied, runtime.EventRemoved, runtime.EventOOM, runtime.EventPaused, runtime.EventUnpaused:
			s.happened(e)
		}
	}
}

// look lists a runtime and lets every owner of it compare.
func (s *Swarm) look(rt runtime.Runtime, first bool) {
	infos, err := s.list(rt)
	byID := map[string]runtime.Info{}
	for _, i := range infos {
		byID[i.SandboxID] = i
	}
	for _, o := range s.snapshotOwners() {
		if o.rt != rt {
			continue
		}
		_ = o.post(func() { o.looked(byID, err, first) })
	}
}

func (s *Swarm) list(rt runtime.Runtime) ([]runtime.Info, error) {
	ctx, cancel := context.WithTimeout(s.ctx, runtime.DefaultCallTimeout)
	defer cancel()
	infos, err := rt.List(ctx)
	if err != nil {
		s.Log.Warn("listing sandboxes", zap.String("runtime", rt.Name()), zap.Error(err))
	}
	return infos, err
}

// looked takes what a list said of this agent's sandbox.
func (o *owner) looked(byID map[string]runtime.Info, err error, first bool) {
	o.held = false
	if err != nil {
		if first && o.row.SandboxID != "" && o.row.StopMode == "" && needsSandbox(o.row.State) {
			o.hold(err)
		}
		return
	}
	if o.row.Recovering == ClassRuntimeUnreachable || first {
		o.calm() // it answers again: look now, not after the pause
	}
	if o.task != nil || o.row.SandboxID == "" {
		return
	}
	info, there := byID[o.row.SandboxID]
	switch {
	case first && there:
		o.known = &info
	case first:
		o.gone = true
	case !there && needsSandbox(o.row.State), there && info.State == runtime.StateStopped && o.live != nil:
		o.lostBridge(runtime.ErrNotFound)
		o.gone = !there
	}
}

// needsSandbox reports whether an agent in that state has a sandbox it cannot
// go on without.
func needsSandbox(state string) bool {
	switch state {
	case StateRunning, StateBlocked, StateDone, StateFailed, StatePaused, StateRecovering:
		return true
	}
	return false
}

// happened takes one event of a runtime to the agent it is about.
func (s *Swarm) happened(e runtime.Event) {
	a, err := s.Ledger.AgentBySandbox(s.ctx, e.SandboxID)
	if err != nil {
		return // not an agent's
	}
	s.mu.Lock()
	o := s.owners[a.AgentID]
	s.mu.Unlock()
	if o == nil {
		return
	}
	_ = o.post(func() { o.happened(e) })
}

func (o *owner) happened(e runtime.Event) {
	if e.SandboxID != o.row.SandboxID {
		return
	}
	if e.Type == runtime.EventOOM {
		// Evidence, whatever comes of it: a child may have been killed while
		// the sandbox lives on.
		if err := o.append(ledger.Entry{SandboxID: e.SandboxID, Event: ledger.AgentDiagnosed, Payload: ledger.AgentDiagnosedPayload{
			Class: ClassOutOfMemory, Error: "the kernel killed a process of this sandbox for memory"}}); err != nil {
			o.log.Warn("recording that memory ran out", zap.Error(err))
		}
		return
	}
	if e.Type == runtime.EventPaused || e.Type == runtime.EventUnpaused {
		o.frozen(e.Type == runtime.EventPaused)
		return
	}
	if o.task != nil {
		o.relook = true
		return
	}
	if !needsSandbox(o.row.State) || o.row.StopMode != "" {
		return
	}
	o.log.Info("sandbox is gone or has ended", zap.String("sandbox", e.SandboxID), zap.String("event", string(e.Type)))
	o.lostBridge(errors.New(string(e.Type)))
	o.from = recovery.Reattached
}

// frozen follows what other people do to a sandbox. What a client asked for is
// in the row already when the runtime tells of it.
func (o *owner) frozen(now bool) {
	if o.task != nil || o.row.StopMode != "" || !needsSandbox(o.row.State) {
		return
	}
	switch {
	case now && o.row.State != StatePaused:
		if o.s.forks.Held(o.row.SandboxID) {
			return // for the moment of a copy
		}
		ctx, cancel := o.ctxShort()
		defer cancel()
		if info, err := o.rt.Inspect(ctx, o.row.SandboxID); err == nil && info.State != runtime.StatePaused {
			return // it was for such a moment, which is over
		}
		o.lostBridge(errors.New("its sandbox was frozen"))
	case !now && o.row.State == StatePaused && o.row.PausedBy == pausedByRuntime:
		if err := o.append(o.change(StateRecovering, "its sandbox was thawed")); err != nil {
			o.fail("recording that the sandbox was thawed", err)
			return
		}
		o.lostBridge(errors.New("its sandbox was thawed"))
	}
}
