package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

func steerCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "steer AGENT TEXT",
		Short: "Say something into an agent's turn",
		Long: `Say something into the turn that runs; - reads TEXT from stdin. Of an agent that
is idle it starts a turn, where its harness can.` + exits("  0    taken\n  1    the harness refused\n  5    not possible in the agent's state"),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		said, err := a.textOf(args[1])
		if err != nil {
			return err
		}
		if said == "" {
			return usage("the text is empty")
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		answer, err := c.Steer(ctx, id, client.SteerRequest{Message: said})
		if err != nil {
			return err
		}
		return a.print(answer, func(w io.Writer) {
			fmt.Fprintln(w, line(words(id, cmp.Or(answer.DeliveredAs, answer.State))))
		})
	})
	return cmd
}
