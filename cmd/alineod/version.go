package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

// shortWait is how long a daemon may take to say that it is there. It is below
// the five seconds after which health checks commonly end their command, so
// that the reason is still told.
const shortWait = 3 * time.Second

// versions is the --json output of version. Daemon is what the daemon says of
// itself, null where none answers.
type versions struct {
	Client struct {
		Version string `json:"version"`
	} `json:"client"`
	Daemon json.RawMessage `json:"daemon"`
}

func versionCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of client and daemon",
		Long:  `Print this program's version, and the daemon's if one answers.` + exits("  0    printed, be there a daemon or not"),
		Args:  cobra.NoArgs,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, _ []string) error {
		inner, cancel := context.WithTimeout(ctx, shortWait)
		defer cancel()
		var out versions
		out.Client.Version = version
		daemon, err := c.Version(inner)
		switch {
		case err == nil:
			out.Daemon = daemon.Raw
		case errors.Is(err, client.ErrAddress) || ctx.Err() != nil:
			return err
		case !errors.Is(err, client.ErrNoDaemon):
			a.say("the daemon does not say its version: %s", line(err.Error()))
		}
		return a.print(out, func(w io.Writer) {
			fmt.Fprintf(w, "client  %s\n", version)
			if err != nil {
				fmt.Fprintf(w, "daemon  none at %s\n", c.Address())
				return
			}
			fmt.Fprintf(w, "daemon  %s at %s\n", line(daemon.Version), c.Address())
		})
	})
	return cmd
}
