package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/swarm"
)

const (
	settled = "settled"
	// outcomeInterrupted is the daemon's own outcome, which no harness reports.
	outcomeInterrupted = "interrupted"
	// pace is the shortest time between two requests of a wait, for a daemon
	// that answers at once, or not at all.
	pace = time.Second
)

// errWait: the turn that was waited for has not ended in time.
func errWait(agent string, timeout time.Duration) error {
	return fail(exitTimeout, "the turn of %s has not ended within %v", agent, timeout)
}

// await waits until the turn of an agent, or its last one where turnID is
// empty, has ended. A daemon that dies meanwhile is waited for: the turn goes
// on without it. timeout 0 is for ever.
func (a *app) await(ctx context.Context, c *client.Client, agent, turnID string, timeout time.Duration) (swarm.ResultView, error) {
	var result swarm.ResultView
	ended, err := a.patiently(ctx, timeout, func(ask time.Duration) (bool, error) {
		var err error
		if result, err = c.Result(ctx, agent, ask); err != nil || result.State != settled {
			return false, err
		}
		if turnID == "" || result.TurnID == turnID || result.TurnID == "" {
			return true, nil
		}
		// The agent's last turn is another: one before ours that was still
		// open, or one after it.
		var ended bool
		result, ended, err = fromTranscript(ctx, c, agent, turnID, result)
		return ended, err
	})
	if err == nil && !ended {
		err = errWait(agent, timeout)
	}
	return result, err
}

// patiently looks until look says that it is done, for at most timeout (0: for
// ever), and reports whether it was. look may wait as long as it is told. A
// daemon that does not answer is asked again.
func (a *app) patiently(ctx context.Context, timeout time.Duration, look func(wait time.Duration) (bool, error)) (bool, error) {
	start, told := a.clock.Now(), false
	for {
		left := client.MaxWait
		if timeout > 0 {
			left = max(0, min(left, timeout-a.clock.Since(start)))
		}
		asked := a.clock.Now()
		done, err := look(left)
		switch {
		case done && err == nil:
			return true, nil
		case err != nil && !client.Temporary(err):
			return false, err
		case left == 0: // the last look
			return false, err
		case err != nil && !told:
			a.say("the daemon does not answer; the agents work on, waiting for both")
		}
		told = err != nil
		rest := pace - a.clock.Since(asked)
		if timeout > 0 {
			rest = min(rest, timeout-a.clock.Since(start))
		}
		if err := a.sleep(ctx, rest); err != nil {
			return false, err
		}
	}
}

// sleep waits, at most until ctx ends.
func (a *app) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := a.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fromTranscript makes the result of a turn that is not the agent's last one.
// A turn that was interrupted and asked for again has the last one's result.
func fromTranscript(ctx context.Context, c *client.Client, agent, turnID string, last swarm.ResultView) (swarm.ResultView, bool, error) {
	said, err := c.Transcript(ctx, agent, true)
	if err != nil {
		if client.Temporary(err) {
			err = nil
		}
		return swarm.ResultView{}, false, err
	}
	for i, turn := range said.Turns {
		if turn.TurnID != turnID || turn.Outcome == "" {
			continue
		}
		if turn.Outcome == outcomeInterrupted && i < len(said.Turns)-1 {
			return last, true, nil
		}
		result := swarm.ResultView{AgentID: agent, State: settled, Outcome: &turn.Outcome, TurnID: turnID}
		ref := "turn:" + turnID
		result.ResultRef = &ref
		for _, m := range turn.Messages {
			if m.Role == "assistant" {
				result.Result = &m.Text
			}
		}
		return result, true, nil
	}
	return swarm.ResultView{}, false, nil
}

// outcome is the exit of a command that waited for a turn.
func outcome(name string) error {
	if name == harness.OutcomeSuccess {
		return nil
	}
	return silent(exitFailed)
}

// writeResult writes what a turn said to stdout, and why it failed to stderr.
func (a *app) writeResult(w io.Writer, r swarm.ResultView) {
	if said := text(deref(r.Result)); said != "" {
		fmt.Fprintln(w, said)
	}
	switch name := deref(r.Outcome); {
	case name == harness.OutcomeSuccess:
	case r.Error != "":
		fmt.Fprintf(a.err, "alineod: the turn of %s: %s: %s\n", r.AgentID, line(name), line(r.Error))
	default:
		fmt.Fprintf(a.err, "alineod: the turn of %s: %s\n", r.AgentID, line(name))
	}
}
