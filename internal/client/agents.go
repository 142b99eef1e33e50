package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/swarm"
)

// MaxWait is the longest a daemon waits for a result in one request.
const MaxWait = 240 * time.Second

// Scopes of a steer or a pause; empty is the daemon's default, the agent.
const (
	ScopeAgent   = "agent"
	ScopeSubtree = "subtree"
)

// Agents lists the agents of all runs: GET /agents.
func (c *Client) Agents(ctx context.Context) ([]swarm.AgentView, error) {
	list, err := call[struct {
		Agents []swarm.AgentView `json:"agents"`
	}](ctx, c, request{method: http.MethodGet, path: "/agents"})
	return list.Agents, err
}

// Agent shows an agent: GET /agents/{id}.
func (c *Client) Agent(ctx context.Context, id string) (swarm.AgentView, error) {
	return call[swarm.AgentView](ctx, c, request{method: http.MethodGet, path: path("agents", id)})
}

// agentPost is POST /agents/{id}/{action}.
func agentPost[T any](ctx context.Context, c *Client, id, action string, body any) (T, error) {
	return call[T](ctx, c, request{method: http.MethodPost, path: path("agents", id, action), body: body})
}

// PromptRequest asks for a turn.
type PromptRequest struct {
	Text           string          `json:"text"`
	Images         []harness.Image `json:"images,omitempty"`
	IdempotencyKey string          `json:"idempotencyKey,omitempty"`
}

// Prompt asks for a turn: POST /agents/{id}/prompt.
func (c *Client) Prompt(ctx context.Context, id string, r PromptRequest) (swarm.PromptAnswer, error) {
	return agentPost[swarm.PromptAnswer](ctx, c, id, "prompt", r)
}

// SteerRequest says something into a turn that runs.
type SteerRequest struct {
	Message        string `json:"message"`
	Scope          string `json:"scope,omitempty"`
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// SteerAnswer says what became of it. DeliveredAs is steer, turn or queued,
// and empty where it was only accepted.
type SteerAnswer struct {
	AgentID     string   `json:"agentId,omitempty"`
	State       string   `json:"state,omitempty"`
	DeliveredAs string   `json:"deliveredAs,omitempty"`
	Roster      []string `json:"roster,omitempty"`
}

// Steer says something into a turn that runs: POST /agents/{id}/steer.
func (c *Client) Steer(ctx context.Context, id string, r SteerRequest) (SteerAnswer, error) {
	return agentPost[SteerAnswer](ctx, c, id, "steer", r)
}

// Modes of a stop.
const (
	StopAbort = "abort" // end the turn and delete the sandbox
	StopDrain = "drain" // finish the turn, checkpoint, then stop
	StopKeep  = "stop"  // end the harness, keep the file system
)

// StopRequest ends an agent. An empty Mode is StopAbort.
type StopRequest struct {
	Mode           string `json:"mode,omitempty"`
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// Stop ends an agent: POST /agents/{id}/stop.
func (c *Client) Stop(ctx context.Context, id string, r StopRequest) (swarm.Accepted, error) {
	return agentPost[swarm.Accepted](ctx, c, id, "stop", r)
}

// none is the body of a request that says nothing.
type none struct{}

// Pause freezes an agent: POST /agents/{id}/pause.
func (c *Client) Pause(ctx context.Context, id string) (swarm.Accepted, error) {
	return agentPost[swarm.Accepted](ctx, c, id, "pause", none{})
}

// Unpause thaws an agent: POST /agents/{id}/resume.
func (c *Client) Unpause(ctx context.Context, id string) (swarm.Accepted, error) {
	return agentPost[swarm.Accepted](ctx, c, id, "resume", none{})
}

// Revive brings back an agent that was stopped or crashed: POST
// /agents/{id}/revive.
func (c *Client) Revive(ctx context.Context, id string) (swarm.WayBack, error) {
	return agentPost[swarm.WayBack](ctx, c, id, "revive", none{})
}

// Recover puts an agent on the recovery ladder: POST /agents/{id}/recover.
func (c *Client) Recover(ctx context.Context, id string) (swarm.WayBack, error) {
	return agentPost[swarm.WayBack](ctx, c, id, "recover", none{})
}

// Result shows the result of an agent's last turn, waiting for it at most
// wait, rounded up to seconds and cut to MaxWait: GET /agents/{id}/result. A
// State of "pending" is no error.
func (c *Client) Result(ctx context.Context, id string, wait time.Duration) (swarm.ResultView, error) {
	query := url.Values{}
	if wait > 0 {
		seconds := (min(wait, MaxWait) + time.Second - 1) / time.Second
		query.Set("wait", strconv.Itoa(int(seconds)))
	}
	return call[swarm.ResultView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "result"), query: query})
}

