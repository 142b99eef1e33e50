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
	start, told := a.clock.Now(), false
	for {
		ask := client.MaxWait
		if timeout > 0 {
			if ask = min(ask, timeout-a.clock.Since(start)); ask <= 0 {
				return swarm.ResultView{}, errWait(agent, timeout)
			}
		}
		asked := a.clock.Now()
		result, err := c.Result(ctx, agent, ask)
		switch {
		case err == nil && result.State == settled:
			if turnID == "" || result.TurnID == turnID || result.TurnID == "" {
				return result, nil
			}
			// The agent's last turn is another: one before ours that was
			// still open, or one after it.
			result, ended, err := fromTranscript(ctx, c, agent, turnID, result)
			if ended || err != nil {
				return result, err
			}
		case err != nil && !client.Temporary(err):
			return swarm.ResultView{}, err
		case err != nil && !told:
			a.say("the daemon does not answer; the agent works on, waiting for both")
			told = true
		}
		if err == nil {
			told = false
		}
		rest := pace - a.clock.Since(asked)
		if timeout > 0 {
			rest = min(rest, timeout-a.clock.Since(start))
		}
		if err := a.sleep(ctx, rest); err != nil {
			return swarm.ResultView{}, err
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
