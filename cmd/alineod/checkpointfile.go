package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

// exported is the --json output of checkpoint export to a file.
type exported struct {
	AgentID string `json:"agentId"`
	Turn    int    `json:"turn"`
	File    string `json:"file"`
	Bytes   int64  `json:"bytes"`
}

func checkpointExport(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "export AGENT [TURN]",
		Short: "Write a checkpoint as a plain tar",
		Long: `Write the checkpoint of a turn, or the newest, as a plain tar: to stdout, or to a
file, which is complete or not there.` + exits("  0    written\n  4    no such agent or checkpoint"),
		Example:           `  alineod checkpoint export a_12ab | tar t`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "-", "the file; - for stdout")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		n := -1
		if len(args) > 1 {
			var err error
			if n, err = turnNumber(args[1]); err != nil {
				return err
			}
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		if n < 0 {
			if n, err = newestCheckpoint(ctx, c, id); err != nil {
				return err
			}
		}
		archive, err := c.ExportCheckpoint(ctx, id, n)
		if err != nil {
			return err
		}
		defer archive.Close()
		if file == "-" {
			// What has gone out cannot be taken back: only the exit code tells
			// a pipe that the tar is cut short.
			if _, err := io.Copy(a.out, archive); err != nil {
				return fmt.Errorf("exporting the checkpoint: %w", err)
			}
			return nil
		}
		written, err := writeFile(file, archive)
		if err != nil {
			return fmt.Errorf("exporting the checkpoint: %w", err)
		}
		return a.print(exported{id, n, file, written}, func(w io.Writer) {
			fmt.Fprintf(w, "%s: turn %d, %s\n", file, n, size(written))
		})
	})
	return cmd
}

func newestCheckpoint(ctx context.Context, c *client.Client, id string) (int, error) {
	kept, err := c.Checkpoints(ctx, id)
	if err != nil {
		return 0, err
	}
	newest, at := -1, int64(-1)
	for _, k := range kept {
		if k.Damaged == "" && k.TakenAt >= at {
			newest, at = k.Turn, k.TakenAt
		}
	}
	if newest < 0 {
		return 0, fail(exitNotFound, "%s has no checkpoint", id)
	}
	return newest, nil
}

// writeFile writes all of r to a file under a temporary name, so that a broken
// connection leaves nothing that looks like a checkpoint.
func writeFile(name string, r io.Reader) (n int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	return n, err
}

func checkpointImport(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import AGENT FILE",
		Short: "Give an agent a checkpoint from a tar",
		Long: `Give an agent a checkpoint from a plain tar, a file or - for stdin. It becomes the
newest; "checkpoint restore" rolls back to it.` + exits("  0    taken in\n  2    not a tar that can be taken\n  4    no such agent"),
		Args: cobra.ExactArgs(2),
	}
	cmd.ValidArgsFunction = a.completing(agentIDs, cobra.ShellCompDirectiveDefault)
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		in := a.in
		if args[1] != "-" {
			f, err := os.Open(args[1])
			if err != nil {
				return usage("%w", err)
			}
			defer f.Close()
			in = f
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		taken, err := c.ImportCheckpoint(ctx, id, in)
		if err != nil {
			return err
		}
		return a.print(taken, func(w io.Writer) { writeCheckpoint(w, taken) })
	})
	return cmd
}
