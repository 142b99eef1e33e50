package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/daemon"
	"github.com/alineod/alineod/internal/inside"
	"github.com/alineod/alineod/internal/telemetry"
)

// addServerCommands adds the commands that are no clients.
func addServerCommands(a *app, root *cobra.Command) {
	addTo(root, groupDaemon, newServe())
	addTo(root, groupDaemon, newDemo(a))
	root.AddCommand(inside.Commands()...)
}

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT. Every sandbox goes on when it ends, however
it ends; the next start takes them up again.

Settings come from flags, ALINEOD_… variables and the configuration file, in this
order; "alineod config check" shows them.` + exits("  0    it ended on a signal, everything written\n  1    it could not start, or the ledger could not be written\n  2    a setting is wrong\n  5    another daemon has the state directory"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return serve(ctx, config.FromProcess(c.Flags()))
		},
	}
	config.RegisterFlags(cmd.Flags())
	return cmd
}

func serve(ctx context.Context, from config.Sources) error {
	cfg, err := config.Load(from)
	if err != nil {
		return err
	}
	redactor := telemetry.NewRedactor(append([]string{cfg.Auth.Token}, cfg.Auth.ReadOnlyTokens...)...)
	log, err := telemetry.NewLogger(cfg.Log.Level, cfg.Log.Format, os.Stderr, isTerminal(os.Stderr), redactor.Option())
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // stderr cannot be synced everywhere
	d, err := daemon.New(ctx, cfg, daemon.Options{Version: version, Log: log, Redactor: redactor})
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Run(ctx)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
