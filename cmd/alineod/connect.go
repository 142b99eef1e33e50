package main

import (
	"cmp"
	"context"
	"os/signal"
	"syscall"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

const (
	envHost     = "ALINEOD_HOST"
	envToken    = "ALINEOD_TOKEN"
	defaultHost = client.DefaultHost
	// self is, inside a sandbox, its own agent.
	self = "self"
)

// connect makes the client that the flags and the environment describe.
func (a *app) connect() *client.Client {
	host, token := cmp.Or(a.host, a.getenv(envHost)), cmp.Or(a.token, a.getenv(envToken))
	if socket := a.getenv(bridge.EnvSocket); host == "" && socket != "" { // inside a sandbox
		host, token = "unix://"+socket, cmp.Or(token, a.getenv(bridge.EnvToken))
	}
	c := client.New(cmp.Or(host, defaultHost), token)
	c.Clock = a.clock
	return c
}

// with makes the function of a command that talks to a daemon. The signals are
// caught here and not at the root: a command that is no client, as the bridge,
// has its own way with them.
func (a *app) with(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		c := a.connect()
		defer c.Close()
		for i, arg := range args {
			if me := a.getenv(bridge.EnvAgent); arg == self && me != "" {
				args[i] = me
			}
		}
		return do(ctx, c, args)
	}
}
