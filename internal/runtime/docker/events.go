package docker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/system"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/runtime"
)

const (
	// eventBuffer is room for what happens while a reader is busy. One that
	// falls further behind is told to list anew.
	eventBuffer = 256
	backoffMin  = 100 * time.Millisecond
	backoffMax  = 5 * time.Second
)

// Events implements runtime.Runtime. Where the engine does not answer at the
// beginning, EventDown comes before the first EventResync.
//
// Nothing falls between the subscription and the list that follows it, though
// the engine does not say when a subscription has begun: the engine's own time
// is asked for first, and the stream is opened from that time on. The engine
// keeps its last 256 events and hands those since then over, in one step with
// the subscription. What happens after the reader's list has begun, which is
// after EventResync, hence after that time, is either kept or yet to come.
func (d *Docker) Events(ctx context.Context) <-chan runtime.Event {
	out := make(chan runtime.Event, eventBuffer)
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(d.stop, cancel)
	d.wg.Go(func() {
		defer close(out)
		defer cancel()
		defer unhook()
		d.follow(ctx, out)
	})
	return out
}

// follow keeps a subscription up until ctx ends.
func (d *Docker) follow(ctx context.Context, out chan<- runtime.Event) {
	backoff, down := backoffMin, false
	for ctx.Err() == nil {
		connected, err := d.subscription(ctx, out)
		if ctx.Err() != nil {
			return
		}
		if connected {
			backoff, down = backoffMin, false
		}
		if !down {
			down = true
			d.log.Warn("event stream of the engine broke", zap.Error(err))
			if !send(ctx, out, runtime.Event{Type: runtime.EventDown, Time: d.clock.Now(), ExitCode: -1}) {
				return
			}
		}
		select {
		case <-d.clock.After(backoff):
		case <-ctx.Done():
			return
		}
		backoff = min(2*backoff, backoffMax)
	}
}

func send(ctx context.Context, out chan<- runtime.Event, ev runtime.Event) bool {
	select {
	case out <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

// subscription is one stream from its beginning to its end.
func (d *Docker) subscription(ctx context.Context, out chan<- runtime.Event) (connected bool, err error) {
	var engine system.Info
	err = d.call(ctx, "asking the engine for its time", func(ctx context.Context) (err error) {
		engine, err = d.cli.Info(ctx)
		return err
	})
	if err != nil {
		return false, err
	}
	since, err := time.Parse(time.RFC3339Nano, engine.SystemTime)
	if err != nil {
		return false, fmt.Errorf("reading the engine's time %q: %w", engine.SystemTime, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	messages, failed := d.cli.Events(ctx, events.ListOptions{
		Since: fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
		Filters: filters.NewArgs(
			filters.Arg("type", string(events.ContainerEventType)),
			filters.Arg("label", labelInstance+"="+d.opts.Instance),
			filters.Arg("event", string(events.ActionStart)), filters.Arg("event", string(events.ActionDie)),
			filters.Arg("event", string(events.ActionOOM)), filters.Arg("event", string(events.ActionPause)),
			filters.Arg("event", string(events.ActionUnPause)), filters.Arg("event", string(events.ActionDestroy)),
		),
	})
	// The client's goroutine has ended when it has closed failed.
	defer func() {
		cancel()
		for range failed {
		}
	}()
	// The client returns once the engine has answered, or failed to.
	select {
	case err := <-failed:
		return false, explain(ctx, "subscribing to events", err)
	default:
	}
	if !send(ctx, out, runtime.Event{Type: runtime.EventResync, Time: d.clock.Now(), ExitCode: -1}) {
		return true, ctx.Err()
	}
	for {
		select {
		case m := <-messages:
			ev, ok := d.translate(m)
			if !ok {
				continue
			}
			select {
			case out <- ev:
			default:
				// The reader is far behind, and the engine drops what is not
				// read from it in time. A list made after this is accepted
				// shows whatever was lost until then.
				resync := runtime.Event{Type: runtime.EventResync, Time: d.clock.Now(), ExitCode: -1}
				if !send(ctx, out, resync) {
					return true, ctx.Err()
				}
			}
		case err := <-failed:
			return true, explain(ctx, "reading events", err)
		}
	}
}

var eventTypes = map[events.Action]runtime.EventType{
	events.ActionStart:   runtime.EventStarted,
	events.ActionDie:     runtime.EventDied,
	events.ActionOOM:     runtime.EventOOM,
	events.ActionPause:   runtime.EventPaused,
	events.ActionUnPause: runtime.EventUnpaused,
	events.ActionDestroy: runtime.EventRemoved,
}

// translate turns a message of the engine into an event of the contract.
func (d *Docker) translate(m events.Message) (runtime.Event, bool) {
	typ, known := eventTypes[m.Action]
	labels, owned := d.ours("/"+m.Actor.Attributes["name"], m.Actor.Attributes)
	if !known || !owned {
		return runtime.Event{}, false
	}
	ev := runtime.Event{Type: typ, SandboxID: labels.SandboxID, Time: time.Unix(0, m.TimeNano).UTC(), ExitCode: -1}
	if typ == runtime.EventDied {
		if code, err := strconv.Atoi(m.Actor.Attributes["exitCode"]); err == nil {
			ev.ExitCode = code
		}
	}
	return ev, true
}
