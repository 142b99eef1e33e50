package swarm

import (
	"context"
	"errors"
	"io"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/ledger"
)

// Guests is how programs in a sandbox reach the daemon as their agent.
type Guests struct {
	// Token is the secret by which an agent's own programs are known.
	Token func(agentID string) string
	// Serve serves one connection of such a program, and closes it.
	Serve func(ctx context.Context, agentID string, conn io.ReadWriteCloser)
}

// maxGuests bounds the connections of one sandbox that are served at once. It
// stays below what a bridge serves, the daemon's own included.
const maxGuests = 8

type actorKey struct{}

// As has what is done with the context be done by an agent: it sees itself and
// those below it and nobody else, and what it does is recorded as its.
func As(ctx context.Context, agentID string) context.Context {
	return context.WithValue(ctx, actorKey{}, agentID)
}

// actor is the agent that asks; empty for a client of the daemon.
func actor(ctx context.Context) string {
	id, _ := ctx.Value(actorKey{}).(string)
	return id
}

// sees reports whether the actor may know of an agent.
func (s *Swarm) sees(ctx context.Context, a ledger.Agent) (bool, error) {
	who := actor(ctx)
	for who != "" && a.AgentID != who {
		if a.ParentAgentID == "" {
			return false, nil
		}
		var err error
		if a, err = s.Ledger.Agent(ctx, a.ParentAgentID); err != nil {
			return false, err
		}
	}
	return true, nil
}

// visible are those agents of a run that the actor may know of.
func visible(ctx context.Context, run []ledger.Agent) []ledger.Agent {
	if who := actor(ctx); who != "" {
		return below(run, who)
	}
	return run
}

// takeIn serves the programs that wait in the agent's sandbox.
func (o *owner) takeIn() {
	s, a := o.s, o.live
	if s.Guests.Serve == nil {
		return
	}
	s.work.Go(func() {
		for {
			select {
			case o.guests <- struct{}{}:
			case <-s.ctx.Done():
				return
			}
			conn, err := a.Visit(s.ctx)
			if err != nil {
				<-o.guests
				if s.ctx.Err() == nil && !errors.Is(err, bridge.ErrNobody) {
					o.log.Warn("taking in a program of the sandbox", zap.Error(err))
				}
				return
			}
			s.work.Go(func() {
				defer func() { <-o.guests }()
				s.Guests.Serve(s.ctx, o.id, conn)
			})
		}
	})
}
