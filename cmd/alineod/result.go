package main

import (
	"context"
	"io"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

func resultCommand(a *app) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "result AGENT",
		Short: "Print the result of an agent's last turn",
		Long: `Print the result of an agent's last turn; with --wait, when it has ended.` + exits(`  0    the turn ended with success
  1    it ended otherwise
  5    it has not ended, and --wait is not given
  124  it had not ended within --timeout`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the turn's end")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --wait: wait no longer (0: for ever)")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		// The first look is not a wait: without a daemon the user is told at
		// once, while a wait that has begun outlives the daemon.
		result, err := c.Result(ctx, id, 0)
		if err != nil {
			return err
		}
		if result.State != settled && wait {
			if result, err = a.await(ctx, c, id, "", timeout); err != nil {
				return err
			}
		}
		if err := a.print(result, func(w io.Writer) {
			if result.State == settled {
				a.writeResult(w, result)
			}
		}); err != nil {
			return err
		}
		if result.State != settled {
			if a.json {
				return silent(exitConflict)
			}
			return fail(exitConflict, "%s has no result yet; --wait waits for it", id)
		}
		return outcome(deref(result.Outcome))
	})
	return cmd
}
