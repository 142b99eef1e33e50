package main

import (
	"context"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func reattachCommand(a *app) *cobra.Command {
	return a.backCommand("reattach", "sandbox", "Bind to the bridge that runs in a sandbox",
		`Bind to the bridge that runs in a sandbox. Where the sandbox is gone, its agent is
restored in a new one.`,
		func(ctx context.Context, c *client.Client, id string) (swarm.WayBack, error) {
			return c.Reattach(ctx, id)
		})
}

func resumeCommand(a *app) *cobra.Command {
	return a.backCommand("resume", "sandbox", "Restart a sandbox's bridge and continue the session",
		`Restart a sandbox's bridge and continue its agent's session. Where the sandbox is
gone, the agent is restored in a new one. (To thaw a paused agent: "unpause".)`,
		func(ctx context.Context, c *client.Client, id string) (swarm.WayBack, error) {
			return c.Resume(ctx, id)
		})
}

func attachCommand(a *app) *cobra.Command {
	return a.backCommand("attach", "sandbox", "Take a sandbox without its harness",
		`Take a sandbox without its harness: "exec" works there, "prompt" does not.`,
		func(ctx context.Context, c *client.Client, id string) (swarm.WayBack, error) {
			return c.Attach(ctx, id)
		})
}
