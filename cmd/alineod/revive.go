package main

import (
	"context"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func reviveCommand(a *app) *cobra.Command {
	return a.backCommand("revive", "agent", "Bring back a stopped or crashed agent",
		`Bring back an agent that was stopped or crashed: restart its sandbox, or restore
it from its newest checkpoint where the sandbox is gone, and continue its session.`,
		func(ctx context.Context, c *client.Client, id string) (swarm.WayBack, error) {
			return c.Revive(ctx, id)
		})
}
