package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/spec"
	"github.com/spf13/cobra"
)

// specReport is the --json output of spec check.
type specReport struct {
	OK       bool           `json:"ok"`
	Problems []spec.Problem `json:"problems"`
	Warnings []spec.Warning `json:"warnings"`
}

func specCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "spec",
		Short: "Check a spec, or print the schema of specs",
	})
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a spec",
		Long: `Read a spec, a file or - for stdin, and say all that is wrong with it. Needs no
daemon.` + exits("  0    it can be used, perhaps with warnings\n  2    it cannot"),
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := a.read(args[0], maxSpec)
			if err != nil {
				return err
			}
			_, warnings, err := spec.Parse(data)
			var wrong *spec.Error
			if err != nil && !errors.As(err, &wrong) {
				return err
			}
			for _, w := range warnings {
				a.say("warning: %s", line(w.String()))
			}
			if wrong == nil {
				return a.print(specReport{true, []spec.Problem{}, list(warnings)}, func(w io.Writer) {
					fmt.Fprintf(w, "%s: ok\n", args[0])
				})
			}
			if !a.json {
				return err
			}
			if err := a.print(specReport{false, wrong.Problems, list(warnings)}, nil); err != nil {
				return err
			}
			return silent(exitUsage)
		},
	}
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of specs",
		Long:  `Print the JSON Schema of specs, for editors and validators. Needs no daemon.` + exits("  0    printed"),
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.out.Write(spec.Schema()); err != nil {
				return fmt.Errorf("writing the schema: %w", err)
			}
			return nil
		},
	}
	cmd.AddCommand(check, schema)
	return cmd
}
