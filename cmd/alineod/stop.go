package main

import (
	"context"
	"slices"
	"strings"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// stopModes in the order of what they leave. The command's default is not the
// API's: a person who types "stop" must not lose a sandbox by it, while older
// clients of the API expect that it is deleted.
var stopModes = []string{client.StopAbort, client.StopDrain, client.StopKeep}

func stopCommand(a *app) *cobra.Command {
	var mode string
	cmd := a.actionCommand("stop", "End an agent", `End an agent. Modes:
  stop   end its harness and stop its sandbox; "revive" brings it back (default)
  drain  the same after the turn that runs and its checkpoint
  abort  end the turn and delete the sandbox: final`,
		func(ctx context.Context, c *client.Client, id string) (swarm.Accepted, error) {
			if !slices.Contains(stopModes, mode) {
				return swarm.Accepted{}, usage("--mode: %q is none of %s", mode, strings.Join(stopModes, ", "))
			}
			return c.Stop(ctx, id, client.StopRequest{Mode: mode})
		})
	cmd.Flags().StringVar(&mode, "mode", client.StopKeep, "stop, drain or abort")
	return cmd
}
