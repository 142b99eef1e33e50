package alineo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// Agent is one agent of a swarm. It lives through any number of sandboxes. Its
// methods are safe for concurrent use.
type Agent struct {
	s         *Swarm
	id, runID string
}

// ID names the agent for as long as its state directory exists.
func (a *Agent) ID() string { return a.id }

// State is what an agent is at a moment.
type State struct {
	State     string // running, done, failed, paused, recovering, stopped, …
	Reason    string // of its last change
	Outcome   string // of its last turn: success, failed, interrupted, …; empty: none has ended
	Error     string
	SandboxID string // empty before it has one
	Turn      int    // the last one that was asked for
	// Recovering is why the agent is held, as runtime_unreachable.
	Recovering string
	// Isolated is false where nothing keeps the agent from the host.
	Isolated bool
}

// Promptable reports whether the agent takes prompts.
func (s State) Promptable() bool {
	return s.State == swarm.StateRunning || s.State == swarm.StateDone || s.State == swarm.StateFailed
}

// State looks at the agent.
func (a *Agent) State(ctx context.Context) (State, error) {
	v, err := a.s.s.Agent(ctx, a.id)
	if err != nil {
		return State{}, wrap("looking at "+a.id, err)
	}
	return State{State: v.State, Reason: v.Reason, Outcome: text(v.Outcome), Error: v.Error, SandboxID: text(v.SandboxID),
		Turn: v.Turn, Recovering: v.Recovering, Isolated: v.Isolated}, nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// settled waits until the agent is no longer being provisioned.
func (a *Agent) settled(ctx context.Context) (State, error) {
	stream := a.s.s.Follow(-1, a.runID)
	defer stream.Close()
	for {
		state, err := a.State(ctx)
		if err != nil || state.State != swarm.StateProvisioning {
			return state, err
		}
		// Whatever happens next may be what is waited for.
		if _, err := stream.Next(ctx); err != nil {
			return State{}, fmt.Errorf("waiting for %s: %w", a.id, err)
		}
	}
}

// Result is how a turn ended.
type Result struct {
	TurnID  string
	Outcome string // success, failed, aborted, interrupted, lost
	Text    string // the last thing said
	Error   string
}

// Turn is one prompt and all that follows.
type Turn struct {
	a     *Agent
	id    string
	after int64 // it cannot have ended before this seq
}

// ID names the turn.
func (t *Turn) ID() string { return t.id }

// PromptOptions are what Prompt may be told beside the text.
type PromptOptions struct {
	// Key makes a repetition of the call give the first one's turn, over the
	// death of the program too.
	Key string
}

// Prompt asks for a turn. When it returns, the prompt cannot be lost. One that
// comes while a turn runs waits for its end. Errors: ErrConflict.
func (a *Agent) Prompt(ctx context.Context, prompt string, o PromptOptions) (*Turn, error) {
	req, after := swarm.PromptRequest{Text: prompt}, a.s.s.Ledger.LastSeq()
	if o.Key != "" {
		after = 0 // its first call may have been long ago
		req.Idempotency = swarm.Idempotency{Scope: "alineo.Prompt " + a.id, Key: o.Key, BodyHash: hash([]byte(prompt))}
	}
	answer, err := a.s.s.Prompt(ctx, a.id, req)
	if err != nil {
		return nil, wrap("prompting "+a.id, err)
	}
	return &Turn{a: a, id: answer.TurnID, after: after}, nil
}

// Ask asks for a turn and waits for its result.
func (a *Agent) Ask(ctx context.Context, prompt string) (Result, error) {
	t, err := a.Prompt(ctx, prompt, PromptOptions{})
	if err != nil {
		return Result{}, err
	}
	return t.Wait(ctx)
}

// Wait waits for the turn's end, however long that takes. A turn that ended
// badly is no error: see Outcome.
func (t *Turn) Wait(ctx context.Context) (Result, error) {
	for event, err := range t.a.Events(ctx, t.after) {
		if err != nil {
			return Result{}, fmt.Errorf("waiting for turn %s: %w", t.id, err)
		}
		var end struct {
			TurnID, Outcome, Error, Result string
		}
		if event.Name != ledger.TurnEnded {
			continue
		}
		if err := json.Unmarshal(event.Data, &end); err != nil {
			return Result{}, fmt.Errorf("reading event %d: %w", event.Seq, err)
		}
		if end.TurnID == t.id {
			return Result{TurnID: t.id, Outcome: end.Outcome, Text: end.Result, Error: end.Error}, nil
		}
	}
	return Result{}, fmt.Errorf("waiting for turn %s: %w", t.id, io.ErrUnexpectedEOF)
}

// Event is one thing that happened to an agent.
type Event struct {
	Seq  int64 // 0 for one that is not stored, as message.updated
	Name string
	Data json.RawMessage // a JSON object
}

// Events yields what is stored of the agent after a sequence number, each event
// once and in order, and then what happens, until ctx ends or the swarm is
// closed. The last element may be an error.
func (a *Agent) Events(ctx context.Context, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		stream := a.s.s.Follow(after, a.runID)
		defer stream.Close()
		for {
			e, err := stream.Next(ctx)
			if errors.Is(err, io.EOF) || err != nil && errors.Is(ctx.Err(), context.Canceled) {
				return
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("following %s: %w", a.id, err))
				return
			}
			if e.Event == "" || !a.isOf(e.Data) {
				continue
			}
			if !yield(Event{Seq: e.Seq, Name: e.Event, Data: e.Data}, nil) {
				return
			}
		}
	}
}

