package main

import (
	"context"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// actionList is the --json output of reconcile.
type actionList struct {
	DryRun  bool           `json:"dryRun"`
	Actions []swarm.Action `json:"actions"`
}

func reconcileCommand(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Compare sandboxes with the ledger and act",
		Long: `Compare the runtime's sandboxes with the ledger and put right what differs, as the
daemon does by itself every few minutes. With --dry-run only say what would be
done.` + exits("  0    done, or nothing to do"),
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "do nothing, say what would be done")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, _ []string) error {
		actions, err := c.Reconcile(ctx, dryRun)
		if err != nil {
			return err
		}
		if len(actions) == 0 {
			a.say("sandboxes and ledger agree")
		}
		return a.print(actionList{dryRun, list(actions)}, func(w io.Writer) {
			if len(actions) == 0 {
				return
			}
			rows := [][]string{{"SANDBOX", "AGENT", "ACTION", "REASON"}}
			for _, x := range actions {
				rows = append(rows, []string{x.SandboxID, x.AgentID, x.Action, x.Reason})
			}
			table(w, rows...)
		})
	})
	return cmd
}
