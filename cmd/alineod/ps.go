package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// finalStates are those an agent does not leave. `ps` leaves such agents out;
// stopped, crashed and lost ones can come back, and stay in the list.
var finalStates = []string{"aborted", "purged"}

// agentList is the --json output of ps.
type agentList struct {
	Agents []swarm.AgentView `json:"agents"`
}

func psCommand(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"ls"},
		Short:   "List agents",
		Long: `List the agents, oldest first; with -a also those that were aborted or purged.
A state in brackets says why the agent is held in it.` + exits("  0    listed, be there agents or not"),
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also aborted and purged agents")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, _ []string) error {
		agents, err := c.Agents(ctx)
		if err != nil {
			return err
		}
		if !all {
			agents = slices.DeleteFunc(agents, func(v swarm.AgentView) bool { return slices.Contains(finalStates, v.State) })
		}
		slices.SortStableFunc(agents, func(x, y swarm.AgentView) int { return int(x.CreatedAt - y.CreatedAt) })
		return a.print(agentList{list(agents)}, func(w io.Writer) {
			rows := [][]string{{"AGENT", "STATE", "OUTCOME", "TURN", "HARNESS", "NAME", "RUN", "AGE"}}
			for _, v := range agents {
				rows = append(rows, []string{
					v.AgentID, stateOf(v), deref(v.Outcome), fmt.Sprint(v.Turn), v.Harness, cut(v.SpecName, 30), v.RunID, a.age(v.CreatedAt),
				})
			}
			table(w, rows...)
		})
	})
	return cmd
}

func stateOf(v swarm.AgentView) string {
	if v.Recovering != "" {
		return v.State + " (" + v.Recovering + ")"
	}
	return v.State
}
