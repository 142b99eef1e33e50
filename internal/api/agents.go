package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/swarm"
)

// waitMost bounds ?wait=, in seconds: below the 5 minutes after which many
// proxies give up a silent connection.
const waitMost = 240

// Scoped is embedded by bodies that may name whom they concern.
type Scoped struct {
	Scope string `json:"scope,omitempty" enum:"agent,subtree" doc:"Default: agent; subtree is the agent and all that is below it"`
}

type promptBody struct {
	Text   string          `json:"text"`
	Images []harness.Image `json:"images,omitempty"`
	Keyed
}

type steerBody struct {
	Message string `json:"message" minLength:"1"`
	Scoped
	Keyed
}

type scopedBody struct {
	Scoped
	Keyed
}

type stopBody struct {
	Mode string `json:"mode,omitempty" enum:"abort,drain,stop" doc:"Default: abort"`
	Scoped
	Keyed
}

type keyedBody struct{ Keyed }

type execBody struct {
	swarm.ExecRequest
	Keyed
}

type permissionBody struct {
	Decision string `json:"decision" enum:"once,always,reject"`
	Feedback string `json:"feedback,omitempty" doc:"Told to the harness with the decision"`
	Keyed
}

type agentsView struct {
	Agents []swarm.AgentView `json:"agents"`
}

type permissionsView struct {
	Permissions []swarm.PermissionView `json:"permissions"`
}

// agentRoute declares a route of one agent.
func agentRoute(method, rest, id, summary string) route {
	return route{method: method, path: "/agents/{id}" + rest, id: id, summary: summary, tag: "agents",
		changes: method != http.MethodGet}
}

// accepted declares one that is carried out later.
func accepted(rest, id, summary string) route {
	rt := agentRoute(http.MethodPost, rest, id, summary)
	rt.status = http.StatusAccepted
	return rt
}

// scopeOf is the scope that a body names.
func (b Scoped) scopeOf() string { return b.Scope }

// scoped adds a route that works on one agent, and answers 202; or on one and
// all below it, and answers 200 with what that came to for each.
func scoped[B interface{ scopeOf() string }](rs *routes, rest, id, summary string,
	one func(context.Context, *in[B]) (swarm.Accepted, error), all func(context.Context, *in[B]) (swarm.ScopeAnswer, error)) {
	rt := accepted(rest, id, summary)
	rt.also = []int{http.StatusOK}
	rt.statusOf = func(answer any) int {
		if answer.(scopedView).Results != nil {
			return http.StatusOK
		}
		return http.StatusAccepted
	}
	handle(rs, rt, func(ctx context.Context, req *in[B]) (scopedView, error) {
		if req.body.scopeOf() == "subtree" {
			a, err := all(ctx, req)
			return scopedView{AsOf: a.AsOf, Results: list(a.Results)}, err
		}
		a, err := one(ctx, req)
		return scopedView{AgentID: a.AgentID, State: a.State}, err
	})
}

// scopedView answers a scoped route: the first two fields for an agent, the
// others for a subtree.
type scopedView struct {
	AgentID string              `json:"agentId,omitempty"`
	State   string              `json:"state,omitempty"`
	AsOf    int64               `json:"asOf,omitempty"`
	Results []swarm.ScopeResult `json:"results,omitempty"`
}

