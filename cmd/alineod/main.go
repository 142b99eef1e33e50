// Command alineod keeps a swarm of coding agents alive. `serve` is the daemon;
// the other commands are its clients, one file each.
package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/jonboulle/clockwork"
	"github.com/spf13/cobra"
)

// version is set when a release is built: -ldflags "-X main.version=…".
var version = "dev"

func main() { os.Exit(Execute()) }

// Execute runs the command line of this process and returns its exit code.
func Execute() int {
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		getenv: os.Getenv, environ: os.Environ, clock: clockwork.NewRealClock(),
	}
	return a.execute(context.Background(), os.Args[1:])
}

// execute runs one command line.
func (a *app) execute(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return a.report(cmd, err)
}

// newRoot is the whole tree of commands.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "alineod",
		Short: "Keep a swarm of coding agents alive",
		Long: `alineod runs coding agents in sandboxes and keeps them alive: through the death
of the daemon, of their bridges and of their sandboxes.

Start the daemon with "alineod serve"; the other commands talk to it. Ids may be
abbreviated to a unique prefix. Data goes to stdout, messages to stderr.

Exit codes:
` + exitCodes,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.host, "host", "", "the daemon: http://HOST:PORT or unix:///path (default $"+envHost+", else "+defaultHost+")")
	flags.StringVar(&a.token, "token", "", "bearer token (default $"+envToken+")")
	flags.BoolVar(&a.json, "json", false, "print data as JSON")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "no messages but errors")
	root.AddGroup(
		&cobra.Group{ID: groupDaemon, Title: "The daemon:"},
		&cobra.Group{ID: groupAgents, Title: "Agents:"},
		&cobra.Group{ID: groupBack, Title: "Coming back:"},
	)
	for _, add := range []func(*app) *cobra.Command{
		runCommand, psCommand, inspectCommand, promptCommand, steerCommand, logsCommand, resultCommand,
		transcriptCommand, stopCommand, pauseCommand, unpauseCommand, permissionsCommand, answerCommand, execCommand,
		spawnCommand, awaitCommand, notifyCommand, inboxCommand, memoryCommand,
	} {
		addTo(root, groupAgents, add(a))
	}
	for _, add := range []func(*app) *cobra.Command{
		reviveCommand, recoverCommand, checkpointCommand, reattachCommand, resumeCommand, attachCommand,
	} {
		addTo(root, groupBack, add(a))
	}
	for _, add := range []func(*app) *cobra.Command{
		healthCommand, reconcileCommand, ledgerCommand, configCommand, specCommand, versionCommand,
	} {
		addTo(root, groupDaemon, add(a))
	}
	addServerCommands(a, root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	argumentsAreUsage(root)
	return root
}

// The groups of the root's help.
const (
	groupDaemon = "daemon"
	groupAgents = "agents"
	groupBack   = "back"
)

func addTo(root *cobra.Command, group string, cmd *cobra.Command) {
	cmd.GroupID = group
	root.AddCommand(cmd)
}

// argumentsAreUsage gives the errors of arguments their exit code.
func argumentsAreUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage("%w; see `%s --help`", err, cmd.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		argumentsAreUsage(sub)
	}
}

// group makes a command that only has others below it. cobra would answer a
// mistyped one with help and success.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		one := strings.Join(names, ", ")
		if len(args) == 0 {
			return usage("%s: give one of %s", cmd.CommandPath(), one)
		}
		return usage("%s: %q is none of %s", cmd.CommandPath(), args[0], one)
	}
	return cmd
}

// app is what the commands share.
type app struct {
	host, token string
	json, quiet bool

	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	environ  func() []string
	clock    clockwork.Clock
}
