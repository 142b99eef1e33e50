package swarm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/spec"
)

// StartRun begins a run with its root agent. When it returns, the agent and
// its first prompt are in the ledger: no crash loses them.
func (s *Swarm) StartRun(ctx context.Context, r StartRunRequest) (StartRunAnswer, error) {
	return idempotent(ctx, s, r.Idempotency, func(key withKey) (StartRunAnswer, error) {
		sp, warnings, err := s.parseSpec(r.Spec)
		if err != nil {
			return StartRunAnswer{}, err
		}
		switch r.CloseWhen {
		case "":
			r.CloseWhen = closeExplicit
		case closeExplicit, closeQuiescent:
		default:
			return StartRunAnswer{}, invalid("closeWhen", "want explicit or quiescent")
		}
		rt, err := s.Choose(ctx)
		if err != nil {
			return StartRunAnswer{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: err.Error()}
		}
		if err := s.suits(sp, rt); err != nil {
			return StartRunAnswer{}, err
		}
		answer := StartRunAnswer{RunID: ids.New(ids.Run), RootAgentID: ids.New(ids.Agent), State: StateProvisioning, Warnings: warnings}
		spawned := spawnedPayload(sp, rt)
		run := ledger.RunStartedPayload{RootAgentID: answer.RootAgentID, CloseWhen: r.CloseWhen}
		if r.Budget != nil {
			if err := r.Budget.check(); err != nil {
				return StartRunAnswer{}, err
			}
			spawned.SpawnDepth = cmp.Or(r.Budget.SpawnDepth, spawned.SpawnDepth)
			spawned.MaxAgents = cmp.Or(r.Budget.MaxAgents, spawned.MaxAgents)
			run.MaxAgentsTotal = r.Budget.MaxAgentsTotal
		}
		entries := []ledger.Entry{
			{Event: ledger.RunStarted, Payload: run},
			{AgentID: answer.RootAgentID, Event: ledger.AgentSpawned, Payload: spawned, Body: map[string]any{"spec": sp}},
		}
		if r.Prompt != "" {
			entries = append(entries, ledger.Entry{AgentID: answer.RootAgentID, TurnID: ids.New(ids.Turn), Event: ledger.TurnRequested,
				Payload: ledger.TurnRequestedPayload{Turn: 1}, Body: harness.Prompt{Text: r.Prompt}})
		}
		for i := range entries {
			entries[i].RunID = answer.RunID
		}
		if _, err := s.Ledger.Append(ctx, ledger.Batch{Entries: entries, Request: key(answer)}); err != nil {
			return StartRunAnswer{}, err
		}
		hit("swarm.run-started")
		return answer, s.adoptNew(ctx, answer.RootAgentID)
	})
}

// suits says whether a spec can be carried out on a runtime, and fills in what
// it leaves to the daemon.
func (s *Swarm) suits(sp *spec.Spec, rt runtime.Runtime) error {
	h, err := s.Harness(sp.Harness)
	if err != nil {
		return invalid("spec.harness", err.Error())
	}
	caps := rt.Capabilities()
	if !caps.Isolated && !h.Trusted() && !s.AllowUnsandboxed {
		return &Error{Kind: ErrConflict, Code: "unsandboxed_refused", Message: fmt.Sprintf(
			"%s would run on this machine itself: the %s runtime isolates nothing. Start a Docker Engine, or set local.allowUnsandboxed (ALINEOD_LOCAL_ALLOW_UNSANDBOXED=1) if you mean it", h.Name(), rt.Name())}
	}
	if !caps.Isolated && sp.Checkpoint != nil && len(sp.Checkpoint.Paths) > 0 {
		return invalid("spec.checkpoint.paths", "would be this machine's own paths: the "+rt.Name()+" runtime isolates nothing")
	}
	if caps.BaseImages && sp.Image == "" {
		sp.Image = s.DefaultImage
	}
	// A variable that is not set is told now, not from a sandbox later.
	if _, err := s.env(sp); err != nil {
		return unsetVars(err)
	}
	return nil
}

