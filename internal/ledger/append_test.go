package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/ledger"
)

func TestAppendStoresAndReadsBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a dir?with#odd%20name", "ledger.db")
	lock, err := ledger.Lock(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	clock := clockwork.NewFakeClockAt(time.UnixMilli(1_700_000_000_123))
	l := open(t, path, ledger.Options{Clock: clock})
	begin(t, l)
	events := mustAppend(t, l, ledger.Entry{AgentID: agentID, SandboxID: "s_1", TurnID: "t_1", Event: ledger.MessageEnded,
		Payload: map[string]any{"role": "user", "n": 1}, Body: map[string]any{"n": 2, "text": "whole"}})
	want := []ledger.Event{{Seq: 3, TS: 1_700_000_000_123, RunID: runID, AgentID: agentID, SandboxID: "s_1", TurnID: "t_1",
		Event: ledger.MessageEnded, Payload: json.RawMessage(`{"n":1,"role":"user"}`)}}
	if d := cmp.Diff(want, events); d != "" {
		t.Errorf("Append (-want +got):\n%s", d)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, path, ledger.Options{})
	if l.LastSeq() != 3 {
		t.Fatalf("LastSeq after opening again: %d", l.LastSeq())
	}
	got, err := l.Events(t.Context(), ledger.EventFilter{After: 2, Bodies: true})
	if err != nil {
		t.Fatal(err)
	}
	want[0].Body = json.RawMessage(`{"n":2,"text":"whole"}`)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Events (-want +got):\n%s", d)
	}
	data := `{"agentId":"a_00000001","n":2,"role":"user","runId":"r_00000001","sandboxId":"s_1","text":"whole","ts":1700000000123,"turnId":"t_1"}`
	if s := string(got[0].Data()); s != data {
		t.Errorf("Data: %s", s)
	}
	if b, err := l.Body(t.Context(), 3); err != nil || string(b) != `{"n":2,"text":"whole"}` {
		t.Errorf("Body: %s, %v", b, err)
	}
	if _, err := l.Body(t.Context(), 1); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("Body of an event without: %v", err)
	}
	wantSound(t, l)
}

func TestDataKeepsWhatThePayloadSays(t *testing.T) {
	t.Parallel()
	e := ledger.Event{AgentID: "a_1", Payload: json.RawMessage(`{"agentId":"other"}`), Body: json.RawMessage(`not json`)}
	if s := string(e.Data()); s != `{"agentId":"other"}` {
		t.Errorf("Data: %s", s)
	}
}

func TestAppendRefusesWhatCanNeverBeStored(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	huge := strings.Repeat("x", ledger.MaxEntryBytes)
	for _, e := range []ledger.Entry{
		{AgentID: agentID},
		{AgentID: agentID, Event: "x", Payload: 3},
		{AgentID: agentID, Event: "x", Payload: []string{"a"}},
		{AgentID: agentID, Event: "x", Payload: json.RawMessage(`{"a":`)},
		{AgentID: agentID, Event: "x", Body: "text"},
		{AgentID: agentID, Event: "x", Body: map[string]string{"a": huge}},
		{AgentID: agentID, Event: "x", Payload: make(chan int)},
		{AgentID: agentID, Event: ledger.TurnRequested, TurnID: "t_1", Payload: map[string]any{"turn": "one"}},
	} {
		wantErr(t, l, ledger.ErrInvalid, e)
	}
	wantErr(t, l, ledger.ErrConflict, ledger.Entry{AgentID: "a_unknown1", Event: ledger.MessageEnded})
	wantErr(t, l, ledger.ErrConflict, ledger.Entry{AgentID: agentID, RunID: "r_other", Event: ledger.MessageEnded})
	wantSound(t, l)
}

func TestCursorMovesOnlyForward(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	move := func(pos int64, epoch string, n int) error {
		b := ledger.Batch{Cursor: &ledger.Cursor{SandboxID: "s_1", Epoch: epoch, Pos: pos}}
		for range n {
			b.Entries = append(b.Entries, of(agentID, "s_1", "", ledger.MessageEnded, nil))
		}
		_, err := l.Append(t.Context(), b)
		return err
	}
	if c, err := l.Cursor(t.Context(), "s_1"); err != nil || c != (ledger.Cursor{SandboxID: "s_1"}) {
		t.Fatalf("Cursor before any: %+v, %v", c, err)
	}
	if err := move(5, "e1", 2); err != nil {
		t.Fatal(err)
	}
	for _, pos := range []int64{5, 4, 0} {
		if err := move(pos, "e2", 1); !errors.Is(err, ledger.ErrCursor) {
			t.Errorf("cursor from 5 to %d: %v", pos, err)
		}
	}
	if err := move(9, "e2", 0); err != nil { // only ephemeral events in between
		t.Fatal(err)
	}
	if c, err := l.Cursor(t.Context(), "s_1"); err != nil || c != (ledger.Cursor{SandboxID: "s_1", Epoch: "e2", Pos: 9}) {
		t.Fatalf("Cursor: %+v, %v", c, err)
	}
	if l.LastSeq() != 4 {
		t.Fatalf("LastSeq %d, want 4", l.LastSeq())
	}
	wantSound(t, l)
}

func TestRequestIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	req := ledger.Request{Scope: "POST /agents/a/prompt", Key: "k", BodyHash: "h1", Status: 202, Answer: []byte(`{"ok":true}`)}
	b := ledger.Batch{Entries: []ledger.Entry{request("t_1", 1)}, Request: &req}
	events, err := l.Append(t.Context(), b)
	if err != nil || len(events) != 2 || events[1].Event != ledger.RequestAccepted {
		t.Fatalf("Append: %+v, %v", events, err)
	}
	if _, err := l.Append(t.Context(), b); !errors.Is(err, ledger.ErrDuplicate) {
		t.Errorf("repetition: %v", err)
	}
	got, err := l.Request(t.Context(), req.Scope, req.Key)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(req, got); d != "" {
		t.Errorf("Request (-want +got):\n%s", d)
	}
	other := req
	other.BodyHash = "h2"
	if _, err := l.Append(t.Context(), ledger.Batch{Request: &other}); !errors.Is(err, ledger.ErrKeyReused) {
		t.Errorf("other body: %v", err)
	}
	if _, err := l.Request(t.Context(), "other", "k"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("unknown request: %v", err)
	}
	wantSound(t, l)
}

// Refused batches and good ones in the same groups: the refused ones leave no
// trace, also those that fail after their first writes.
func TestRefusedBatchHarmsNoOther(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	mustAppend(t, l, runStarted(runID, "a_root0000"))
	const writers, rounds = 16, 12
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			id := fmt.Sprintf("a_%08x", w)
			if _, err := l.Append(t.Context(), ledger.Batch{Entries: []ledger.Entry{spawned(runID, id)}}); err != nil {
				t.Errorf("spawn: %v", err)
				return
			}
			for i := range rounds {
				turn := fmt.Sprintf("t_%08x%04x", w, i)
				good := ledger.Batch{Entries: []ledger.Entry{of(id, "", turn, ledger.TurnRequested, ledger.TurnRequestedPayload{Turn: i + 1})}}
				// Changes the agent, then cannot end a turn nobody requested.
				bad := ledger.Batch{Entries: []ledger.Entry{
					of(id, "", "", ledger.IntentStop, ledger.IntentStopPayload{Mode: "abort"}),
					spawned(runID, id+"ff"),
					of(id, "", "t_none0000", ledger.TurnEnded, ledger.TurnEndedPayload{Outcome: "success"}),
				}, Request: &ledger.Request{Scope: "s", Key: turn, BodyHash: "h"},
					Cursor: &ledger.Cursor{SandboxID: "s_" + id, Pos: int64(i + 1)}}
				if w%2 == 0 {
					if _, err := l.Append(t.Context(), bad); !errors.Is(err, ledger.ErrConflict) {
						t.Errorf("bad batch: %v", err)
					}
				}
				if _, err := l.Append(t.Context(), good); err != nil {
					t.Errorf("good batch: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if want := int64(1 + writers*(1+rounds)); l.LastSeq() != want {
		t.Errorf("LastSeq %d, want %d", l.LastSeq(), want)
	}
	agents, err := l.Agents(t.Context(), ledger.AgentFilter{})
	if err != nil || len(agents) != writers {
		t.Fatalf("%d agents, want %d (%v)", len(agents), writers, err)
	}
	for _, a := range agents {
		if a.StopMode != "" || a.Turn != rounds {
			t.Errorf("agent %s: stop mode %q, turn %d", a.AgentID, a.StopMode, a.Turn)
		}
		if c, err := l.Cursor(t.Context(), "s_"+a.AgentID); err != nil || c.Pos != 0 {
			t.Errorf("cursor of a refused batch: %+v, %v", c, err)
		}
	}
	wantSound(t, l)
}

func TestAppendAfterItsContextOrTheLedgerEnded(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{request("t_1", 1)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	if l.LastSeq() != 2 {
		t.Errorf("LastSeq %d", l.LastSeq())
	}
	f := l.Follow(2, ledger.EventFilter{})
	defer f.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := f.Next(t.Context()); !errors.Is(err, ledger.ErrClosed) {
			t.Errorf("follower of a closed ledger: %v", err)
		}
	})
	for range 3 {
		wg.Go(func() {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := l.Append(t.Context(), ledger.Batch{Entries: []ledger.Entry{request("t_1", 1)}}); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("Append: %v", err)
	}
	if _, err := l.Agent(t.Context(), agentID); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("Agent: %v", err)
	}
	if _, err := l.Verify(t.Context()); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("Verify: %v", err)
	}
	if _, err := l.Rebuild(t.Context()); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("Rebuild: %v", err)
	}
}

// The truth about appends whose contexts end at any moment: what was answered
// without error is stored, what was answered with one is not.
func TestAnswersOfCancelledAppendsAreTrue(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	var mu sync.Mutex
	stored := map[int64]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%2 == 0 {
					go cancel()
				}
				events, err := l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{of(agentID, "", "", ledger.MessageEnded, nil)}})
				cancel()
				if err == nil {
					mu.Lock()
					stored[events[0].Seq] = true
					mu.Unlock()
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("Append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := l.LastSeq() - 2; got != int64(len(stored)) {
		t.Errorf("%d stored, %d answered so", got, len(stored))
	}
	wantSound(t, l)
}
