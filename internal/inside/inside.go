// Package inside is what a program that keeps agents is inside their sandboxes:
// the first process, the bridge, and the harness that is built in. The daemon's
// executable is put into each sandbox and called there by these commands.
package inside

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/harness/scripted"
	"github.com/alineod/alineod/internal/runtime"
)

// Commands are the commands of the program inside a sandbox. People have no use
// for them.
func Commands() []*cobra.Command { return []*cobra.Command{newBridge(), newScripted()} }

// Main runs one of the commands if that is what args, without the program's
// name, ask for; handled is false if they do not.
func Main(args []string) (exitCode int, handled bool) {
	if len(args) == 0 || args[0] != runtime.BridgeCommand && args[0] != scripted.Subcommand {
		return 0, false
	}
	root := &cobra.Command{Use: filepath.Base(os.Args[0]), SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		return 1, true
	}
	return 0, true
}

func newBridge() *cobra.Command {
	cmd := &cobra.Command{Use: runtime.BridgeCommand, Short: "Run inside a sandbox", Hidden: true}
	var where runtime.InitCommand
	flags := func(c *cobra.Command) *cobra.Command {
		c.Args = cobra.NoArgs
		f := c.Flags()
		f.StringVar(&where.SandboxID, "sandbox", "", "the sandbox's id")
		f.StringVar(&where.Dir, "dir", "", "directory of socket and journal")
		f.StringVar(&where.Home, "home", "", "home of the harness")
		f.StringVar(&where.User, "user", "", "user of the harness")
		f.StringVar(&where.Workdir, "workdir", "", "where the harness starts")
		return c
	}
	cmd.AddCommand(
		flags(&cobra.Command{Use: "init", Short: "Be the first process of a sandbox", RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			args := where.Args()
			args[1] = "serve"
			return bridge.RunInit(c.Context(), bridge.InitConfig{SandboxID: where.SandboxID, Dir: where.Dir, Self: self, Args: args, Log: bridgeLog()})
		}}),
		flags(&cobra.Command{Use: "serve", Short: "Be the bridge", RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return bridge.Serve(ctx, bridge.ServerConfig{SandboxID: where.SandboxID, Dir: where.Dir, Home: where.Home, User: where.User,
				Workdir: where.Workdir, Self: self, Harnesses: registry.Get, Pack: packHome, Unpack: unpackHome, Log: bridgeLog()})
		}}),
		flags(&cobra.Command{Use: "dial", Short: "Connect stdin and stdout with the bridge", RunE: func(c *cobra.Command, _ []string) error {
			return bridge.DialStdio(c.Context(), where.Dir, c.InOrStdin(), c.OutOrStdout())
		}}),
		&cobra.Command{Use: "run", Short: "Become a command that may be killed for memory", RunE: func(c *cobra.Command, args []string) error {
			code, err := runtime.RunCommand(args)
			fmt.Fprintln(c.ErrOrStderr(), "alineod:", err)
			os.Exit(code)
			return nil
		}},
	)
	return cmd
}

// bridgeLog goes to the sandbox's own log. Only what is out of the ordinary is
// worth a line there.
func bridgeLog() *zap.Logger {
	c := zap.NewProductionConfig()
	c.Level = zap.NewAtomicLevelAt(zap.WarnLevel)
	c.Sampling = nil
	log, err := c.Build()
	if err != nil {
		return zap.NewNop()
	}
	return log
}

func packHome(ctx context.Context, w io.Writer, req bridge.PackRequest) (bridge.ArchiveStats, error) {
	stats, err := archive.Pack(ctx, w, archive.PackOptions{Home: req.Home, Paths: req.Paths, Exclude: req.Exclude})
	return bridge.ArchiveStats{Files: stats.Files, Bytes: stats.Bytes}, err
}

func unpackHome(ctx context.Context, r io.Reader, req bridge.UnpackRequest) (bridge.ArchiveStats, error) {
	stats, err := archive.Unpack(ctx, r, archive.UnpackOptions{Home: req.Home, Paths: req.Paths})
	return bridge.ArchiveStats{Files: stats.Files, Bytes: stats.Bytes}, err
}

// newScripted is the harness that is built in.
func newScripted() *cobra.Command {
	return &cobra.Command{Use: scripted.Subcommand, Short: "The built-in harness", Hidden: true, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if code := scripted.Main(ctx, args, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()); code != 0 {
				os.Exit(code)
			}
			return nil
		}}
}
