package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

const healthPattern = "GET /health"

type healthView struct {
	OK bool `json:"ok"`
}

type readyView struct {
	swarm.Readiness
	Status string `json:"status"`
}

type reconcileBody struct {
	DryRun bool `json:"dryRun,omitempty" doc:"Only say what would be done"`
	Keyed
}

type reconcileView struct {
	DryRun  bool           `json:"dryRun"`
	Actions []swarm.Action `json:"actions"`
}

type ledgerView struct {
	OK          bool     `json:"ok"`
	Events      int64    `json:"events"`
	Differences []string `json:"differences"`
	Notes       []string `json:"notes"`
}

func (s *server) sandboxRoutes() {
	for _, way := range []struct {
		name, summary string
		do            func(context.Context, string, swarm.Idempotency) (swarm.WayBack, error)
	}{
		{"reattach", "Bind to the bridge that runs in a sandbox", s.Swarm.SandboxReattach},
		{"resume", "Restart the bridge in a sandbox and go on", s.Swarm.SandboxResume},
		{"attach", "Hold a sandbox for commands only", s.Swarm.SandboxAttach},
	} {
		handle(s.routes, route{
			method: http.MethodPost, path: "/sandboxes/{id}/" + way.name, id: way.name + "Sandbox",
			summary: way.summary, tag: "sandboxes", changes: true,
		}, func(ctx context.Context, req *in[keyedBody]) (swarm.WayBack, error) {
			return way.do(ctx, req.id(), req.idem)
		})
	}
}

func (s *server) daemonRoutes() {
	rs := s.routes
	daemon := func(method, path, id, summary string) route {
		return route{method: method, path: path, id: id, summary: summary, tag: "daemon"}
	}
	health := daemon(http.MethodGet, "/health", "health", "The daemon is up")
	health.open = true
	handle(rs, health, func(context.Context, *in[none]) (healthView, error) { return healthView{OK: true}, nil })

	ready := daemon(http.MethodGet, "/readyz", "ready", "The daemon has recovered what was left")
	ready.also = []int{http.StatusServiceUnavailable}
	ready.statusOf = func(answer any) int {
		if answer.(readyView).Ready {
			return http.StatusOK
		}
		return http.StatusServiceUnavailable
	}
	handle(rs, ready, func(context.Context, *in[none]) (readyView, error) {
		v := readyView{Readiness: s.Swarm.Readiness(), Status: "ready"}
		if !v.Ready {
			v.Status = fmt.Sprintf("recovering %d/%d", v.Recovered, v.Total)
		}
		return v, nil
	})
	handle(rs, daemon(http.MethodGet, "/version", "version", "What runs here"),
		func(ctx context.Context, _ *in[none]) (VersionInfo, error) { return s.Describe(ctx), nil })

	reconcile := daemon(http.MethodPost, "/reconcile", "reconcile", "Compare the ledger with the runtimes and mend")
	reconcile.changes = true
	handle(rs, reconcile, func(ctx context.Context, req *in[reconcileBody]) (reconcileView, error) {
		actions, err := s.Swarm.ReconcileOnce(ctx, req.body.DryRun, req.idem)
		return reconcileView{DryRun: req.body.DryRun, Actions: list(actions)}, err
	})
	s.ledgerRoute("verify", "Compare the ledger's projections with its log", s.Verify)
	s.ledgerRoute("rebuild", "Make the ledger's projections anew from its log", s.Rebuild)

	rs.raw(daemon(http.MethodGet, "/openapi.json", "openapi", "This document"), "application/json", bytesOf("application/json", &s.openapi))
	if s.Schema != nil {
		rs.raw(daemon(http.MethodGet, "/schemas/spec.json", "specSchema", "JSON Schema of agent specs"),
			"application/schema+json", bytesOf("application/schema+json", &s.Schema))
	}
	if s.MetricsHandler != nil {
		rs.raw(daemon(http.MethodGet, "/metrics", "metrics", "Metrics for Prometheus"), "text/plain",
			func(w http.ResponseWriter, r *http.Request) error {
				s.MetricsHandler.ServeHTTP(w, r)
				return nil
			})
	}
}

func (s *server) ledgerRoute(name, summary string, do func(context.Context) (ledger.Report, error)) {
	if do == nil {
		return
	}
	handle(s.routes, route{method: http.MethodPost, path: "/ledger/" + name, id: name + "Ledger", summary: summary, tag: "daemon"},
		func(ctx context.Context, _ *in[none]) (ledgerView, error) {
			r, err := do(ctx)
			return ledgerView{OK: r.OK, Events: r.Events, Differences: list(r.Differences), Notes: list(r.Notes)}, err
		})
}

// bytesOf serves what body points to when a request comes.
func bytesOf(content string, body *[]byte) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", content)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(*body)
		return nil
	}
}
