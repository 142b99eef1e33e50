package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/swarm"
)

const (
	runsDefault = 100
	runsMost    = 1000
)

type startRunBody struct {
	Spec      json.RawMessage `json:"spec" doc:"An agent spec, as /schemas/spec.json; unknown keys of it are kept and warned about"`
	Prompt    string          `json:"prompt,omitempty" doc:"The first turn; without one the agent waits"`
	Budget    *swarm.Budget   `json:"budget,omitempty"`
	CloseWhen string          `json:"closeWhen,omitempty" enum:"explicit,quiescent" doc:"Default: explicit"`
	Keyed
}

type spawnBody struct {
	ParentAgentID string          `json:"parentAgentId" minLength:"1" doc:"The agent to fork from; it must be live"`
	Spec          json.RawMessage `json:"spec" doc:"An agent spec, as /schemas/spec.json"`
	Prompt        string          `json:"prompt,omitempty" doc:"The first turn; without one the agent waits"`
	WaitFor       json.RawMessage `json:"waitFor,omitempty" doc:"Agents of the run that must settle first: a list, or {agents, mode, k, onDepFailure, deadlineSec, onDeadline}"`
	NotifyOn      json.RawMessage `json:"notifyOn,omitempty" doc:"Agents of the run that the new one wants to be told of when they settle: a list, or {agents, wake}"`
	Budget        *swarm.Budget   `json:"budget,omitempty"`
	Keyed
}

type awaitBody struct {
	Agents       []string `json:"agents,omitempty" doc:"Agents of the run"`
	Mode         string   `json:"mode,omitempty" enum:"settled,all,any,quorum" doc:"Default: settled"`
	K            *int     `json:"k,omitempty" doc:"With the mode quorum: how many"`
	OnDepFailure string   `json:"onDepFailure,omitempty" enum:"fail,proceed"`
	Subtree      string   `json:"subtree,omitempty" doc:"Instead of agents: one, and all that is below it"`
	Wait         float64  `json:"wait" minimum:"0" maximum:"240" doc:"Seconds to wait for it"`
}

func (s *server) runRoutes() {
	rs := s.routes
	handle(rs, route{
		method: http.MethodPost, path: "/runs", id: "startRun", tag: "runs", changes: true,
		summary: "Start a run with a root agent", status: http.StatusAccepted,
	}, func(ctx context.Context, req *in[startRunBody]) (swarm.StartRunAnswer, error) {
		return s.Swarm.StartRun(ctx, swarm.StartRunRequest{
			Spec: req.body.Spec, Prompt: req.body.Prompt, Budget: req.body.Budget,
			CloseWhen: req.body.CloseWhen, Idempotency: req.idem,
		})
	})
	handle(rs, route{
		method: http.MethodGet, path: "/runs", id: "listRuns", tag: "runs", summary: "List runs",
		params: []param{
			{name: "state", enum: []any{"open", "closed"}},
			{name: "limit", typ: huma.TypeInteger, min: bound(1), max: bound(runsMost), doc: "Default: 100"},
			{name: "after", doc: "The cursor next of the page before"},
		},
	}, func(ctx context.Context, req *in[none]) (swarm.RunsView, error) {
		limit := runsDefault
		if n, ok := req.num["limit"]; ok {
			limit = int(n)
		}
		view, err := s.Swarm.Runs(ctx, req.query("state"), limit, req.query("after"))
		view.Runs = list(view.Runs)
		return view, err
	})
	handle(rs, route{
		method: http.MethodGet, path: "/runs/{id}", id: "getRun", tag: "runs", summary: "A run and its agents",
	}, func(ctx context.Context, req *in[none]) (swarm.RunView, error) {
		view, err := s.Swarm.Run(ctx, req.id())
		view.Agents = list(view.Agents)
		return view, err
	})
	handle(rs, route{
		method: http.MethodDelete, path: "/runs/{id}", id: "deleteRun", tag: "runs", changes: true,
		summary: "End a run: its live agents are aborted, its history stays", status: http.StatusNoContent,
	}, func(ctx context.Context, req *in[none]) (none, error) {
		return none{}, s.Swarm.DeleteRun(ctx, req.id(), req.idem)
	})
	handle(rs, route{
		method: http.MethodPost, path: "/runs/{id}/agents", id: "spawn", tag: "runs", changes: true,
		summary: "Spawn an agent below another one, in a fork of its sandbox", status: http.StatusAccepted,
	}, func(ctx context.Context, req *in[spawnBody]) (swarm.SpawnAnswer, error) {
		return s.Swarm.Spawn(ctx, swarm.SpawnRequest{
			RunID: req.id(), ParentAgentID: req.body.ParentAgentID, Spec: req.body.Spec, Prompt: req.body.Prompt,
			WaitFor: req.body.WaitFor, NotifyOn: req.body.NotifyOn, Budget: req.body.Budget, Idempotency: req.idem,
		})
	})
	handle(rs, route{
		method: http.MethodPost, path: "/runs/{id}/await", id: "await", tag: "runs",
		summary: "Wait for agents of a run to settle",
	}, func(ctx context.Context, req *in[awaitBody]) (swarm.AwaitAnswer, error) {
		return s.Swarm.Await(ctx, swarm.AwaitRequest{
			RunID: req.id(), Agents: req.body.Agents, Mode: req.body.Mode, K: req.body.K, OnDepFailure: req.body.OnDepFailure,
			Subtree: req.body.Subtree, Wait: time.Duration(req.body.Wait * float64(time.Second)),
		})
	})
	rs.raw(route{
		method: http.MethodGet, path: "/runs/{id}/events", id: "followRun", tag: "events", params: resumeParams,
		summary: "The events of a run from its start, then live",
	}, streamType, s.runEvents)
	rs.raw(route{
		method: http.MethodGet, path: "/events", id: "follow", tag: "events", params: resumeParams,
		summary: "The events of all runs from now on",
	}, streamType, s.allEvents)
}

// list is never null in JSON.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
