package client

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/alineod/alineod/internal/swarm"
)

// Checkpoints lists an agent's checkpoints: GET /agents/{id}/checkpoints.
func (c *Client) Checkpoints(ctx context.Context, id string) ([]swarm.CheckpointView, error) {
	list, err := call[struct {
		Checkpoints []swarm.CheckpointView `json:"checkpoints"`
	}](ctx, c, request{method: http.MethodGet, path: path("agents", id, "checkpoints")})
	return list.Checkpoints, err
}

// TakeCheckpoint takes one now: POST /agents/{id}/checkpoints.
func (c *Client) TakeCheckpoint(ctx context.Context, id string) (swarm.CheckpointView, error) {
	return agentPost[swarm.CheckpointView](ctx, c, id, "checkpoints", none{})
}

// RestoreCheckpoint rolls an agent back to the checkpoint of a turn: POST
// /agents/{id}/checkpoints/{turn}/restore.
func (c *Client) RestoreCheckpoint(ctx context.Context, id string, turn int) (swarm.WayBack, error) {
	return call[swarm.WayBack](ctx, c, request{
		method: http.MethodPost, path: path("agents", id, "checkpoints", strconv.Itoa(turn), "restore"), body: none{},
	})
}

// ExportCheckpoint opens the checkpoint of a turn as a plain tar: GET
// /agents/{id}/checkpoints/{turn}/archive. The caller closes it. A stream that
// breaks off is a read error, never a silent end.
func (c *Client) ExportCheckpoint(ctx context.Context, id string, turn int) (io.ReadCloser, error) {
	res, err := c.open(ctx, request{
		method: http.MethodGet, path: path("agents", id, "checkpoints", strconv.Itoa(turn), "archive"),
	})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// ImportCheckpoint gives an agent a checkpoint from a tar, which is streamed:
// POST /agents/{id}/checkpoints/import.
func (c *Client) ImportCheckpoint(ctx context.Context, id string, archive io.Reader) (swarm.CheckpointView, error) {
	return call[swarm.CheckpointView](ctx, c, request{
		method: http.MethodPost, path: path("agents", id, "checkpoints", "import"),
		header: http.Header{"Content-Type": {"application/x-tar"}},
		// A reader that is also a closer would be closed by the transport.
		raw: struct{ io.Reader }{archive},
	})
}