// spawnedPayload is what a spec says of its agent from the start.
func spawnedPayload(sp *spec.Spec, rt runtime.Runtime) ledger.AgentSpawnedPayload {
	return ledger.AgentSpawnedPayload{SpecName: sp.Name, Harness: sp.Harness, Model: sp.Model, Runtime: rt.Name(),
		State: StateProvisioning, Checkpointing: sp.Checkpointing(), SpawnDepth: sp.SpawnDepth, MaxAgents: sp.MaxAgents, SetupHash: sp.SetupHash()}
}

// adoptNew gives a new agent its owner. A daemon that stops just now leaves it
// to the next boot.
func (s *Swarm) adoptNew(ctx context.Context, id string) error {
	row, err := s.Ledger.Agent(context.WithoutCancel(ctx), id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped && s.owners[id] == nil {
		s.own(row, false)
	}
	return nil
}

func (s *Swarm) parseSpec(data json.RawMessage) (*spec.Spec, []spec.Warning, error) {
	if len(data) == 0 {
		return nil, nil, invalid("spec", "is missing")
	}
	sp, warnings, err := spec.Parse(data)
	var bad *spec.Error
	if errors.As(err, &bad) {
		e := &Error{Kind: ErrInvalid, Code: "invalid_spec", Message: bad.Error()}
		for _, p := range bad.Problems {
			e.Fields = append(e.Fields, spec.Problem{Path: "spec." + p.Path, Message: p.Message})
		}
		return nil, nil, e
	}
	if err != nil {
		return nil, nil, err
	}
	if sp.Checkpoint != nil {
		for i, pattern := range sp.Checkpoint.Exclude {
			if err := archive.ValidatePattern(pattern); err != nil {
				return nil, nil, invalid(fmt.Sprintf("spec.checkpoint.exclude[%d]", i), err.Error())
			}
		}
	}
	return sp, warnings, nil
}

func unsetVars(err error) error {
	var unset *spec.UnsetVarError
	if !errors.As(err, &unset) {
		return err
	}
	return &Error{Kind: ErrInvalid, Code: harness.ClassMissingCredentials, Message: unset.Error(),
		Fields: []spec.Problem{{Path: "spec.env", Message: unset.Error()}}}
}

// Prompt asks for a turn. It is queued behind those that were asked for before.
func (s *Swarm) Prompt(ctx context.Context, id string, r PromptRequest) (PromptAnswer, error) {
	if r.Text == "" && len(r.Images) == 0 {
		return PromptAnswer{}, invalid("text", "is empty")
	}
	return request(ctx, s, id, actPrompt, r.Idempotency, func(o *owner, key withKey) (PromptAnswer, error) {
		answer := PromptAnswer{AgentID: id, TurnID: ids.New(ids.Turn), Turn: o.row.Turn + 1, State: "queued"}
		text, told, err := o.withInbox(answer.TurnID, DeliveryPrompt, r.Text)
		if err != nil {
			return answer, err
		}
		_, err = o.appendBatch(ledger.Batch{Entries: append([]ledger.Entry{{TurnID: answer.TurnID, Event: ledger.TurnRequested,
			Payload: ledger.TurnRequestedPayload{Turn: answer.Turn}, Body: harness.Prompt{Text: text, Images: r.Images}}}, told...),
			Request: key(answer)})
		hit("swarm.turn-requested")
		return answer, err
	})
}

// request runs f in the agent's owner if the action is allowed in its state.
func request[T any](ctx context.Context, s *Swarm, id, action string, idem Idempotency, f func(*owner, withKey) (T, error)) (T, error) {
	return idempotent(ctx, s, idem, func(key withKey) (T, error) {
		var zero T
		o, err := s.owner(ctx, id, action)
		if err != nil {
			return zero, err
		}
		return ask(ctx, o, func() (T, error) {
			if !may(action, o.row.State) || o.row.StopMode != "" && action != actStop {
				state := o.row.State
				if o.row.StopMode != "" {
					state = "being stopped"
				}
				return zero, refused(action, state)
			}
			o.by = actor(ctx)
			defer func() { o.by = "" }()
			return f(o, key)
		})
	})
}

// Steer says something to the turn in progress.
func (s *Swarm) Steer(ctx context.Context, id, message string, idem Idempotency) (Accepted, error) {
	if message == "" {
		return Accepted{}, invalid("message", "is empty")
	}
	return request(ctx, s, id, actSteer, idem, func(o *owner, key withKey) (Accepted, error) {
		if o.live == nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: "recovering", Message: "the agent is being reconnected"}
		}
		short, cancel := o.ctxShort()
		defer cancel()
		if err := o.live.Steer(short, idem.order(), message); err != nil {
			return Accepted{}, harnessError(err)
		}
		answer := Accepted{AgentID: id, State: o.row.State}
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{SandboxID: o.row.SandboxID, TurnID: o.turnID,
			Event: ledger.AgentSteered, Payload: struct{}{}, Body: map[string]string{"message": message}}}, Request: key(answer)})
		return answer, err
	})
}

