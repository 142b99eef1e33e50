package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func execCommand(a *app) *cobra.Command {
	var r swarm.ExecRequest
	var env []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "exec AGENT -- CMD [ARG…]",
		Short: "Run a command in an agent's sandbox",
		Long: `Run a command in an agent's sandbox and print what it wrote, to stdout and to
stderr, as it is and when it has ended. The exit code is the command's own, with
--json too; a daemon that refuses or is not there ends as everywhere.` + exits("  N    the command's own"),
		Example: `  alineod exec a_12ab -- git status`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("give an agent and a command: alineod exec AGENT -- CMD")
			}
			return nil
		},
		ValidArgsFunction: a.completeAgent(),
	}
	flags := cmd.Flags()
	flags.StringVarP(&r.Cwd, "cwd", "C", "", "directory to run it in")
	flags.StringVarP(&r.User, "user", "u", "", "user to run it as")
	flags.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE for its environment, repeatable")
	flags.DurationVar(&timeout, "timeout", 0, "end it after that, in whole seconds (0: the daemon's default)")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		for _, pair := range env {
			name, value, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return usage("--env: %q is not NAME=VALUE", pair)
			}
			if r.Env == nil {
				r.Env = map[string]string{}
			}
			r.Env[name] = value
		}
		if timeout < 0 {
			return usage("--timeout: %v is negative", timeout)
		}
		r.TimeoutSec = int((timeout + time.Second - 1) / time.Second)
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		r.Command = args[1:]
		answer, err := c.Exec(ctx, id, r)
		if err != nil {
			return err
		}
		if err := a.print(answer, func(w io.Writer) {
			// As it is: what a command writes may be no text at all.
			io.WriteString(w, answer.Stdout) // w remembers its error
			io.WriteString(a.err, answer.Stderr)
		}); err != nil {
			return err
		}
		if answer.Truncated {
			a.say("alineod: the output was longer than 1 MiB and is cut")
		}
		return silent(answer.ExitCode)
	})
	return cmd
}
