package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/alineod/alineod/internal/swarm"
)

// RunRequest asks for a new run.
type RunRequest struct {
	Spec           json.RawMessage `json:"spec"`
	Prompt         string          `json:"prompt,omitempty"` // empty: the agent waits for one
	Budget         *swarm.Budget   `json:"budget,omitempty"`
	CloseWhen      string          `json:"closeWhen,omitempty"` // explicit (default) or quiescent
	IdempotencyKey string          `json:"idempotencyKey,omitempty"`
}

// StartRun starts a run: POST /runs.
func (c *Client) StartRun(ctx context.Context, r RunRequest) (swarm.StartRunAnswer, error) {
	return call[swarm.StartRunAnswer](ctx, c, request{method: http.MethodPost, path: "/runs", body: r})
}

// RunsQuery selects runs. The zero value selects the first page of all.
type RunsQuery struct {
	State string // open, closed; empty: both
	Limit int    // 0: the daemon's
	After string // Next of the page before
}

// Runs lists runs: GET /runs.
func (c *Client) Runs(ctx context.Context, q RunsQuery) (swarm.RunsView, error) {
	query := url.Values{}
	if q.State != "" {
		query.Set("state", q.State)
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.After != "" {
		query.Set("after", q.After)
	}
	return call[swarm.RunsView](ctx, c, request{method: http.MethodGet, path: "/runs", query: query})
}

// Run shows a run: GET /runs/{id}.
func (c *Client) Run(ctx context.Context, id string) (swarm.RunView, error) {
	return call[swarm.RunView](ctx, c, request{method: http.MethodGet, path: path("runs", id)})
}

// CloseRun ends a run and every live agent of it: DELETE /runs/{id}.
func (c *Client) CloseRun(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: path("runs", id)}, nil)
	return err
}

// SpawnRequest asks for an agent below another one.
type SpawnRequest struct {
	ParentAgentID  string          `json:"parentAgentId"`
	Spec           json.RawMessage `json:"spec"`
	Prompt         string          `json:"prompt,omitempty"`   // empty: the agent waits for one
	WaitFor        json.RawMessage `json:"waitFor,omitempty"`  // a list of agents, or {agents, mode, k, onDepFailure, deadlineSec, onDeadline}
	NotifyOn       json.RawMessage `json:"notifyOn,omitempty"` // a list of agents, or {agents, wake}
	Budget         *swarm.Budget   `json:"budget,omitempty"`
	IdempotencyKey string          `json:"idempotencyKey,omitempty"`
}

// Spawn makes an agent in a run: POST /runs/{id}/agents.
func (c *Client) Spawn(ctx context.Context, runID string, r SpawnRequest) (swarm.SpawnAnswer, error) {
	return call[swarm.SpawnAnswer](ctx, c, request{method: http.MethodPost, path: path("runs", runID, "agents"), body: r})
}
