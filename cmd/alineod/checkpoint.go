package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func checkpointCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "checkpoint",
		Short: "Work with an agent's checkpoints",
		Long:  `A checkpoint is an agent's home directory after a turn that ended cleanly.`,
	})
	cmd.AddCommand(checkpointLs(a), checkpointTake(a), checkpointRestore(a), checkpointExport(a), checkpointImport(a))
	return cmd
}

// checkpointList is the --json output of checkpoint ls.
type checkpointList struct {
	Checkpoints []swarm.CheckpointView `json:"checkpoints"`
}

func checkpointLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "ls AGENT",
		Short:             "List checkpoints",
		Long:              `List the checkpoints that are kept of an agent.` + exits("  0    listed, be there any or not\n  4    no such agent"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		kept, err := c.Checkpoints(ctx, id)
		if err != nil {
			return err
		}
		return a.print(checkpointList{list(kept)}, func(w io.Writer) {
			rows := [][]string{{"TURN", "TAKEN", "SIZE", "FILES", "SANDBOX", "NOTE"}}
			for _, k := range kept {
				rows = append(rows, checkpointRow(k))
			}
			table(w, rows...)
		})
	})
	return cmd
}

func checkpointRow(k swarm.CheckpointView) []string {
	note := ""
	if k.Imported {
		note = "imported"
	}
	if k.Damaged != "" {
		note = words(note, "damaged: "+k.Damaged)
	}
	return []string{strconv.Itoa(k.Turn), when(k.TakenAt), size(k.Bytes), fmt.Sprint(k.Files), k.SandboxID, note}
}

// writeCheckpoint says which checkpoint was made.
func writeCheckpoint(w io.Writer, k swarm.CheckpointView) {
	fmt.Fprintln(w, line(words(turn(k.Turn), k.SnapshotRef, fmt.Sprintf("%d files, %s", k.Files, size(k.Bytes)))))
}

func checkpointTake(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "take AGENT",
		Short:             "Take a checkpoint now",
		Long:              `Take a checkpoint of an agent that is between two turns.` + exits("  0    taken\n  4    no such agent\n  5    a turn runs, or there is no sandbox"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		taken, err := c.TakeCheckpoint(ctx, id)
		if err != nil {
			return err
		}
		return a.print(taken, func(w io.Writer) { writeCheckpoint(w, taken) })
	})
	return cmd
}

func checkpointRestore(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore AGENT TURN",
		Short: "Roll an agent back to a checkpoint",
		Long: `Roll an agent back to the checkpoint of a turn, in a new sandbox. The old one is
kept stopped until the next turn ends.` + exits("  0    rolled back\n  4    no such agent or checkpoint\n  5    a turn runs"),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		n, err := turnNumber(args[1])
		if err != nil {
			return err
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		back, err := c.RestoreCheckpoint(ctx, id, n)
		if err != nil {
			return err
		}
		return a.print(back, func(w io.Writer) { writeBack(w, back) })
	})
	return cmd
}

func turnNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, usage("%q is not the number of a turn", s)
	}
	return n, nil
}
