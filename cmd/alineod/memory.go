package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// memoryList is the --json output of memory ls.
type memoryList struct {
	AgentID string             `json:"agentId"`
	Entries []swarm.MemoryView `json:"entries"`
}

func memoryCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "memory",
		Short: "See and change what an agent remembers",
		Long:  "An agent remembers JSON values by key. A child starts with a copy of its parent's.",
	})
	add := func(use, short, more string, args cobra.PositionalArgs, run func(ctx context.Context, c *client.Client, id string, args []string) error) {
		sub := &cobra.Command{Use: use, Short: short, Args: args, ValidArgsFunction: a.completeAgent(),
			Long: short + "." + more + exits("  0    done\n  4    no such agent or key")}
		sub.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := agentID(ctx, c, args[0])
			if err != nil {
				return err
			}
			return run(ctx, c, id, args[1:])
		})
		cmd.AddCommand(sub)
	}
	add("ls AGENT", "List what an agent remembers", "", cobra.ExactArgs(1), func(ctx context.Context, c *client.Client, id string, _ []string) error {
		all := memoryList{AgentID: id, Entries: []swarm.MemoryView{}}
		for after := ""; ; {
			page, err := c.Memories(ctx, id, after)
			if err != nil {
				return err
			}
			all.Entries = append(all.Entries, page.Entries...)
			if after = page.Next; after == "" {
				break
			}
		}
		return a.print(all, func(w io.Writer) {
			rows := [][]string{{"KEY", "AGE", "VALUE"}}
			for _, m := range all.Entries {
				rows = append(rows, []string{m.Key, a.age(m.UpdatedAt), cut(compact(m.Value), 80)})
			}
			table(w, rows...)
		})
	})
	add("get AGENT KEY", "Print one value", "", cobra.ExactArgs(2), func(ctx context.Context, c *client.Client, id string, args []string) error {
		m, err := c.Memory(ctx, id, args[0])
		if err != nil {
			return err
		}
		return a.print(m, func(w io.Writer) { fmt.Fprintln(w, plain(m.Value)) })
	})
	add("set AGENT KEY VALUE", "Remember a value", " VALUE is JSON, or else a text; - reads it from stdin.", cobra.ExactArgs(3),
		func(ctx context.Context, c *client.Client, id string, args []string) error {
			value, err := a.textOf(args[1])
			if err != nil {
				return err
			}
			raw := json.RawMessage(value)
			if !json.Valid(raw) {
				if raw, err = json.Marshal(value); err != nil {
					return usage("the value: %w", err)
				}
			}
			m, err := c.Remember(ctx, id, args[0], raw)
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { fmt.Fprintln(w, line(m.Key)) })
		})
	add("rm AGENT KEY", "Forget a value", " One that is not there is no error.", cobra.ExactArgs(2), func(ctx context.Context, c *client.Client, id string, args []string) error {
		return c.Forget(ctx, id, args[0])
	})
	return cmd
}
