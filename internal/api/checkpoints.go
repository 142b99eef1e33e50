package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/swarm"
)

type checkpointsView struct {
	Checkpoints []swarm.CheckpointView `json:"checkpoints"`
}

func (s *server) checkpointRoutes() {
	rs := s.routes
	handle(rs, agentRoute(http.MethodGet, "/checkpoints", "listCheckpoints", "The checkpoints that are kept"),
		func(ctx context.Context, req *in[none]) (checkpointsView, error) {
			checkpoints, err := s.Swarm.Checkpoints(ctx, req.id())
			return checkpointsView{list(checkpoints)}, err
		})
	handle(rs, agentRoute(http.MethodPost, "/checkpoints", "takeCheckpoint", "Take a checkpoint now"),
		func(ctx context.Context, req *in[keyedBody]) (swarm.CheckpointView, error) {
			return s.Swarm.TakeCheckpoint(ctx, req.id(), req.idem)
		})
	handle(rs, agentRoute(http.MethodPost, "/checkpoints/{turn}/restore", "restoreCheckpoint", "Roll back to a checkpoint"),
		func(ctx context.Context, req *in[keyedBody]) (swarm.WayBack, error) {
			return s.Swarm.RestoreCheckpoint(ctx, req.id(), int(req.num["turn"]), req.idem)
		})
	archive := agentRoute(http.MethodGet, "/checkpoints/{turn}/archive", "checkpointArchive", "A checkpoint's files as a tar")
	rs.raw(archive, "application/x-tar", func(w http.ResponseWriter, r *http.Request) error {
		return s.archive(archive, w, r)
	})
	for method, id := range map[string]string{http.MethodPost: "importCheckpoint", http.MethodPut: "putCheckpoint"} {
		rt := agentRoute(method, "/checkpoints/import", id, "Store a tar as a checkpoint")
		rt.upload = "application/x-tar"
		handle(rs, rt, func(ctx context.Context, req *in[none]) (swarm.CheckpointView, error) {
			return s.Swarm.ImportCheckpoint(ctx, req.id(), req.r.Body, req.idem)
		})
	}
}

// archive streams a checkpoint. What breaks off halfway ends the connection:
// nobody may take half a tar for a whole one.
func (s *server) archive(rt route, w http.ResponseWriter, r *http.Request) error {
	num, err := numbers(rt, r)
	if err != nil {
		return err
	}
	turn := int(num["turn"])
	from, err := s.Swarm.CheckpointArchive(r.Context(), r.PathValue("id"), turn)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-tar")
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=\"turn-%d.tar\"", turn))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Connection", "close") // its write deadline must not meet another request
	if r.Method != http.MethodHead {
		_, err = io.Copy(s.patient(w), from)
	}
	if closeErr := from.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.Log.Warn("sending a checkpoint failed", zap.String("agent", r.PathValue("id")), zap.Int("turn", turn), zap.Error(err))
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// steady reads with a deadline per piece, as patient writes. The last one is
// lifted by the server, when at the body's end it begins to watch the
// connection; until then it bounds how long the server reads on by itself.
type steady struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
}

func (b *steady) Read(p []byte) (int, error) {
	// Not every transport has deadlines; without one the read just waits.
	_ = b.control.SetReadDeadline(time.Now().Add(b.timeout))
	return b.ReadCloser.Read(p)
}
