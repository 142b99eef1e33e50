package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// permissionList is the --json output of permissions.
type permissionList struct {
	Permissions []swarm.PermissionView `json:"permissions"`
}

func permissionsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "permissions AGENT",
		Short:             "List what an agent asks permission for",
		Long:              `List the permission requests of an agent's harness. "answer" decides one.` + exits("  0    listed, be there any or not\n  4    no such agent"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		asked, err := c.Permissions(ctx, id)
		if err != nil {
			return err
		}
		return a.print(permissionList{list(asked)}, func(w io.Writer) {
			rows := [][]string{{"REQUEST", "STATE", "DECISION", "AGE", "TITLE"}}
			for _, p := range asked {
				rows = append(rows, []string{p.RequestID, p.State, p.Decision, a.age(p.RequestedAt), cut(p.Title, 80)})
			}
			table(w, rows...)
		})
	})
	return cmd
}

var decisions = []string{harness.DecisionOnce, harness.DecisionAlways, harness.DecisionReject}

func answerCommand(a *app) *cobra.Command {
	var feedback string
	cmd := &cobra.Command{
		Use:   "answer AGENT REQUEST " + strings.Join(decisions, "|"),
		Short: "Decide a permission request",
		Long: `Decide a permission request of an agent's harness. REQUEST may be abbreviated to a
unique prefix.` + exits("  0    decided\n  4    no such agent or request\n  5    decided before"),
		Args: cobra.ExactArgs(3),
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 2 {
			return decisions, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeAgent()(cmd, args, typed)
	}
	cmd.Flags().StringVar(&feedback, "feedback", "", "what to tell the agent with it")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if !harness.ValidDecision(args[2]) {
			return usage("%q is none of %s", args[2], strings.Join(decisions, ", "))
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		// Ids of requests are the harness's own and long; a person types the
		// beginning of one.
		asked, err := c.Permissions(ctx, id)
		if err != nil {
			return err
		}
		known := make([]string, len(asked))
		for i, p := range asked {
			known[i] = p.RequestID
		}
		request, err := complete("permission request", args[1], known)
		if err != nil {
			return err
		}
		answer, err := c.Answer(ctx, id, request, client.AnswerRequest{Decision: args[2], Feedback: feedback})
		if err != nil {
			return err
		}
		return a.print(answer, func(w io.Writer) { fmt.Fprintln(w, line(words(answer.RequestID, answer.State, answer.Decision))) })
	})
	return cmd
}
