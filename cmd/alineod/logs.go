package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/spf13/cobra"
)

// quiet is how long a stream may say nothing before what was stored counts as
// told, with a daemon that does not say so.
const quiet = 2 * time.Second

func logsCommand(a *app) *cobra.Command {
	var follow, all bool
	var after int64
	cmd := &cobra.Command{
		Use:   "logs AGENT|RUN",
		Short: "Print events in readable lines",
		Long: `Print the stored events of an agent, or of a whole run, one per line; with -f go
on with those that come, until interrupted. The stream outlives a restart of the
daemon. With --json each line is {"seq", "event", "data"}.` + exits("  0    all was printed\n  130  -f was interrupted"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the events that come")
	cmd.Flags().BoolVar(&all, "ephemeral", false, "with -f: also text deltas and tool output while they come")
	cmd.Flags().Int64Var(&after, "after", 0, "only events after this seq")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if after < 0 {
			return usage("--after: a seq is not negative")
		}
		run, agent, err := agentOrRun(ctx, c, args[0])
		if err != nil {
			return err
		}
		l := &log{a: a, agent: agent, ephemeral: all, withAgent: agent == ""}
		if !follow {
			return l.stored(ctx, c, run, after)
		}
		stream := l.stream(ctx, c, run, after)
		defer stream.Close()
		for {
			ev, err := stream.Next()
			if err != nil {
				return err
			}
			if err := l.print(ev); err != nil {
				return err
			}
		}
	})
	return cmd
}

// log prints events.
type log struct {
	a         *app
	agent     string // only its events; empty: all
	ephemeral bool
	withAgent bool // lines say whose they are
}

func (l *log) stream(ctx context.Context, c *client.Client, run string, after int64) *client.EventStream {
	s := c.Events(ctx, run, after)
	told := int64(-1)
	s.Lost = func(error) {
		// Once for each time it is lost, not for each try.
		if s.Last() != told {
			l.a.say("the connection to the daemon was lost; trying again")
			told = s.Last()
		}
	}
	return s
}

func (l *log) print(ev client.Event) error {
	if ev.Seq == 0 && !l.ephemeral {
		return nil
	}
	var whose struct {
		AgentID string `json:"agentId"`
	}
	if err := json.Unmarshal(ev.Data, &whose); err != nil {
		return fmt.Errorf("event %d: %w", ev.Seq, err)
	}
	// A run's stream has the events of all its agents.
	if l.agent != "" && whose.AgentID != l.agent {
		return nil
	}
	if l.a.json {
		return l.a.printLine(ev)
	}
	if _, err := fmt.Fprintln(l.a.out, eventLine(ev, l.withAgent)); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// stored prints what is stored and ends. The run's asOf is the end, or the
// daemon's word that the stream is live, or a silence.
func (l *log) stored(ctx context.Context, c *client.Client, run string, after int64) error {
	view, err := c.Run(ctx, run)
	if err != nil {
		return err
	}
	if after >= view.AsOf {
		return nil
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := l.a.clock.AfterFunc(quiet, cancel)
	defer watch.Stop()
	stream := l.stream(inner, c, run, after)
	stream.Comments = true
	defer stream.Close()
	for {
		ev, err := stream.Next()
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		case ev.Comment == client.LiveComment:
			return nil
		case ev.Comment != "":
			continue
		case ev.Seq > view.AsOf: // it came to be after the look
			return nil
		}
		watch.Reset(quiet)
		if ev.Seq == 0 {
			continue
		}
		if err := l.print(ev); err != nil {
			return err
		}
		if ev.Seq == view.AsOf {
			return nil
		}
	}
}

// followTurn prints a run's events until its root agent's turn has ended, and
// returns the exit for its outcome.
func (a *app) followTurn(ctx context.Context, c *client.Client, run, agent string, timeout time.Duration) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout > 0 {
		defer a.clock.AfterFunc(timeout, cancel).Stop()
	}
	l := &log{a: a, withAgent: true}
	stream := l.stream(inner, c, run, 0)
	defer stream.Close()
	for {
		ev, err := stream.Next()
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.Canceled) {
				return errWait(agent, timeout)
			}
			return err
		}
		if err := l.print(ev); err != nil {
			return err
		}
		// An agent that cannot work at all ends without a turn's end.
		if ev.Name != ledger.HandleSettled && ev.Name != ledger.AgentEnded {
			continue
		}
		var end struct {
			AgentID string `json:"agentId"`
			Outcome string `json:"outcome"`
		}
		if err := json.Unmarshal(ev.Data, &end); err != nil {
			return fmt.Errorf("event %d: %w", ev.Seq, err)
		}
		if end.AgentID == agent {
			return outcome(end.Outcome)
		}
	}
}
