package swarm

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// pulseEvery is the time between two looks at a connected agent: a bridge that
// hangs breaks no connection.
const pulseEvery = 15 * time.Second

// beat asks the bridge for a sign of life, and looks whether the turn in
// progress has been silent for too long.
func (o *owner) beat() {
	if o.live == nil || o.task != nil || o.row.State == StatePaused || o.s.forks.Held(o.row.SandboxID) {
		return
	}
	ctx, cancel := context.WithTimeout(o.s.ctx, o.s.HelloTimeout)
	defer cancel()
	if _, err := o.live.Status(ctx); err != nil {
		if o.s.ctx.Err() == nil && connectionLost(err) {
			o.lostBridge(err)
		}
		return
	}
	if o.s.TurnIdle > 0 && o.turnID != "" {
		o.listen()
	}
}

// listen ends a turn in which the harness has said nothing for too long: by an
// abort, and where that is not heeded by the harness's end. A turn that waits
// for a person's answer is silent with good reason.
func (o *owner) listen() {
	limit := o.s.TurnIdle
	if o.silenced == o.turnID {
		limit = o.s.StopGrace
	}
	if o.s.Clock.Since(o.heard) < limit {
		return
	}
	pending, err := o.s.Ledger.Permissions(o.s.ctx, o.id, requestPending)
	if err != nil || len(pending) > 0 {
		return
	}
	live, first := o.live, o.silenced != o.turnID
	o.silenced, o.heard = o.turnID, o.s.Clock.Now()
	o.log.Warn("the harness says nothing; its turn is ended", zap.String("turn", o.turnID), zap.Bool("abort", first))
	ctx, cancel := o.ctxShort()
	defer cancel()
	if first {
		err = live.Abort(ctx)
	} else {
		err = live.StopHarness(ctx, time.Second)
	}
	if err != nil {
		o.log.Warn("ending a silent turn", zap.Error(err))
	}
}
