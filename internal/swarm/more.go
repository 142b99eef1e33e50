package swarm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
)

type statusOf struct{ live *live.Agent }

// DeleteRun ends every agent of a run and closes it. It is idempotent; the
// history stays.
func (s *Swarm) DeleteRun(ctx context.Context, id string, idem Idempotency) error {
	_, err := kept(ctx, s, idem, func() (none, error) { return none{}, s.deleteRun(ctx, id) })
	return err
}

func (s *Swarm) deleteRun(ctx context.Context, id string) error {
	r, err := s.Ledger.Run(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return notFound("run", id)
	}
	if err != nil {
		return err
	}
	agents, err := s.Ledger.Agents(ctx, ledger.AgentFilter{RunID: id, ExceptStates: final})
	if err != nil {
		return err
	}
	for _, a := range agents {
		if _, err := s.Stop(ctx, a.AgentID, stopAbort, Idempotency{}); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	if r.State != "open" {
		return nil
	}
	_, err = s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{RunID: id, Event: ledger.RunClosed,
		Payload: ledger.RunClosedPayload{Reason: "deleted"}}}})
	if errors.Is(err, ledger.ErrConflict) {
		return nil // closed by another at the same moment
	}
	return err
}

// TakeCheckpoint takes one of an idle agent now.
func (s *Swarm) TakeCheckpoint(ctx context.Context, id string, idem Idempotency) (CheckpointView, error) {
	return kept(ctx, s, idem, func() (CheckpointView, error) { return s.checkpointNow(ctx, id) })
}

func (s *Swarm) checkpointNow(ctx context.Context, id string) (CheckpointView, error) {
	type result struct {
		view CheckpointView
		err  error
	}
	ch := make(chan result, 1)
	v, err := request(ctx, s, id, actCheckpoint, Idempotency{}, func(o *owner, _ withKey) (*CheckpointView, error) {
		if o.live == nil || o.task != nil || o.turnID != "" {
			return nil, &Error{Kind: ErrUnavailable, Code: "busy", Message: "the agent is being worked on; ask again"}
		}
		last, err := s.Ledger.Turns(ctx, ledger.TurnFilter{AgentID: id, States: []string{"ended"}, Desc: true, Limit: 1})
		if err != nil {
			return nil, err
		}
		number, turnID := 0, ""
		if len(last) > 0 {
			number, turnID = last[0].Number, last[0].TurnID
		}
		o.takeCheckpoint(o.live, number, turnID, func(v CheckpointView, err error) { ch <- result{v, err} })
		return nil, nil
	})
	if err != nil || v != nil {
		return CheckpointView{}, err
	}
	select {
	case r := <-ch:
		return r.view, r.err
	case <-ctx.Done():
		return CheckpointView{}, ctx.Err()
	case <-s.ctx.Done():
		return CheckpointView{}, &Error{Kind: ErrUnavailable, Code: "stopping", Message: errStopping.Error()}
	}
}

// findCheckpoint finds the newest kept checkpoint of a turn.
func (s *Swarm) findCheckpoint(ctx context.Context, id string, turn int) (ledger.Checkpoint, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return ledger.Checkpoint{}, err
	}
	kept, err := s.Ledger.Checkpoints(ctx, ledger.CheckpointFilter{AgentID: id, State: "kept"})
	if err != nil {
		return ledger.Checkpoint{}, err
	}
	for _, c := range kept {
		if c.Turn == turn {
			return c, nil
		}
	}
	return ledger.Checkpoint{}, notFound("checkpoint", fmt.Sprintf("%s of turn %d", id, turn))
}

// RestoreCheckpoint rolls an agent back to a checkpoint: a new sandbox; the old
// one is kept, stopped, until the next turn has ended.
func (s *Swarm) RestoreCheckpoint(ctx context.Context, id string, turn int, idem Idempotency) (WayBack, error) {
	cp, err := s.findCheckpoint(ctx, id, turn)
	if err != nil {
		return WayBack{}, err
	}
	waiter := make(chan wayBack, 1)
	asked := false
	_, err = request(ctx, s, id, actRollback, idem, func(o *owner, key withKey) (Accepted, error) {
		asked = true
		if o.task != nil || o.rt == nil {
			return Accepted{}, &Error{Kind: ErrUnavailable, Code: "busy", Message: "the agent is being worked on; ask again"}
		}
		answer := Accepted{AgentID: id, State: StateRecovering}
		_, err := o.appendBatch(ledger.Batch{Entries: []ledger.Entry{o.change(StateRecovering, fmt.Sprintf("roll back to turn %d", turn))}, Request: key(answer)})
		if err != nil {
			return Accepted{}, err
		}
		o.calm()
		o.disconnect()
		o.waiters = append(o.waiters, waiter)
		o.climb(recovery.Subject{Agent: o.row, Spec: o.spec, Checkpoint: &cp}, recovery.Limits{From: recovery.Restored}, false)
		return answer, nil
	})
	return s.awaitWayBack(ctx, id, waiter, !asked, err)
}