func (s *server) agentRoutes() {
	rs := s.routes
	handle(rs, route{method: http.MethodGet, path: "/agents", id: "listAgents", tag: "agents",
		summary: "All agents",
	}, func(ctx context.Context, _ *in[none]) (agentsView, error) {
		agents, err := s.Swarm.Agents(ctx)
		return agentsView{list(agents)}, err
	})
	handle(rs, agentRoute(http.MethodGet, "", "getAgent", "An agent"),
		func(ctx context.Context, req *in[none]) (swarm.AgentView, error) {
			return s.Swarm.Agent(ctx, req.id())
		})

	prompt := accepted("/prompt", "prompt", "Ask for a turn; queued behind those that were asked for")
	prompt.limit = promptLimit
	handle(rs, prompt, func(ctx context.Context, req *in[promptBody]) (swarm.PromptAnswer, error) {
		if req.body.Text == "" && len(req.body.Images) == 0 {
			p := invalid("invalid_body", "text: must not be empty where there are no images")
			c := checker{}
			c.add("text", "must not be empty where there are no images")
			p.Fields = c.problems
			return swarm.PromptAnswer{}, p
		}
		return s.Swarm.Prompt(ctx, req.id(), swarm.PromptRequest{
			Text: req.body.Text, Images: req.body.Images, Idempotency: req.idem,
		})
	})
	scoped(rs, "/steer", "steer", "Say something to the turn that runs",
		func(ctx context.Context, req *in[steerBody]) (swarm.Accepted, error) {
			return s.Swarm.Steer(ctx, req.id(), req.body.Message, req.idem)
		}, func(ctx context.Context, req *in[steerBody]) (swarm.ScopeAnswer, error) {
			return s.Swarm.SteerSubtree(ctx, req.id(), req.body.Message, req.idem)
		})
	scoped(rs, "/pause", "pause", "Freeze an agent",
		func(ctx context.Context, req *in[scopedBody]) (swarm.Accepted, error) {
			return s.Swarm.Pause(ctx, req.id(), req.idem)
		}, func(ctx context.Context, req *in[scopedBody]) (swarm.ScopeAnswer, error) {
			return s.Swarm.PauseSubtree(ctx, req.id(), req.idem)
		})
	scoped(rs, "/resume", "resume", "Let a paused agent go on",
		func(ctx context.Context, req *in[scopedBody]) (swarm.Accepted, error) {
			return s.Swarm.Resume(ctx, req.id(), req.idem)
		}, func(ctx context.Context, req *in[scopedBody]) (swarm.ScopeAnswer, error) {
			return s.Swarm.ResumeSubtree(ctx, req.id(), req.idem)
		})
	scoped(rs, "/stop", "stop", "End an agent",
		func(ctx context.Context, req *in[stopBody]) (swarm.Accepted, error) {
			return s.Swarm.Stop(ctx, req.id(), cmp.Or(req.body.Mode, "abort"), req.idem)
		}, func(ctx context.Context, req *in[stopBody]) (swarm.ScopeAnswer, error) {
			return s.Swarm.StopSubtree(ctx, req.id(), cmp.Or(req.body.Mode, "abort"), req.idem)
		})
	subtree := agentRoute(http.MethodGet, "/await", "awaitSubtree", "Whether an agent and all below it are at rest")
	subtree.params = []param{{name: "scope", enum: []any{"subtree"}}, {name: "wait", typ: huma.TypeNumber, min: bound(0), max: bound(waitMost),
		doc: "Seconds to wait for it"}}
	handle(rs, subtree, func(ctx context.Context, req *in[none]) (swarm.SubtreeView, error) {
		return s.Swarm.AwaitSubtree(ctx, req.id(), time.Duration(req.num["wait"]*float64(time.Second)))
	})
	handle(rs, agentRoute(http.MethodPost, "/recover", "recover", "Bring an agent back now"),
		func(ctx context.Context, req *in[keyedBody]) (swarm.WayBack, error) {
			return s.Swarm.Recover(ctx, req.id(), req.idem)
		})
	handle(rs, agentRoute(http.MethodPost, "/revive", "revive", "Bring an agent back that has ended"),
		func(ctx context.Context, req *in[keyedBody]) (swarm.WayBack, error) {
			return s.Swarm.Revive(ctx, req.id(), req.idem)
		})
	s.readRoutes()
	s.sandboxWork()
}

// readRoutes are those on what an agent said.
func (s *server) readRoutes() {
	rs := s.routes
	result := agentRoute(http.MethodGet, "/result", "result", "The result of the last turn; 202 while it is open")
	result.params = []param{{name: "wait", typ: huma.TypeNumber, min: bound(0), max: bound(waitMost),
		doc: "Seconds to wait for it"}}
	result.also = []int{http.StatusAccepted}
	result.statusOf = func(answer any) int {
		if answer.(swarm.ResultView).State == "pending" {
			return http.StatusAccepted
		}
		return http.StatusOK
	}
	handle(rs, result, func(ctx context.Context, req *in[none]) (swarm.ResultView, error) {
		return s.Swarm.Result(ctx, req.id(), time.Duration(req.num["wait"]*float64(time.Second)))
	})

	transcript := agentRoute(http.MethodGet, "/transcript", "transcript", "What was said, turn by turn")
	transcript.params = []param{{name: "full", enum: []any{"0", "1", "false", "true"},
		doc: "Texts uncut and messages whole"}}
	handle(rs, transcript, func(ctx context.Context, req *in[none]) (swarm.TranscriptView, error) {
		full := req.query("full")
		view, err := s.Swarm.Transcript(ctx, req.id(), full == "1" || full == "true")
		view.Turns = list(view.Turns)
		for i := range view.Turns {
			view.Turns[i].Messages = list(view.Turns[i].Messages)
		}
		return view, err
	})
}

// sandboxWork are the routes that reach into an agent's sandbox.
func (s *server) sandboxWork() {
	rs := s.routes
	handle(rs, agentRoute(http.MethodGet, "/permissions", "listPermissions", "What the harness asks leave for"),
		func(ctx context.Context, req *in[none]) (permissionsView, error) {
			permissions, err := s.Swarm.Permissions(ctx, req.id())
			return permissionsView{list(permissions)}, err
		})
	handle(rs, agentRoute(http.MethodPost, "/permissions/{requestId}", "answerPermission", "Decide on a request"),
		func(ctx context.Context, req *in[permissionBody]) (swarm.PermissionView, error) {
			return s.Swarm.AnswerPermission(ctx, req.id(), req.r.PathValue("requestId"),
				req.body.Decision, req.body.Feedback, req.idem)
		})
	handle(rs, agentRoute(http.MethodPost, "/exec", "exec", "Run a command in the sandbox; under a key at most once"),
		func(ctx context.Context, req *in[execBody]) (swarm.ExecAnswer, error) {
			return s.Swarm.Exec(ctx, req.id(), req.body.ExecRequest, req.idem)
		})
}
