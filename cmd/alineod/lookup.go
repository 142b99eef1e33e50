package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

// fullID is the length of an identifier that New of package ids makes. A
// shorter one may be an abbreviation.
const fullID = 14

// whole reports whether id needs no completing.
func whole(kind, id string) bool { return len(id) >= fullID && ids.Valid(kind, id) }

// agentID completes an abbreviated agent's id.
func agentID(ctx context.Context, c *client.Client, id string) (string, error) {
	// Scripts use whole ids: no list of all agents for them.
	if whole(ids.Agent, id) {
		return id, nil
	}
	agents, err := c.Agents(ctx)
	if err != nil {
		return "", err
	}
	return complete("agent", id, agentIDs(agents))
}

// sandboxID completes an abbreviated sandbox's id among those in use. An older
// sandbox's id must be given whole.
func sandboxID(ctx context.Context, c *client.Client, id string) (string, error) {
	if whole(ids.Sandbox, id) {
		return id, nil
	}
	agents, err := c.Agents(ctx)
	if err != nil {
		return "", err
	}
	return complete("sandbox", id, sandboxIDs(agents))
}

// agentOrRun completes an id of either kind. agent is empty for a run.
func agentOrRun(ctx context.Context, c *client.Client, id string) (run, agent string, err error) {
	if whole(ids.Run, id) {
		return id, "", nil
	}
	if whole(ids.Agent, id) {
		view, err := c.Agent(ctx, id)
		return view.RunID, id, err
	}
	agents, err := c.Agents(ctx)
	if err != nil {
		return "", "", err
	}
	var known []string
	for _, v := range agents {
		known = append(known, v.AgentID, v.RunID)
	}
	full, err := complete("agent or run", id, known)
	if err != nil {
		return "", "", err
	}
	for _, v := range agents {
		if v.AgentID == full {
			return v.RunID, full, nil
		}
	}
	return full, "", nil
}

// complete finds the one id that begins with prefix, which may leave out the
// kind.
func complete(what, prefix string, known []string) (string, error) {
	if prefix == "" {
		return "", usage("the id of the %s is empty", what)
	}
	slices.Sort(known)
	var found []string
	for _, id := range slices.Compact(known) {
		_, digits, _ := strings.Cut(id, "_")
		switch {
		case id == prefix: // even where it begins another
			return id, nil
		case strings.HasPrefix(id, prefix), strings.HasPrefix(digits, prefix):
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fail(exitNotFound, "no %s %q", what, prefix)
	case 1:
		return found[0], nil
	}
	const shown = 5
	rest := ""
	if len(found) > shown {
		rest = fmt.Sprintf(" and %d more", len(found)-shown)
		found = found[:shown]
	}
	return "", usage("%q is not unique: it begins %s%s", prefix, strings.Join(found, ", "), rest)
}

func agentIDs(agents []swarm.AgentView) []string {
	out := make([]string, len(agents))
	for i, v := range agents {
		out[i] = v.AgentID
	}
	return out
}

func sandboxIDs(agents []swarm.AgentView) []string {
	var out []string
	for _, v := range agents {
		if v.SandboxID != nil {
			out = append(out, *v.SandboxID)
		}
	}
	return out
}

type completion = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective)

// completing makes the shell's completion of a command's first argument from
// the daemon's agents. Without a daemon there is none, and no message: the
// user is in the middle of a line.
func (a *app) completing(pick func([]swarm.AgentView) []string, then cobra.ShellCompDirective) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, then
		}
		c := a.connect()
		defer c.Close()
		agents, err := c.Agents(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := map[string]string{}
		for _, v := range agents {
			names[v.AgentID] = v.SpecName
		}
		var out []cobra.Completion
		for _, id := range pick(agents) {
			if strings.HasPrefix(id, typed) {
				out = append(out, cobra.CompletionWithDesc(id, line(names[id])))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeAgent() completion {
	return a.completing(agentIDs, cobra.ShellCompDirectiveNoFileComp)
}

func (a *app) completeSandbox() completion {
	return a.completing(sandboxIDs, cobra.ShellCompDirectiveNoFileComp)
}