// CheckpointArchive opens a checkpoint as a plain tar. The caller closes it.
func (s *Swarm) CheckpointArchive(ctx context.Context, id string, turn int) (io.ReadCloser, error) {
	cp, err := s.findCheckpoint(ctx, id, turn)
	if err != nil {
		return nil, err
	}
	r, err := s.Store.Open(ctx, cp.SnapshotRef)
	if errors.Is(err, checkpoint.ErrNotFound) || errors.Is(err, checkpoint.ErrDamaged) {
		return nil, &Error{Kind: ErrConflict, Code: "checkpoint_damaged", Message: err.Error()}
	}
	return r, err
}

// ImportCheckpoint stores a tar as an agent's newest checkpoint. It is what a
// restore tries first from then on; the sandbox is not touched.
func (s *Swarm) ImportCheckpoint(ctx context.Context, id string, r io.Reader, idem Idempotency) (CheckpointView, error) {
	return kept(ctx, s, idem, func() (CheckpointView, error) { return s.importCheckpoint(ctx, id, r) })
}

func (s *Swarm) importCheckpoint(ctx context.Context, id string, r io.Reader) (CheckpointView, error) {
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return CheckpointView{}, err
	}
	if isFinal(row.State) || row.SandboxID == "" {
		return CheckpointView{}, refused("import a checkpoint of", row.State)
	}
	stored, took, err := checkpoint.Take(ctx, s.Store, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(r), nil },
		checkpoint.Meta{AgentID: id, SandboxID: row.SandboxID, Turn: row.Turn})
	if err != nil {
		return CheckpointView{}, invalid("archive", err.Error())
	}
	return request(ctx, s, id, actRecover, Idempotency{}, func(o *owner, _ withKey) (CheckpointView, error) {
		err := o.recordCheckpoint(o.row.SandboxID, ledger.AgentCheckpointedPayload{Turn: row.Turn, SnapshotRef: stored.Ref, SHA256: stored.SHA256,
			Bytes: stored.Bytes, Files: stored.Files, TookMs: took.Milliseconds(), SessionID: o.row.SessionID, Messages: o.row.Messages, Imported: true})
		if err != nil {
			return CheckpointView{}, err
		}
		return o.newestCheckpoint(stored.Ref)
	})
}

const (
	execOutput  = 1 << 20
	execDefault = 5 * time.Minute
)

// Exec runs a command in an agent's sandbox, to its end. Under a key it runs at
// most once.
func (s *Swarm) Exec(ctx context.Context, id string, r ExecRequest, idem Idempotency) (ExecAnswer, error) {
	if len(r.Command) == 0 || r.Command[0] == "" {
		return ExecAnswer{}, invalid("command", "is empty")
	}
	row, err := s.agentRow(ctx, id)
	if err != nil {
		return ExecAnswer{}, err
	}
	rt := s.runtimes[row.Runtime]
	if !may(actExec, row.State) || row.SandboxID == "" || rt == nil {
		return ExecAnswer{}, refused(actExec, row.State)
	}
	return once(ctx, s, idem, func() (ExecAnswer, error) { return run(ctx, rt, row.SandboxID, r) })
}

// run runs a command in a sandbox.
func run(ctx context.Context, rt runtime.Runtime, sandboxID string, r ExecRequest) (ExecAnswer, error) {
	limit := execDefault
	if r.TimeoutSec > 0 {
		limit = time.Duration(r.TimeoutSec) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stdout, stderr := &capped{}, &capped{}
	code, err := rt.Exec(ctx, sandboxID, runtime.ExecRequest{Args: r.Command, Env: r.Env, Workdir: r.Cwd, User: r.User, Stdout: stdout, Stderr: stderr})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return ExecAnswer{}, &Error{Kind: ErrUnavailable, Code: "exec_timeout", Message: fmt.Sprintf("the command did not end within %s", limit)}
		}
		return ExecAnswer{}, runtimeError(err)
	}
	return ExecAnswer{ExitCode: code, Stdout: stdout.buf.String(), Stderr: stderr.buf.String(), Truncated: stdout.cut || stderr.cut}, nil
}

// capped keeps the first MiB that is written to it.
type capped struct {
	buf bytes.Buffer
	cut bool
}

func (c *capped) Write(p []byte) (int, error) {
	room := execOutput - c.buf.Len()
	if len(p) > room {
		c.cut = true
	}
	c.buf.Write(p[:min(len(p), max(room, 0))])
	return len(p), nil
}