func harnessError(err error) error {
	switch {
	case errors.Is(err, harness.ErrRefused):
		return &Error{Kind: ErrRefused, Code: "harness_refused", Message: err.Error()}
	case errors.Is(err, harness.ErrNoTurn), errors.Is(err, harness.ErrNotReady), errors.Is(err, harness.ErrBusy), errors.Is(err, harness.ErrUnknownRequest):
		return &Error{Kind: ErrConflict, Code: "harness_not_ready", Message: err.Error()}
	case connectionLost(err):
		return &Error{Kind: ErrUnavailable, Code: ClassBridgeUnresponsive, Message: err.Error()}
	}
	return err
}

// Stop ends an agent: abort deletes its sandbox, stop keeps the file system,
// drain lets the turn in progress end first. The intent is in the ledger when
// Stop returns; the rest follows, across restarts.
func (s *Swarm) Stop(ctx context.Context, id, mode string, idem Idempotency) (Accepted, error) {
	switch mode {
	case "":
		mode = stopAbort
	case stopAbort, stopStop, stopDrain:
	default:
		return Accepted{}, invalid("mode", "want abort, stop or drain")
	}
	return request(ctx, s, id, actStop, idem, func(o *owner, key withKey) (Accepted, error) {
		if mode != stopAbort && (o.row.State == StateStopped || o.row.SandboxID == "") {
			return Accepted{}, refused(actStop, o.row.State+" (only mode abort)")
		}
		answer := Accepted{AgentID: id, State: o.row.State}
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{SandboxID: o.row.SandboxID, Event: ledger.IntentStop,
			Payload: ledger.IntentStopPayload{Mode: mode}}}, Request: key(answer)})
		if err != nil {
			return Accepted{}, err
		}
		hit("swarm.stop-intended")
		o.calm()
		if o.task != nil && mode != stopDrain {
			o.task.cancel()
		}
		return answer, nil
	})
}

// Pause freezes an agent. Pausing a paused one changes nothing.
func (s *Swarm) Pause(ctx context.Context, id string, idem Idempotency) (Accepted, error) {
	return request(ctx, s, id, actPause, idem, func(o *owner, key withKey) (Accepted, error) {
		answer := Accepted{AgentID: id, State: StatePaused}
		if o.row.State == StatePaused {
			_, err := o.appendBatch(ledger.Batch{Request: key(answer)}) // the key alone
			return answer, err
		}
		if o.live == nil || o.task != nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: "busy", Message: "the agent is being worked on; ask again"}
		}
		short, cancel := o.ctxShort()
		defer cancel()
		if err := o.rt.Pause(short, o.row.SandboxID); err != nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: err.Error()}
		}
		hit("swarm.paused")
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{{SandboxID: o.row.SandboxID, Event: ledger.AgentStateChanged,
			Payload: ledger.AgentStateChangedPayload{From: o.row.State, To: StatePaused, PausedBy: pausedByUser, Reason: "asked for"}}}, Request: key(answer)})
		return answer, err
	})
}

// Resume lets a paused agent go on with the same turn, and one that its failures
// have blocked with the next.
func (s *Swarm) Resume(ctx context.Context, id string, idem Idempotency) (Accepted, error) {
	return request(ctx, s, id, actResume, idem, func(o *owner, key withKey) (Accepted, error) {
		if o.row.State == StateBlocked {
			return o.unblock(key)
		}
		if o.rt == nil || o.task != nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: "busy", Message: "the agent is being worked on; ask again"}
		}
		short, cancel := o.ctxShort()
		defer cancel()
		if err := o.rt.Unpause(short, o.row.SandboxID); err != nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: err.Error()}
		}
		hit("swarm.unpaused")
		o.heard = o.s.Clock.Now() // it could say nothing meanwhile
		next := o.standing(o.turnID != "", wentWell(o.row))
		answer := Accepted{AgentID: id, State: next}
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{o.change(next, "asked for")}, Request: key(answer)})
		o.settled = false
		return answer, err
	})
}

