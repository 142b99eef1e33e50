package runtimetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/runtime"
)

// subscribe opens the stream of events and checks how it begins.
func (p *place) subscribe() (<-chan runtime.Event, context.CancelFunc) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	events := p.Events(ctx)
	select {
	case ev := <-events:
		if ev.Type != runtime.EventResync || ev.SandboxID != "" {
			p.t.Errorf("first event: %+v, want a resync", ev)
		}
	case <-time.After(patience):
		p.t.Fatal("no first event")
	}
	return events, cancel
}

// drained checks that a stream ends after its context has.
func drained(t *testing.T, events <-chan runtime.Event) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the events go on after their context's end")
		}
	}
}

func testEvents(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	other := s.start(t) // its events must not be seen
	events, cancel := p.subscribe()
	defer cancel()
	foreign := other.create()

	info := p.create()
	id := info.SandboxID
	seen := func(typ runtime.EventType) runtime.Event {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case ev := <-events:
				if ev.SandboxID == foreign.SandboxID {
					t.Fatalf("an event of another instance: %+v", ev)
				}
				if ev.Type == typ && ev.SandboxID == id {
					return ev
				}
				if ev.Type == runtime.EventPaused || ev.Type == runtime.EventUnpaused {
					// A busy Docker Engine tells of it twice: when it has done
					// so, and when its own runtime tells it.
					continue
				}
				t.Fatalf("event %+v, want %q of %s", ev, typ, id)
			case <-timeout:
				t.Fatalf("no event %q", typ)
			}
		}
	}
	if ev := seen(runtime.EventStarted); ev.Time.IsZero() {
		t.Errorf("%+v has no time", ev)
	}
	p.must("Pause", p.Pause(ctx, id))
	seen(runtime.EventPaused)
	p.must("Unpause", p.Unpause(ctx, id))
	seen(runtime.EventUnpaused)
	p.talk(id).Close()
	p.must("Stop", p.Stop(ctx, id, patience))
	if ev := seen(runtime.EventDied); ev.ExitCode != 0 {
		t.Errorf("died with exit code %d, want 0", ev.ExitCode)
	}
	p.must("Start", p.Start(ctx, id))
	seen(runtime.EventStarted)
	p.must("Remove", p.Remove(ctx, id))
	if ev := seen(runtime.EventDied); ev.ExitCode != 137 {
		t.Errorf("killed, exit code %d, want 137", ev.ExitCode)
	}
	seen(runtime.EventRemoved)
	cancel()
	drained(t, events)

	// The end of the driver ends the streams that are open.
	events, cancel = other.subscribe()
	defer cancel()
	Clear(ctx, t, other)
	p.must("Close", other.Close())
	drained(t, events)
}

// testEventsAfterRestart: one that outlived its daemon is watched by the next.
func testEventsAfterRestart(t *testing.T, s *suite) {
	first := s.start(t)
	info := first.create()
	first.talk(info.SandboxID).Close()
	p := s.open(t, first.cfg)
	events, cancel := p.subscribe()
	defer cancel()
	first.must("Stop", first.Stop(t.Context(), info.SandboxID, 0))
	next(t, events, runtime.EventDied, info.SandboxID)
	p.wantState(info.SandboxID, runtime.StateStopped)
}

// testDaemonRestarted: a driver made anew finds everything as it was.
func testDaemonRestarted(t *testing.T, s *suite) {
	ctx := t.Context()
	first := s.start(t)
	running, frozen, stopped := first.create(), first.create(), first.create()
	conn := first.talk(running.SandboxID)
	defer conn.Close()
	first.talk(stopped.SandboxID).Close()
	first.must("Pause", first.Pause(ctx, frozen.SandboxID))
	first.must("Stop", first.Stop(ctx, stopped.SandboxID, patience))
	first.must("Close", first.Close())

	p := s.open(t, first.cfg)
	if got := p.wantState(running.SandboxID, runtime.StateRunning); got.Labels != running.Labels || got.Handle != running.Handle || !got.StartedAt.Equal(running.StartedAt) {
		t.Errorf("after a restart: %+v, before: %+v", got, running)
	}
	p.talk(running.SandboxID).Close()
	p.wantState(frozen.SandboxID, runtime.StatePaused)
	if got := p.wantState(stopped.SandboxID, runtime.StateStopped); got.ExitCode != 0 || got.FinishedAt.IsZero() {
		t.Errorf("stopped before a restart: %+v, want exit code 0 and a time", got)
	}
	p.must("Kick", p.Kick(ctx, running.SandboxID))
	p.talk(running.SandboxID).Close()
	p.must("Unpause", p.Unpause(ctx, frozen.SandboxID))
	p.talk(frozen.SandboxID).Close()
	p.must("Start", p.Start(ctx, stopped.SandboxID))
	p.talk(stopped.SandboxID).Close()
	p.must("Stop", p.Stop(ctx, running.SandboxID, patience))
	p.wantState(running.SandboxID, runtime.StateStopped)
	p.must("Remove", p.Remove(ctx, frozen.SandboxID))
	if _, ok := p.find(frozen.SandboxID); ok {
		t.Error("removed, and still there")
	}
}

// testOtherInstance: on the same state directory, another instance sees and
// touches nothing.
func testOtherInstance(t *testing.T, s *suite) {
	p := s.start(t)
	info := p.create()
	p.talk(info.SandboxID).Close() // or else no one could dial it anyway
	cfg := p.cfg
	cfg.Instance = TestInstance()
	other := s.open(t, cfg)
	if infos, err := other.List(t.Context()); err != nil || len(infos) != 0 {
		t.Errorf("List of another instance: %+v, %v", infos, err)
	}
	for name, err := range other.everyCall(info.SandboxID) {
		if !errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("%s by another instance: %v, want ErrNotFound", name, err)
		}
	}
	req := p.request()
	req.Labels = info.Labels
	if _, err := other.Create(t.Context(), req); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("Create by another instance: %v, want ErrForeign", err)
	}
	other.must("Remove", other.Remove(t.Context(), info.SandboxID))
	p.wantState(info.SandboxID, runtime.StateRunning)
	p.talk(info.SandboxID).Close()
}
