package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/alineod/alineod/internal/swarm"
)

// fromInside are the routes for the programs of a sandbox.
var fromInside = map[string]bool{
	"GET /agents": true, "GET /agents/{id}": true, "GET /runs/{id}": true,
	"POST /runs/{id}/agents": true, "POST /runs/{id}/await": true,
	"GET /agents/{id}/result": true, "GET /agents/{id}/await": true,
	"POST /agents/{id}/notify-on": true, "GET /agents/{id}/inbox": true,
	"GET /agents/{id}/memory": true, "GET /agents/{id}/memory/{key}": true,
	"PUT /agents/{id}/memory/{key}": true, "DELETE /agents/{id}/memory/{key}": true,
}

// NewInside returns the handler for the programs of sandboxes. agent says from
// whose sandbox a request comes, token what it must bear. They may spawn, wait,
// ask to be told, read results and remember, each below its own agent.
func NewInside(o Options, agent func(context.Context) string, token func(agentID string) string) (http.Handler, error) {
	o.Token, o.ReadOnlyTokens, o.Listen = "", nil, ""
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	return s.observed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := agent(r.Context())
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		want, got := sha256.Sum256([]byte(token(id))), sha256.Sum256([]byte(strings.TrimSpace(given)))
		if id == "" || !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			writeProblem(w, &problem{status: http.StatusUnauthorized, Code: "unauthorized", Message: "the token is not that of this sandbox's agent"})
			return
		}
		if !fromInside[s.pattern(r)] {
			writeProblem(w, &problem{status: http.StatusForbidden, Code: "not_from_inside",
				Message: fmt.Sprintf("%s %s is not for the programs of a sandbox", r.Method, r.URL.Path)})
			return
		}
		s.mux.ServeHTTP(w, r.WithContext(swarm.As(r.Context(), id)))
	})), nil
}
