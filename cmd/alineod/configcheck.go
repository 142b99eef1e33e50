package main

import (
	"errors"
	"io"
	"os"

	"github.com/alineod/alineod/internal/config"
	"github.com/spf13/cobra"
)

// sources is where a command reads the daemon's configuration from.
func (a *app) sources(cmd *cobra.Command) config.Sources {
	return config.Sources{OptionalFile: config.SystemFile, Environ: a.environ(), Flags: cmd.Flags(), UID: os.Geteuid()}
}

// configReport is the --json output of config check.
type configReport struct {
	OK       bool             `json:"ok"`
	Settings []config.Setting `json:"settings"`
	Problems []config.Problem `json:"problems"`
}

func configCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "config",
		Short: "Check the daemon's configuration",
	})
	check := &cobra.Command{
		Use:   "check",
		Short: "Say what the daemon would run with, or what is wrong",
		Long: `Read the configuration as "serve" would, with the same file, variables and flags,
and print each setting with its origin, or all that is wrong with them. Needs no
daemon.` + exits("  0    it can be used\n  2    it cannot"),
		Args: cobra.NoArgs,
	}
	config.RegisterFlags(check.Flags())
	check.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(a.sources(cmd))
		if err != nil {
			var wrong *config.Error
			if !errors.As(err, &wrong) {
				return usage("%w", err)
			}
			if !a.json {
				return err
			}
			if err := a.print(configReport{false, []config.Setting{}, wrong.Problems}, nil); err != nil {
				return err
			}
			return silent(exitUsage)
		}
		settings := c.Describe()
		return a.print(configReport{true, settings, []config.Problem{}}, func(w io.Writer) {
			rows := [][]string{{"SETTING", "VALUE", "FROM"}}
			for _, s := range settings {
				rows = append(rows, []string{s.Key, s.Value, s.Source})
			}
			table(w, rows...)
		})
	}
	cmd.AddCommand(check)
	return cmd
}
