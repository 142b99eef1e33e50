package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// writeBack says how an agent came back.
func writeBack(w io.Writer, b swarm.WayBack) {
	s := words(b.AgentID, b.Rung, b.SandboxID, turn(b.Turn))
	if b.Checkpoint != nil {
		s = words(s, fmt.Sprintf("from the checkpoint of turn %d", b.Checkpoint.Turn))
	}
	fmt.Fprintln(w, line(s))
}

const exitsBack = `  0    it is back
  1    the ladder did not bring it back
  4    no such %s
  5    not possible in the agent's state`

// backCommand is a command that brings back an agent, which an argument of the
// given kind names.
func (a *app) backCommand(name, kind, short, long string, do func(context.Context, *client.Client, string) (swarm.WayBack, error)) *cobra.Command {
	cmd := &cobra.Command{
		Short: short,
		Long:  long + exits(fmt.Sprintf(exitsBack, kind)),
		Args:  cobra.ExactArgs(1),
	}
	find := agentID
	cmd.Use, cmd.ValidArgsFunction = name+" AGENT", a.completeAgent()
	if kind == "sandbox" {
		find = sandboxID
		cmd.Use, cmd.ValidArgsFunction = name+" SANDBOX", a.completeSandbox()
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := find(ctx, c, args[0])
		if err != nil {
			return err
		}
		back, err := do(ctx, c, id)
		if err != nil {
			return err
		}
		return a.print(back, func(w io.Writer) { writeBack(w, back) })
	})
	return cmd
}
