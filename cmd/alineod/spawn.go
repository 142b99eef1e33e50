package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

func spawnCommand(a *app) *cobra.Command {
	var prompt, name, key string
	var waitFor []string
	cmd := &cobra.Command{
		Use:   "spawn [PARENT] SPEC",
		Short: "Start an agent below another one",
		Long: `Start an agent in a fork of another one's sandbox, and print its id. PARENT's spec
must allow it (spawnDepth). With --wait-for it is held until those have settled,
and finds their results where ALINEO_INPUTS says. Inside a sandbox PARENT is its own
agent where none is given.` + exits("  0    accepted; an agent that a budget refuses ends with the outcome budget-exceeded\n  4    no such agent\n  5    PARENT is not live"),
		Example: `  alineod spawn a_12ab worker.json -p "test the parser"
  alineod spawn a_12ab gather.json -p "sum up" --wait-for a_34cd --wait-for a_56ef
  alineod spawn a_12ab gather.json -p "sum up" --wait-for '{"agents": ["a_34cd…"], "mode": "any"}'`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeAgent(),
	}
	flags := cmd.Flags()
	flags.StringVarP(&prompt, "prompt", "p", "", "the first prompt; - reads it from stdin")
	flags.StringVar(&name, "name", "", "name of the agent, instead of the spec's")
	flags.StringArrayVar(&waitFor, "wait-for", nil, "an agent that must settle first, again for more; or a JSON object")
	flags.StringVar(&key, "idempotency-key", "", idempotencyHelp)
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) == 1 {
			me := a.getenv(bridge.EnvAgent)
			if me == "" {
				return usage("name the agent to spawn from")
			}
			args = []string{me, args[0]}
		}
		if args[1] == "-" && prompt == "-" {
			return usage("the spec and the prompt cannot both come from stdin")
		}
		run, parent, err := agentOrRun(ctx, c, args[0])
		if err != nil {
			return err
		}
		if parent == "" {
			return usage("%s is a run: name the agent to spawn from", args[0])
		}
		spec, err := a.readSpec(args[1], name)
		if err != nil {
			return err
		}
		if prompt, err = a.textOf(prompt); err != nil {
			return err
		}
		wish, err := waitForOf(ctx, c, waitFor)
		if err != nil {
			return err
		}
		spawned, err := c.Spawn(ctx, run, client.SpawnRequest{ParentAgentID: parent, Spec: spec, Prompt: prompt, WaitFor: wish, IdempotencyKey: key})
		if err != nil {
			return err
		}
		for _, w := range spawned.Warnings {
			a.say("warning: %s", line(w.String()))
		}
		return a.print(spawned, func(w io.Writer) { fmt.Fprintln(w, spawned.AgentID) })
	})
	return cmd
}

// waitForOf makes a request's field of the flags: ids, which may be
// abbreviated, or one JSON object as it is.
func waitForOf(ctx context.Context, c *client.Client, flags []string) (json.RawMessage, error) {
	if len(flags) == 0 {
		return nil, nil
	}
	if len(flags) == 1 && strings.HasPrefix(strings.TrimSpace(flags[0]), "{") {
		if !json.Valid([]byte(flags[0])) {
			return nil, usage("--wait-for: %q is no JSON", flags[0])
		}
		return json.RawMessage(flags[0]), nil
	}
	all := make([]string, len(flags))
	for i, id := range flags {
		var err error
		if all[i], err = agentID(ctx, c, id); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

func awaitCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "await AGENT",
		Short: "Wait until an agent and all below it are at rest",
		Long: `Wait until an agent and all that is below it have nothing left to do, and list
them. A daemon that dies meanwhile is waited for.` + exits("  0    at rest\n  4    no such agent\n  124  not at rest within --timeout"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAgent(),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait no longer (0: for ever)")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := agentID(ctx, c, args[0])
		if err != nil {
			return err
		}
		var view swarm.SubtreeView
		if _, err := a.patiently(ctx, timeout, func(wait time.Duration) (bool, error) {
			view, err = c.Subtree(ctx, id, wait)
			return view.Quiescent, err
		}); err != nil {
			return err
		}
		if err := a.print(view, func(w io.Writer) {
			rows := [][]string{{"AGENT", "STATE", "OUTCOME"}}
			for _, m := range view.Members {
				rows = append(rows, []string{m.AgentID, m.State, deref(m.Outcome)})
			}
			table(w, rows...)
		}); err != nil {
			return err
		}
		if !view.Quiescent {
			return fail(exitTimeout, "%s and those below it are not at rest within %v", id, timeout)
		}
		return nil
	})
	return cmd
}
