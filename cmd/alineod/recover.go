package main

import (
	"context"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func recoverCommand(a *app) *cobra.Command {
	return a.backCommand("recover", "agent", "Put an agent on the recovery ladder",
		`Put an agent on the recovery ladder now: reattach, else resume, else restart,
else restore from its newest checkpoint.`,
		func(ctx context.Context, c *client.Client, id string) (swarm.WayBack, error) {
			return c.Recover(ctx, id)
		})
}
