package main

import (
	"context"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func notifyCommand(a *app) *cobra.Command {
	var on []string
	var r client.NotifyRequest
	cmd := &cobra.Command{
		Use:   "notify AGENT --on OTHER",
		Short: "Have an agent told when others settle",
		Long: `Have an agent told when others of its run settle, of each once; at once of those
that are settled. It is told in the turn that runs, else with its next prompt.` + exits("  0    done\n  2    OTHER is AGENT itself, or of another run\n  4    no such agent"),
		Example: `  alineod notify a_12ab --on a_34cd --on a_56ef --wake`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeAgent(),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&on, "on", nil, "an agent it is to be told about; again for more")
	flags.BoolVar(&r.Wake, "wake", false, "tell it in a turn of its own where it is idle")
	flags.StringVar(&r.IdempotencyKey, "idempotency-key", "", idempotencyHelp)
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if len(on) == 0 {
			return usage("name at least one agent with --on")
		}
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		for _, other := range on {
			full, err := agentID(ctx, c, other)
			if err != nil {
				return err
			}
			r.Agents = append(r.Agents, full)
		}
		answer, err := c.NotifyOn(ctx, id, r)
		if err != nil {
			return err
		}
		return a.print(answer, func(w io.Writer) {
			for _, other := range answer.Subscribed {
				fmt.Fprintln(w, other)
			}
		})
	})
	return cmd
}

func inboxCommand(a *app) *cobra.Command {
	var deliver bool
	cmd := &cobra.Command{
		Use:   "inbox AGENT",
		Short: "See what an agent is to be told, and what it was",
		Long: `See what an agent is to be told of others, and what it was. With --deliver it is
told now, where it can be: in the turn that runs, or in one of its own.` + exits("  0    done\n  4    no such agent"),
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().BoolVar(&deliver, "deliver", false, "tell it now, and print how: steer, turn, held, dropped or none")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		if deliver {
			answer, err := c.DeliverInbox(ctx, id)
			if err != nil {
				return err
			}
			return a.print(answer, func(w io.Writer) { fmt.Fprintln(w, answer.Delivery) })
		}
		view, err := c.Inbox(ctx, id)
		if err != nil {
			return err
		}
		return a.print(view, func(w io.Writer) {
			rows := [][]string{{"ITEM", "AGE", "FROM", "DELIVERY", "TEXT"}}
			for _, items := range [][]swarm.InboxItem{view.Delivered, view.Pending} {
				for _, i := range items {
					rows = append(rows, []string{fmt.Sprint(i.Item), a.age(i.QueuedAt), i.From, i.Delivery, cut(line(i.Text), 80)})
				}
			}
			table(w, rows...)
		})
	})
	return cmd
}