// Transcript shows what was said in an agent's turns: GET
// /agents/{id}/transcript. Without full, long texts are cut.
func (c *Client) Transcript(ctx context.Context, id string, full bool) (swarm.TranscriptView, error) {
	query := url.Values{}
	if full {
		query.Set("full", "1")
	}
	return call[swarm.TranscriptView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "transcript"), query: query})
}

// Permissions lists what an agent's harness asks for: GET
// /agents/{id}/permissions.
func (c *Client) Permissions(ctx context.Context, id string) ([]swarm.PermissionView, error) {
	list, err := call[struct {
		Permissions []swarm.PermissionView `json:"permissions"`
	}](ctx, c, request{method: http.MethodGet, path: path("agents", id, "permissions")})
	return list.Permissions, err
}

// AnswerRequest decides a permission request. Decision is one of the harness
// package's: once, always or reject.
type AnswerRequest struct {
	Decision       string `json:"decision"`
	Feedback       string `json:"feedback,omitempty"`
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// Answer decides a permission request: POST
// /agents/{id}/permissions/{requestId}.
func (c *Client) Answer(ctx context.Context, id, requestID string, r AnswerRequest) (swarm.PermissionView, error) {
	return call[swarm.PermissionView](ctx, c, request{
		method: http.MethodPost, path: path("agents", id, "permissions", requestID), body: r,
	})
}

// Exec runs a command in an agent's sandbox: POST /agents/{id}/exec.
func (c *Client) Exec(ctx context.Context, id string, r swarm.ExecRequest) (swarm.ExecAnswer, error) {
	return agentPost[swarm.ExecAnswer](ctx, c, id, "exec", r)
}

// Subtree says whether an agent and all below it are at rest, waiting for that
// up to wait, at most MaxWait: GET /agents/{id}/await.
func (c *Client) Subtree(ctx context.Context, id string, wait time.Duration) (swarm.SubtreeView, error) {
	query := url.Values{"scope": {"subtree"}}
	if wait > 0 {
		query.Set("wait", strconv.FormatFloat(min(wait, MaxWait).Seconds(), 'f', -1, 64))
	}
	return call[swarm.SubtreeView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "await"), query: query})
}

// Memories lists what an agent remembers after a key, in the order of the keys:
// GET /agents/{id}/memory.
func (c *Client) Memories(ctx context.Context, id, after string) (swarm.MemoriesView, error) {
	query := url.Values{}
	if after != "" {
		query.Set("after", after)
	}
	return call[swarm.MemoriesView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "memory"), query: query})
}

// Memory reads one value: GET /agents/{id}/memory/{key}.
func (c *Client) Memory(ctx context.Context, id, key string) (swarm.MemoryView, error) {
	return call[swarm.MemoryView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "memory", key)})
}

// Remember stores a value in place of the one before: PUT
// /agents/{id}/memory/{key}.
func (c *Client) Remember(ctx context.Context, id, key string, value json.RawMessage) (swarm.MemoryView, error) {
	return call[swarm.MemoryView](ctx, c, request{method: http.MethodPut, path: path("agents", id, "memory", key), body: map[string]json.RawMessage{"value": value}})
}

// Forget drops a value: DELETE /agents/{id}/memory/{key}.
func (c *Client) Forget(ctx context.Context, id, key string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: path("agents", id, "memory", key)}, nil)
	return err
}

// NotifyRequest asks for an agent to be told when others settle.
type NotifyRequest struct {
	Agents         []string `json:"agents"`
	Wake           bool     `json:"wake,omitempty"` // in a turn of its own where it is idle
	IdempotencyKey string   `json:"idempotencyKey,omitempty"`
}

// NotifyOn has an agent told when others settle: POST /agents/{id}/notify-on.
func (c *Client) NotifyOn(ctx context.Context, id string, r NotifyRequest) (swarm.Subscription, error) {
	return agentPost[swarm.Subscription](ctx, c, id, "notify-on", r)
}

// Inbox reads what an agent is to be told: GET /agents/{id}/inbox.
func (c *Client) Inbox(ctx context.Context, id string) (swarm.InboxView, error) {
	return call[swarm.InboxView](ctx, c, request{method: http.MethodGet, path: path("agents", id, "inbox")})
}

// DeliverInbox tells an agent what is in its inbox now: POST
// /agents/{id}/inbox/deliver.
func (c *Client) DeliverInbox(ctx context.Context, id string) (swarm.InboxDelivery, error) {
	return call[swarm.InboxDelivery](ctx, c, request{method: http.MethodPost, path: path("agents", id, "inbox", "deliver")})
}
