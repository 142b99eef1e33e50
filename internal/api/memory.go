package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/swarm"
)

type memoryBody struct {
	Value json.RawMessage `json:"value" doc:"Any JSON value of at most 64 KiB"`
	Keyed
}

func (s *server) memoryRoutes() {
	rs := s.routes
	all := agentRoute(http.MethodGet, "/memory", "listMemory", "What an agent remembers, in the order of the keys")
	all.params = []param{
		{name: "limit", typ: huma.TypeInteger, min: bound(1), max: bound(runsMost), doc: "Default: 100"},
		{name: "after", doc: "The cursor next of the page before"},
	}
	handle(rs, all, func(ctx context.Context, req *in[none]) (swarm.MemoriesView, error) {
		limit := runsDefault
		if n, ok := req.num["limit"]; ok {
			limit = int(n)
		}
		view, err := s.Swarm.Memories(ctx, req.id(), req.query("after"), limit)
		view.Entries = list(view.Entries)
		return view, err
	})
	handle(rs, agentRoute(http.MethodGet, "/memory/{key}", "getMemory", "One value"),
		func(ctx context.Context, req *in[none]) (swarm.MemoryView, error) {
			return s.Swarm.Memory(ctx, req.id(), req.r.PathValue("key"))
		})
	handle(rs, agentRoute(http.MethodPut, "/memory/{key}", "putMemory", "Remember a value, in place of the one before"),
		func(ctx context.Context, req *in[memoryBody]) (swarm.MemoryView, error) {
			return s.Swarm.Remember(ctx, req.id(), req.r.PathValue("key"), req.body.Value, req.idem)
		})
	forget := agentRoute(http.MethodDelete, "/memory/{key}", "deleteMemory", "Forget a value, if it is there")
	forget.status = http.StatusNoContent
	handle(rs, forget, func(ctx context.Context, req *in[none]) (none, error) {
		return none{}, s.Swarm.Forget(ctx, req.id(), req.r.PathValue("key"), req.idem)
	})
}