// unblock forgives an agent its failures. One that waits for the answer to a
// request goes on by that.
func (o *owner) unblock(key withKey) (Accepted, error) {
	if o.row.Blocked == "" {
		return Accepted{}, &Error{Kind: ErrConflict, Code: "permission_pending", Message: "cannot resume an agent that waits for the answer to a permission request"}
	}
	next := StateFailed
	if wentWell(o.row) {
		next = StateDone
	}
	e := ledger.Entry{SandboxID: o.row.SandboxID, Event: ledger.AgentStateChanged,
		Payload: ledger.AgentStateChangedPayload{From: o.row.State, To: next, Reason: "asked for", Forgiven: true}}
	answer := Accepted{AgentID: o.id, State: next}
	_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{e}, Request: key(answer)})
	return answer, err
}

// Recover puts an agent on the ladder now, from its first rung, and waits.
func (s *Swarm) Recover(ctx context.Context, id string, idem Idempotency) (WayBack, error) {
	return s.ladderRequest(ctx, id, actRecover, idem, func(o *owner) { o.from = recovery.Reattached })
}

// Revive brings back a stopped, crashed or lost agent, and waits.
func (s *Swarm) Revive(ctx context.Context, id string, idem Idempotency) (WayBack, error) {
	return s.ladderRequest(ctx, id, actRevive, idem, func(o *owner) { o.from = recovery.Resumed })
}

// SandboxReattach binds to the bridge that runs in a sandbox: ErrConflict if it
// does not answer and the sandbox is alive; restores when it is gone.
func (s *Swarm) SandboxReattach(ctx context.Context, sandboxID string, idem Idempotency) (WayBack, error) {
	return s.sandboxWay(ctx, sandboxID, idem, func(o *owner) { o.from, o.gentle = recovery.Reattached, true })
}

// SandboxResume restarts the bridge and continues the session; it restores when
// the sandbox is gone.
func (s *Swarm) SandboxResume(ctx context.Context, sandboxID string, idem Idempotency) (WayBack, error) {
	return s.sandboxWay(ctx, sandboxID, idem, func(o *owner) { o.from = recovery.Resumed })
}

// SandboxAttach says whose a sandbox is and touches nothing in it.
func (s *Swarm) SandboxAttach(ctx context.Context, sandboxID string, idem Idempotency) (WayBack, error) {
	return kept(ctx, s, idem, func() (WayBack, error) { return s.attach(ctx, sandboxID) })
}

func (s *Swarm) attach(ctx context.Context, sandboxID string) (WayBack, error) {
	a, err := s.agentOfSandbox(ctx, sandboxID)
	if err != nil {
		return WayBack{}, err
	}
	rt := s.runtimes[a.Runtime]
	if rt == nil {
		return WayBack{}, &Error{Kind: ErrUnavailable, Code: ClassRuntimeUnreachable, Message: fmt.Sprintf("runtime %q is not at hand", a.Runtime)}
	}
	if _, err := rt.Inspect(ctx, a.SandboxID); err != nil {
		return WayBack{}, runtimeError(err)
	}
	return WayBack{AgentID: a.AgentID, SandboxID: a.SandboxID, Rung: "attached", Turn: a.Turn}, nil
}

func (s *Swarm) agentOfSandbox(ctx context.Context, sandboxID string) (ledger.Agent, error) {
	a, err := s.Ledger.AgentBySandbox(ctx, sandboxID)
	if errors.Is(err, ledger.ErrNotFound) {
		return a, notFound("sandbox", sandboxID)
	}
	return a, err
}

func (s *Swarm) sandboxWay(ctx context.Context, sandboxID string, idem Idempotency, how func(*owner)) (WayBack, error) {
	a, err := s.agentOfSandbox(ctx, sandboxID)
	if err != nil {
		return WayBack{}, err
	}
	action := actRecover
	if may(actRevive, a.State) {
		action = actRevive
	}
	return s.ladderRequest(ctx, a.AgentID, action, idem, how)
}

