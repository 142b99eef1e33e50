package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/ledger"
)

// 64 writers; followers that start at any time, of everything, of a run, of an
// agent, slow ones and fast ones, each see their events once and in order.
func TestFollowersSeeEachEventOnceInOrder(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	mustAppend(t, l, runStarted("r_00000000", "a_x"), runStarted("r_00000001", "a_y"))
	const writers, each = 64, 120
	id := func(w int) string { return fmt.Sprintf("a_%08x", w) }
	for w := range writers {
		mustAppend(t, l, spawned(fmt.Sprintf("r_%08x", w%2), id(w)))
	}
	const base = 2 + writers
	const total = base + writers*each
	var wg sync.WaitGroup
	for i := range 12 {
		var f ledger.EventFilter
		want := total
		switch i % 4 {
		case 1:
			f.RunID, want = "r_00000001", 1+(1+each)*writers/2
		case 2:
			f.AgentID, want = id(7), 1+each
		case 3:
			f.Names, want = []string{ledger.MessageEnded}, writers*each
		}
		f.Bodies = i%2 == 0
		f.Limit = []int{0, 3, 50}[i%3]
		wg.Go(func() {
			w := l.Follow(0, f)
			defer w.Close()
			var last int64
			per := map[string]int{}
			for n := 0; n < want; {
				events, err := w.Next(t.Context())
				if err != nil || len(events) == 0 {
					t.Errorf("Next: %d events, %v", len(events), err)
					return
				}
				if f.Limit > 0 && len(events) > f.Limit {
					t.Errorf("%d events at once, at most %d", len(events), f.Limit)
				}
				for _, e := range events {
					n++
					if e.Seq <= last || i%4 == 0 && e.Seq != last+1 {
						t.Errorf("event %d after %d", e.Seq, last)
						return
					}
					last = e.Seq
					if e.Event != ledger.MessageEnded {
						continue
					}
					if got := string(e.Payload); got != fmt.Sprintf(`{"i":%d}`, per[e.AgentID]) {
						t.Errorf("agent %s: %s is its event %d", e.AgentID, got, per[e.AgentID])
						return
					}
					per[e.AgentID]++
					if (e.Body != nil) != f.Bodies {
						t.Errorf("body %s, asked for: %v", e.Body, f.Bodies)
						return
					}
				}
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := l.Append(context.Background(), ledger.Batch{Entries: []ledger.Entry{
					{AgentID: id(w), Event: ledger.MessageEnded, Payload: map[string]int{"i": i}, Body: map[string]int{"b": i}}}}); err != nil {
					t.Errorf("Append: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if l.LastSeq() != total {
		t.Fatalf("LastSeq %d, want %d", l.LastSeq(), total)
	}
	wantSound(t, l)

	// By now there are full blocks, and followers from the start are behind
	// what is kept in memory: every way of reading agrees with a plain scan.
	all, err := l.Events(t.Context(), ledger.EventFilter{})
	if err != nil || len(all) != total {
		t.Fatalf("%d events, want %d (%v)", len(all), total, err)
	}
	for _, f := range []ledger.EventFilter{
		{AgentID: id(9)}, {RunID: "r_00000001"}, {RunID: "r_00000000", AgentID: id(2), After: 2000, Upto: 5000},
		{AgentID: id(9), Names: []string{ledger.AgentSpawned}}, {AgentID: id(9), Limit: 7, After: 100}, {Upto: 10}, {After: 7000, Limit: 3},
		{AgentID: id(1), After: 2047, Upto: 2048}, {RunID: "r_00000001", After: 4095, Limit: 1}, {AgentID: "a_none"}, {After: total},
	} {
		for _, desc := range []bool{false, true} {
			f.Desc = desc
			want := scan(all, f)
			got, err := l.Events(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%+v (-want +got):\n%s", f, d)
			}
		}
	}
}

func scan(all []ledger.Event, f ledger.EventFilter) (out []ledger.Event) {
	for i := range all {
		e := all[i]
		if f.Desc {
			e = all[len(all)-1-i]
		}
		named := len(f.Names) == 0
		for _, n := range f.Names {
			named = named || n == e.Event
		}
		if named && e.Seq > f.After && (f.Upto == 0 || e.Seq <= f.Upto) && (f.RunID == "" || e.RunID == f.RunID) &&
			(f.AgentID == "" || e.AgentID == f.AgentID) && (f.Limit == 0 || len(out) < f.Limit) {
			out = append(out, e)
		}
	}
	return out
}

func TestEventsOfATurn(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	mustAppend(t, l, request("t_1", 1), request("t_2", 2))
	for _, turn := range []string{"t_2", "t_1", "t_2"} {
		mustAppend(t, l, of(agentID, "", turn, ledger.MessageEnded, nil))
	}
	for _, f := range []ledger.EventFilter{{TurnID: "t_2"}, {TurnID: "t_2", AgentID: agentID}, {TurnID: "t_2", Limit: 3, RunID: runID}} {
		events, err := l.Events(t.Context(), f)
		if err != nil || len(events) != 3 || events[0].Seq != 4 || events[1].Seq != 5 || events[2].Seq != 7 {
			t.Errorf("%+v: %+v, %v", f, events, err)
		}
	}
	if events, err := l.Events(t.Context(), ledger.EventFilter{TurnID: "t_9"}); err != nil || len(events) != 0 {
		t.Errorf("unknown turn: %+v, %v", events, err)
	}
}

func TestFollowerEnds(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	w := l.Follow(2, ledger.EventFilter{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next: %v", err)
		}
	})
	cancel()
	wg.Wait()
	// It goes on where it was after a call that was given up.
	mustAppend(t, l, request("t_1", 1))
	if events, err := w.Next(t.Context()); err != nil || len(events) != 1 || events[0].Seq != 3 {
		t.Errorf("Next: %+v, %v", events, err)
	}
	wg.Go(func() {
		if _, err := w.Next(t.Context()); !errors.Is(err, ledger.ErrClosed) {
			t.Errorf("Next of a closed follower: %v", err)
		}
	})
	w.Close()
	w.Close()
	wg.Wait()
	upto := l.Follow(0, ledger.EventFilter{Upto: 2})
	defer upto.Close()
	if events, err := upto.Next(t.Context()); err != nil || len(events) != 2 {
		t.Errorf("Next: %+v, %v", events, err)
	}
	if _, err := upto.Next(t.Context()); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("Next past Upto: %v", err)
	}
}
