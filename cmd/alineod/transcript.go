package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/spf13/cobra"
)

func transcriptCommand(a *app) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:               "transcript AGENT",
		Short:             "Print what was said in an agent's turns",
		Long:              `Print the messages of an agent's turns. Long texts are cut unless --full is given.` + exits("  0    printed\n  4    no such agent"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().BoolVar(&full, "full", false, "whole texts, and with --json whole messages")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		said, err := c.Transcript(ctx, id, full)
		if err != nil {
			return err
		}
		said.Turns = list(said.Turns)
		return a.print(said, func(w io.Writer) {
			for i, turn := range said.Turns {
				if i > 0 {
					fmt.Fprintln(w)
				}
				outcome := turn.Outcome
				if outcome == "" {
					outcome = "open"
				}
				fmt.Fprintf(w, "turn %d, %s, %s\n", turn.Turn, when(turn.TS), line(outcome))
				for _, m := range turn.Messages {
					if m.Text == "" {
						continue // it only calls tools
					}
					cut := ""
					if m.Truncated {
						cut = " …"
					}
					fmt.Fprintf(w, "%s: %s%s\n", line(m.Role), text(m.Text), cut)
				}
			}
		})
	})
	return cmd
}