// ladderRequest puts an agent on the ladder and waits for what comes of it.
func (s *Swarm) ladderRequest(ctx context.Context, id, action string, idem Idempotency, how func(*owner)) (WayBack, error) {
	waiter := make(chan wayBack, 1)
	asked := false
	_, err := request(ctx, s, id, action, idem, func(o *owner, key withKey) (Accepted, error) {
		asked = true
		if o.task != nil && o.task.name != taskCheckpoint { // which is soon over
			if o.task.name == "climb" && action == actRecover { // it is being done
				o.waiters = append(o.waiters, waiter)
				return Accepted{}, nil
			}
			return Accepted{}, &Error{Kind: ErrConflict, Code: "busy", Message: "the agent is busy: " + o.task.name}
		}
		answer := Accepted{AgentID: id, State: StateRecovering}
		var entries []ledger.Entry
		if action == actRevive {
			entries = append(entries, ledger.Entry{Event: ledger.AgentRevived, Payload: ledger.ReasonPayload{Reason: "asked for"}})
			if o.row.SandboxID == "" {
				entries = append(entries, o.change(StateProvisioning, "asked for")) // it never had one
				waiter <- wayBack{view: WayBack{AgentID: id, Rung: "started", Turn: o.row.Turn}}
			}
		}
		req := key(answer)
		if len(entries) > 0 || req != nil {
			if _, err := o.appendBatch(ledger.Batch{Entries: entries, Request: req}); err != nil {
				return Accepted{}, err
			}
		}
		o.calm()
		if o.row.State == StateProvisioning {
			return answer, nil
		}
		how(o)
		o.waiters = append(o.waiters, waiter)
		o.settled = false
		o.revive = true
		return answer, nil
	})
	return s.awaitWayBack(ctx, id, waiter, !asked, err)
}

// awaitWayBack waits for what comes of a climb that was asked for. A repeated
// request joins the climb, or learns how the last one ended.
func (s *Swarm) awaitWayBack(ctx context.Context, id string, waiter chan wayBack, repeated bool, err error) (WayBack, error) {
	if err == nil && repeated {
		err = s.joinClimb(ctx, id, waiter)
	}
	if err != nil {
		return WayBack{}, err
	}
	select {
	case w := <-waiter:
		return w.view, w.err
	case <-ctx.Done():
		return WayBack{}, ctx.Err()
	case <-s.ctx.Done():
		return WayBack{}, &Error{Kind: ErrUnavailable, Code: "stopping", Message: errStopping.Error()}
	}
}

// joinClimb has a waiter told how the climb ends that is going on or, where
// none is, how the last one ended.
func (s *Swarm) joinClimb(ctx context.Context, id string, waiter chan wayBack) error {
	s.mu.Lock()
	o := s.owners[id]
	s.mu.Unlock()
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return err
	}
	if o == nil {
		return refused("bring back", row.State)
	}
	_, err = ask(ctx, o, func() (none, error) {
		if o.row.State == StateRecovering || o.task != nil && o.task.name == "climb" {
			o.waiters = append(o.waiters, waiter)
			return none{}, nil
		}
		if !needsSandbox(o.row.State) {
			return none{}, refused("bring back", o.row.State)
		}
		last, err := s.Ledger.Events(ctx, ledger.EventFilter{AgentID: id, Names: []string{ledger.AgentRecovered}, Desc: true, Limit: 1})
		if err != nil {
			return none{}, err
		}
		view := WayBack{AgentID: id, SandboxID: o.row.SandboxID, Rung: "started", Turn: o.row.Turn}
		if len(last) > 0 {
			var p ledger.AgentRecoveredPayload
			if err := json.Unmarshal(last[0].Payload, &p); err != nil {
				return none{}, fmt.Errorf("reading event %d: %w", last[0].Seq, err)
			}
			view.Rung, view.Checkpoint = p.Rung, p.Checkpoint
		}
		waiter <- wayBack{view: view}
		return none{}, nil
	})
	return err
}

// none is an answer that says nothing.
type none struct{}
