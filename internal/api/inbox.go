package api

import (
	"context"
	"net/http"

	"github.com/alineod/alineod/internal/swarm"
)

type notifyBody struct {
	Agents []string `json:"agents" minItems:"1" doc:"Agents of the run; each is told of once, when it settles the next time, or at once where it has"`
	Wake   bool     `json:"wake,omitempty" doc:"Tell an idle agent in a turn of its own, instead of with its next prompt"`
	Keyed
}

func (s *server) inboxRoutes() {
	rs := s.routes
	handle(rs, agentRoute(http.MethodPost, "/notify-on", "notifyOn", "Have an agent told when others settle"),
		func(ctx context.Context, req *in[notifyBody]) (swarm.Subscription, error) {
			return s.Swarm.NotifyOn(ctx, req.id(), req.body.Agents, req.body.Wake, req.idem)
		})
	handle(rs, agentRoute(http.MethodGet, "/inbox", "getInbox", "What an agent is to be told, and what it was"),
		func(ctx context.Context, req *in[none]) (swarm.InboxView, error) {
			return s.Swarm.Inbox(ctx, req.id())
		})
	handle(rs, agentRoute(http.MethodPost, "/inbox/deliver", "deliverInbox", "Tell an agent what is in its inbox now, where it can be told"),
		func(ctx context.Context, req *in[keyedBody]) (swarm.InboxDelivery, error) {
			return s.Swarm.DeliverInbox(ctx, req.id(), req.idem)
		})
}
