package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/spf13/cobra"
)

// ledgerFile is the ledger's name in the state directory.
const ledgerFile = "ledger.db"

// ledgerReport is the --json output of ledger verify and rebuild.
type ledgerReport struct {
	Ledger      string   `json:"ledger"`
	Events      int64    `json:"events"`
	OK          bool     `json:"ok"`
	Differences []string `json:"differences"`
	Notes       []string `json:"notes"`
}

func ledgerCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "ledger",
		Short: "Verify or rebuild the ledger's projections",
	})
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Compare the projections with the log",
		Long: `Fold the whole log anew and compare it with the projections. Works on the state
directory, only reads, and may be done while the daemon runs.` + exits("  0    no differences\n  1    differences, or the file is damaged\n  4    no ledger there"),
		Args: cobra.NoArgs,
	}
	rebuild := &cobra.Command{
		Use:   "rebuild",
		Short: "Make the projections anew from the log",
		Long: `Replace the projections by a fresh fold of the log. The daemon must not run on that
state directory.` + exits("  0    rebuilt\n  1    events had to be set aside, or the file is damaged\n  4    no ledger there\n  5    a daemon runs on that state directory"),
		Args: cobra.NoArgs,
	}
	config.RegisterFlags(verify.Flags(), "stateDir")
	config.RegisterFlags(rebuild.Flags(), "stateDir")
	verify.RunE = a.onLedger(func(ctx context.Context, path string) (ledger.Report, error) {
		return ledger.VerifyFile(ctx, path)
	})
	rebuild.RunE = a.onLedger(rebuildLedger)
	cmd.AddCommand(verify, rebuild)
	return cmd
}

// onLedger makes the function of a command that works on the ledger's file.
func (a *app) onLedger(do func(ctx context.Context, path string) (ledger.Report, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		c, err := config.Load(a.sources(cmd))
		if err != nil {
			return err
		}
		path := filepath.Join(c.StateDir, ledgerFile)
		// Neither a typing error in the directory's name nor a look may make
		// a new ledger.
		if _, err := os.Stat(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fail(exitNotFound, "no ledger at %s; --state-dir names another state directory", path)
			}
			return fmt.Errorf("looking for the ledger: %w", err)
		}
		r, err := do(ctx, path)
		if err != nil {
			return err
		}
		if err := a.print(ledgerReport{path, r.Events, r.OK, list(r.Differences), list(r.Notes)}, func(w io.Writer) {
			state := "ok"
			if !r.OK {
				state = "differences"
			}
			fmt.Fprintf(w, "%s: %d events, %s\n", path, r.Events, state)
			for _, d := range r.Differences {
				fmt.Fprintf(w, "  %s\n", line(d))
			}
			for _, n := range r.Notes {
				fmt.Fprintf(w, "  note: %s\n", line(n))
			}
		}); err != nil {
			return err
		}
		if !r.OK {
			return silent(exitFailed)
		}
		return nil
	}
}

func rebuildLedger(ctx context.Context, path string) (_ ledger.Report, err error) {
	lock, err := ledger.Lock(filepath.Dir(path))
	if errors.Is(err, ledger.ErrLocked) {
		return ledger.Report{}, fail(exitConflict, "a daemon has the state directory; stop it first: %w", err)
	}
	if err != nil {
		return ledger.Report{}, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	l, err := ledger.Open(ctx, path, ledger.Options{})
	if err != nil {
		return ledger.Report{}, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return l.Rebuild(ctx)
}
