package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// Reattach binds to the bridge that runs in a sandbox: POST
// /sandboxes/{id}/reattach.
func (c *Client) Reattach(ctx context.Context, sandboxID string) (swarm.WayBack, error) {
	return c.wayBack(ctx, sandboxID, "reattach")
}

// Resume restarts a sandbox's bridge and continues the session: POST
// /sandboxes/{id}/resume.
func (c *Client) Resume(ctx context.Context, sandboxID string) (swarm.WayBack, error) {
	return c.wayBack(ctx, sandboxID, "resume")
}

// Attach takes a sandbox for exec alone: POST /sandboxes/{id}/attach.
func (c *Client) Attach(ctx context.Context, sandboxID string) (swarm.WayBack, error) {
	return c.wayBack(ctx, sandboxID, "attach")
}

func (c *Client) wayBack(ctx context.Context, sandboxID, way string) (swarm.WayBack, error) {
	return call[swarm.WayBack](ctx, c, request{method: http.MethodPost, path: path("sandboxes", sandboxID, way), body: none{}})
}

// Reconcile compares the runtime's sandboxes with the ledger and acts, or only
// says what it would do: POST /reconcile.
func (c *Client) Reconcile(ctx context.Context, dryRun bool) ([]swarm.Action, error) {
	list, err := call[struct {
		Actions []swarm.Action `json:"actions"`
	}](ctx, c, request{method: http.MethodPost, path: "/reconcile", body: map[string]bool{"dryRun": dryRun}})
	return list.Actions, err
}

// VerifyLedger has the daemon verify its ledger: POST /ledger/verify.
func (c *Client) VerifyLedger(ctx context.Context) (ledger.Report, error) {
	return call[ledger.Report](ctx, c, request{method: http.MethodPost, path: "/ledger/verify", body: none{}})
}

// Health asks whether the daemon is up: GET /health.
func (c *Client) Health(ctx context.Context) error {
	answer, err := call[struct {
		OK bool `json:"ok"`
	}](ctx, c, request{method: http.MethodGet, path: "/health"})
	if err == nil && !answer.OK {
		err = &Error{Status: http.StatusOK, Message: "the daemon says that it is not well"}
	}
	return err
}

// Ready says how far the boot has come: GET /readyz. A daemon that is not
// ready yet is no error.
func (c *Client) Ready(ctx context.Context) (swarm.Readiness, error) {
	return call[swarm.Readiness](ctx, c, request{
		method: http.MethodGet, path: "/readyz", accept: []int{http.StatusServiceUnavailable},
	})
}

// Version is what a daemon says of itself. Raw is the whole answer.
type Version struct {
	Version string
	Raw     json.RawMessage
}

// Version asks which daemon answers: GET /version.
func (c *Client) Version(ctx context.Context) (Version, error) {
	raw, err := call[json.RawMessage](ctx, c, request{method: http.MethodGet, path: "/version"})
	if err != nil {
		return Version{}, err
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return Version{}, fmt.Errorf("GET /version: reading the answer: %w", err)
	}
	return Version{Version: v.Version, Raw: raw}, nil
}

// Metrics reads the daemon's metrics in Prometheus' text format: GET /metrics.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	res, err := c.open(ctx, request{method: http.MethodGet, path: "/metrics"})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, c.failed(ctx, "GET /metrics", err)
	}
	return data, nil
}

// OpenAPI reads the description of the API: GET /openapi.json.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, request{method: http.MethodGet, path: "/openapi.json"})
}