// isOf reports whether an event's data names this agent.
func (a *Agent) isOf(data json.RawMessage) bool {
	var of struct{ AgentID string }
	return json.Unmarshal(data, &of) == nil && of.AgentID == a.id
}

// Steer says something into the turn that runs. Errors: ErrConflict, ErrRefused.
func (a *Agent) Steer(ctx context.Context, message string) error {
	_, err := a.s.s.Steer(ctx, a.id, message, swarm.Idempotency{})
	return wrap("steering "+a.id, err)
}

// Pause freezes the agent in mid-turn, Unpause lets it go on.
func (a *Agent) Pause(ctx context.Context) error {
	_, err := a.s.s.Pause(ctx, a.id, swarm.Idempotency{})
	return wrap("pausing "+a.id, err)
}

// Unpause lets a paused agent go on.
func (a *Agent) Unpause(ctx context.Context) error {
	_, err := a.s.s.Resume(ctx, a.id, swarm.Idempotency{})
	return wrap("thawing "+a.id, err)
}

// How an agent is stopped.
const (
	Stop  = "stop"  // end its harness and stop its sandbox; Revive brings it back
	Drain = "drain" // the same after the turn that runs and its checkpoint
	Abort = "abort" // end the turn and delete the sandbox: final
)

// Stop asks for the agent's end: Stop, Drain or Abort. It does not wait for it.
func (a *Agent) Stop(ctx context.Context, how string) error {
	_, err := a.s.s.Stop(ctx, a.id, how, swarm.Idempotency{})
	return wrap("stopping "+a.id, err)
}

// Revive brings back an agent that was stopped, crashed or lost.
func (a *Agent) Revive(ctx context.Context) (Back, error) {
	w, err := a.s.s.Revive(ctx, a.id, swarm.Idempotency{})
	return back(w), wrap("reviving "+a.id, err)
}

// Recover puts the agent on the recovery ladder now.
func (a *Agent) Recover(ctx context.Context) (Back, error) {
	w, err := a.s.s.Recover(ctx, a.id, swarm.Idempotency{})
	return back(w), wrap("recovering "+a.id, err)
}

// Checkpoint is the agent's home as it was after a turn.
type Checkpoint struct {
	Turn      int
	SandboxID string
	SHA256    string // of the stored archive
	Bytes     int64  // as stored
	Files     int64
	TakenAt   time.Time
	Damaged   string // why a restore passed it over; empty: it did not
}

func checkpointOf(v swarm.CheckpointView) Checkpoint {
	return Checkpoint{Turn: v.Turn, SandboxID: v.SandboxID, SHA256: v.SHA256, Bytes: v.Bytes, Files: v.Files,
		TakenAt: time.UnixMilli(v.TakenAt), Damaged: v.Damaged}
}

// TakeCheckpoint takes one now, of an idle agent. An agent whose spec says so
// gets one after every turn that ends well, without being asked. Errors:
// ErrConflict where a turn runs, ErrUnavailable.
func (a *Agent) TakeCheckpoint(ctx context.Context) (Checkpoint, error) {
	v, err := a.s.s.TakeCheckpoint(ctx, a.id, swarm.Idempotency{})
	return checkpointOf(v), wrap("taking a checkpoint of "+a.id, err)
}

// Checkpoints lists those that are kept, newest first.
func (a *Agent) Checkpoints(ctx context.Context) ([]Checkpoint, error) {
	views, err := a.s.s.Checkpoints(ctx, a.id)
	if err != nil {
		return nil, wrap("listing the checkpoints of "+a.id, err)
	}
	all := make([]Checkpoint, len(views))
	for i, v := range views {
		all[i] = checkpointOf(v)
	}
	return all, nil
}

// Restore rolls the agent back to the checkpoint of a turn, in a new sandbox.
// The old one is kept, stopped, until the next turn has ended.
func (a *Agent) Restore(ctx context.Context, turn int) (Back, error) {
	w, err := a.s.s.RestoreCheckpoint(ctx, a.id, turn, swarm.Idempotency{})
	return back(w), wrap(fmt.Sprintf("rolling %s back to turn %d", a.id, turn), err)
}

// Archive opens the checkpoint of a turn as a plain tar. The caller closes it.
func (a *Agent) Archive(ctx context.Context, turn int) (io.ReadCloser, error) {
	r, err := a.s.s.CheckpointArchive(ctx, a.id, turn)
	return r, wrap(fmt.Sprintf("opening the checkpoint of turn %d of %s", turn, a.id), err)
}
