package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// promptedAndEnded is the --json output of prompt --wait.
type promptedAndEnded struct {
	swarm.PromptAnswer
	Result swarm.ResultView `json:"result"`
}

func promptCommand(a *app) *cobra.Command {
	var wait bool
	var key string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "prompt AGENT TEXT",
		Short: "Ask an agent for a turn",
		Long: `Ask an agent for a turn; - reads TEXT from stdin. A prompt while a turn runs is
queued. Prints the turn's id, or with --wait its result.` + exits(exitsTurn+"\n  5    the agent takes no prompts in its state"),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "print the turn's result when it has ended")
	cmd.Flags().StringVar(&key, "idempotency-key", "", idempotencyHelp)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --wait: wait no longer (0: for ever)")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		said, err := a.textOf(args[1])
		if err != nil {
			return err
		}
		if said == "" {
			return usage("the prompt is empty")
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		asked, err := c.Prompt(ctx, id, client.PromptRequest{Text: said, IdempotencyKey: key})
		if err != nil {
			return err
		}
		if !wait {
			return a.print(asked, func(w io.Writer) { fmt.Fprintln(w, asked.TurnID) })
		}
		result, err := a.await(ctx, c, id, asked.TurnID, timeout)
		if err != nil {
			return err
		}
		if err := a.print(promptedAndEnded{asked, result}, func(w io.Writer) { a.writeResult(w, result) }); err != nil {
			return err
		}
		return outcome(deref(result.Outcome))
	})
	return cmd
}
