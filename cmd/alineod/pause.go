package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// actionCommand is a command that does one thing to an agent and prints the
// state it has then.
func (a *app) actionCommand(name, short, long string, do func(context.Context, *client.Client, string) (swarm.Accepted, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:               name + " AGENT",
		Short:             short,
		Long:              long + exits("  0    accepted\n  4    no such agent\n  5    not possible in the agent's state"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		answer, err := do(ctx, c, id)
		if err != nil {
			return err
		}
		return a.print(answer, func(w io.Writer) { fmt.Fprintln(w, line(words(answer.AgentID, answer.State))) })
	})
	return cmd
}

func pauseCommand(a *app) *cobra.Command {
	return a.actionCommand("pause", "Freeze an agent", "Freeze an agent where it is, in mid-turn too. It stays frozen over a restart of the\ndaemon.",
		func(ctx context.Context, c *client.Client, id string) (swarm.Accepted, error) {
			return c.Pause(ctx, id)
		})
}

func unpauseCommand(a *app) *cobra.Command {
	return a.actionCommand("unpause", "Thaw a frozen agent", "Thaw an agent that was paused.",
		func(ctx context.Context, c *client.Client, id string) (swarm.Accepted, error) {
			return c.Unpause(ctx, id)
		})
}
