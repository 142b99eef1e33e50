package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func inspectCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect AGENT",
		Short:             "Show one agent",
		Long:              `Show what is known of an agent.` + exits("  0    shown\n  4    no such agent"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		v, err := c.Agent(ctx, id)
		if err != nil {
			return err
		}
		return a.print(v, func(w io.Writer) { table(w, agentRows(v)...) })
	})
	return cmd
}

func agentRows(v swarm.AgentView) [][]string {
	var rows [][]string
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name + ":", value})
		}
	}
	row("agent", v.AgentID)
	row("name", v.SpecName)
	row("run", v.RunID)
	row("parent", deref(v.ParentAgentID))
	row("state", stateOf(v))
	row("reason", v.Reason)
	row("outcome", deref(v.Outcome))
	row("error", v.Error)
	row("turn", fmt.Sprint(v.Turn))
	row("harness", v.Harness)
	row("model", v.Model)
	row("paused by", deref(v.PausedBy))
	row("sandbox", deref(v.SandboxID))
	runtime := v.Runtime
	if !v.Isolated {
		runtime += " (isolates nothing)"
	}
	row("runtime", runtime)
	row("transport", v.Transport)
	if c := v.Checkpoint; c != nil {
		row("checkpoint", fmt.Sprintf("turn %d, %s, %s", c.Turn, size(c.Bytes), when(c.TakenAt)))
	}
	row("created", when(v.CreatedAt))
	row("ended", when(deref(v.EndedAt)))
	if s := v.SessionStats; s != nil {
		row("session", words(s.SessionID, fmt.Sprintf("%d messages, harness %s, pid %d", s.Messages, s.Harness, s.PID)))
	}
	return rows
}
