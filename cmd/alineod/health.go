package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// healthReport is the --json output of health. Readiness is null where it was
// not told.
type healthReport struct {
	OK        bool             `json:"ok"`
	Readiness *swarm.Readiness `json:"readiness"`
	Error     string           `json:"error,omitempty"`
}

func healthCommand(a *app) *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether the daemon is up",
		Long: `Say whether the daemon is up, and with --ready whether it has recovered all agents
after its start. For health checks: its exit code is 0 or 1, nothing else.` + exits("  0    it is\n  1    it is not, for whatever reason"),
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "also ask whether all agents are recovered")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, shortWait)
		defer cancel()
		var out healthReport
		err := c.Health(ctx)
		if err == nil && ready {
			r, rerr := c.Ready(ctx)
			if err = rerr; err == nil {
				out.Readiness = &r
				if !r.Ready {
					err = errors.New(recovering(r))
				}
			}
		}
		if out.OK = err == nil; !out.OK {
			out.Error = err.Error()
		}
		if a.json {
			if err := a.print(out, nil); err != nil {
				return err
			}
			if out.OK {
				return nil
			}
			return silent(exitFailed)
		}
		if err != nil {
			return &exitError{exitFailed, err}
		}
		return a.print(out, func(w io.Writer) { fmt.Fprintln(w, "ok") })
	})
	return cmd
}

func recovering(r swarm.Readiness) string {
	return fmt.Sprintf("recovering %d/%d", r.Recovered, r.Total)
}
