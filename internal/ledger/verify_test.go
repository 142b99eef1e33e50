package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/ledger"
)

// history appends random batches that a daemon could append, and some that are
// refused. It keeps no model of its own: the guards decide what is valid.
func history(t *testing.T, l *ledger.Ledger, rnd *rand.Rand, batches int) {
	t.Helper()
	ctx := context.Background()
	pick := func(s ...string) string { return s[rnd.IntN(len(s))] }
	id := func(kind string, n int) string { return fmt.Sprintf("%s_%08x", kind, rnd.IntN(n)) }
	entry := func() ledger.Entry {
		a, s := id("a", 6), id("s", 12)
		e := ledger.Entry{AgentID: a, SandboxID: s, TurnID: id("t", 60)}
		switch e.Event = pick(ledger.RunStarted, ledger.AgentSpawned, ledger.AgentSpawned, ledger.AgentStateChanged, ledger.SandboxIntended,
			ledger.SandboxIntended, ledger.SandboxCreated, ledger.AgentProvisioned, ledger.AgentProvisioned, ledger.AgentRecovered,
			ledger.TurnRequested, ledger.TurnRequested, ledger.TurnRequested, ledger.TurnRequested, ledger.TurnStarted, ledger.TurnEnded,
			ledger.TurnEnded, ledger.TurnEnded, ledger.HandleSettled, ledger.AgentCheckpointed, ledger.AgentCheckpointFailed,
			ledger.CheckpointPruned, ledger.CheckpointDamaged, ledger.PermissionRequested, ledger.PermissionAnswered,
			ledger.PermissionResolved, ledger.SnapshotIntended, ledger.SnapshotCreated, ledger.SnapshotGone, ledger.SandboxReleased,
			ledger.SandboxRemoved, ledger.IntentStop, ledger.AgentStopped, ledger.AgentRevived, ledger.AgentEnded, ledger.SessionStarted,
			ledger.RunClosed, ledger.MessageEnded, "x.unknown"); e.Event {
		case ledger.RunStarted:
			e.RunID = id("r", 3)
			e.Payload = ledger.RunStartedPayload{RootAgentID: a, CloseWhen: pick("explicit", "quiescent")}
		case ledger.RunClosed:
			e = ledger.Entry{Event: e.Event}
			if rnd.IntN(20) == 0 {
				e.RunID = id("r", 3)
			}
		case ledger.AgentSpawned:
			e.RunID = id("r", 3)
			n := rnd.IntN(3)
			e.Payload = ledger.AgentSpawnedPayload{SpecName: "é\x00\"", Harness: "scripted", State: "provisioning", Depth: n, SpawnDepth: &n}
			e.Body = map[string]any{"spec": n}
		case ledger.AgentStateChanged:
			e.Payload = ledger.AgentStateChangedPayload{To: pick("running", "paused", "recovering", "done"), PausedBy: pick("", "self"), Recovering: pick("", "x")}
		case ledger.SandboxIntended:
			e.Payload = ledger.SandboxIntendedPayload{Runtime: "local", Generation: rnd.IntN(9), Purpose: "provision"}
		case ledger.SandboxCreated:
			e.Payload = ledger.SandboxCreatedPayload{Handle: pick("h1", "h2")}
		case ledger.AgentProvisioned:
			e.Payload = ledger.AgentProvisionedPayload{SandboxID: s, SessionID: pick("", "ses"), Messages: rnd.IntN(9)}
		case ledger.AgentRecovered:
			e.Payload = ledger.AgentRecoveredPayload{SandboxID: s, Blank: rnd.IntN(2) == 0, SessionID: pick("", "ses")}
		case ledger.TurnRequested:
			if a, err := l.Agent(ctx, a); err == nil {
				e.Payload = ledger.TurnRequestedPayload{Turn: a.Turn + 1}
			}
			e.Body = map[string]string{"text": "go"}
		case ledger.TurnStarted, ledger.TurnEnded:
			// Mostly one that can start or end.
			if open, err := l.Turns(ctx, ledger.TurnFilter{States: []string{"requested", "started"}}); err == nil && len(open) > 0 && rnd.IntN(4) > 0 {
				o := open[rnd.IntN(len(open))]
				e.AgentID, e.TurnID = o.AgentID, o.TurnID
			}
			if e.Event == ledger.TurnEnded {
				e.Payload = ledger.TurnEndedPayload{Outcome: pick("success", "failed", "interrupted"), Error: pick("", "e"), OwesCheckpoint: rnd.IntN(2) == 0, SessionID: pick("", "ses")}
			}
		case ledger.HandleSettled:
			e.Payload = ledger.HandleSettledPayload{Outcome: "success"}
		case ledger.AgentCheckpointed:
			e.Payload = ledger.AgentCheckpointedPayload{SnapshotRef: id("c", 20), TurnID: e.TurnID}
		case ledger.AgentCheckpointFailed:
			e.Payload = ledger.AgentCheckpointFailedPayload{Turn: rnd.IntN(10)}
		case ledger.CheckpointPruned, ledger.CheckpointDamaged:
			e.Payload = ledger.CheckpointRefPayload{SnapshotRef: id("c", 20)}
		case ledger.PermissionRequested:
			e.Payload = ledger.PermissionRequestedPayload{RequestID: id("p", 9)}
		case ledger.PermissionAnswered, ledger.PermissionResolved:
			e.Payload = ledger.PermissionResolvedPayload{RequestID: id("p", 9), Decision: pick("", "once")}
		case ledger.SnapshotIntended, ledger.SnapshotCreated, ledger.SnapshotGone:
			e = ledger.Entry{Event: e.Event, Payload: ledger.SnapshotPayload{Runtime: "local", Hash: id("h", 4), Skipped: []string{"a"}}}
		case ledger.IntentStop:
			e.Payload = ledger.IntentStopPayload{Mode: "drain"}
		case ledger.SessionStarted:
			e.Payload = ledger.SessionPayload{SessionID: pick("", "s1", "s2")}
		}
		return e
	}
	// Something for the rest to be about; refused when it is there already.
	seed := []ledger.Entry{runStarted("r_00000000", "a_00000000"), runStarted("r_00000001", "a_00000001")}
	for i := range 4 {
		seed = append(seed, spawned(fmt.Sprintf("r_%08x", i%2), fmt.Sprintf("a_%08x", i)))
	}
	for _, e := range seed {
		if _, err := l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{e}}); err != nil && !isRefusal(err) {
			t.Fatalf("Append: %v", err)
		}
	}
	for range batches {
		var b ledger.Batch
		for range 1 + rnd.IntN(3) {
			b.Entries = append(b.Entries, entry())
		}
		if rnd.IntN(4) == 0 {
			b.Cursor = &ledger.Cursor{SandboxID: b.Entries[0].SandboxID, Epoch: "e", Pos: rnd.Int64N(10_000)}
			if b.Cursor.SandboxID == "" {
				b.Cursor = nil
			}
		}
		if rnd.IntN(8) == 0 {
			b.Request = &ledger.Request{Scope: "s", Key: id("k", 99), BodyHash: pick("1", "2"), Answer: []byte("{}")}
		}
		_, err := l.Append(ctx, b)
		if err != nil && !isRefusal(err) {
			t.Fatalf("Append: %v", err)
		}
	}
}

// state is all that can be read of the projections.
func state(t *testing.T, l *ledger.Ledger) map[string]any {
	t.Helper()
	ctx := context.Background()
	m := map[string]any{}
	put := func(name string, v any, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m[name] = v
	}
	runs, err := l.Runs(ctx, ledger.RunFilter{})
	put("runs", runs, err)
	agents, err := l.Agents(ctx, ledger.AgentFilter{})
	put("agents", agents, err)
	for _, a := range agents {
		ps, err := l.Permissions(ctx, a.AgentID)
		put("permissions "+a.AgentID, ps, err)
		ev, err := l.Events(ctx, ledger.EventFilter{AgentID: a.AgentID, Bodies: true})
		put("events "+a.AgentID, ev, err)
	}
	turns, err := l.Turns(ctx, ledger.TurnFilter{})
	put("turns", turns, err)
	sandboxes, err := l.Sandboxes(ctx, ledger.SandboxFilter{})
	put("sandboxes", sandboxes, err)
	checkpoints, err := l.Checkpoints(ctx, ledger.CheckpointFilter{})
	put("checkpoints", checkpoints, err)
	return m
}

func TestRandomHistoriesVerifyAndRebuild(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			path := filepath.Join(t.TempDir(), "ledger.db")
			l := open(t, path, ledger.Options{})
			history(t, l, rnd, 800)
			if r := wantSound(t, l); r.Events < 200 {
				t.Fatalf("only %d events: the history is too poor to test anything", r.Events)
			}
			want := state(t, l)
			if len(want["turns"].([]ledger.Turn)) < 20 || len(want["sandboxes"].([]ledger.Sandbox)) < 5 {
				t.Fatal("too few turns or sandboxes to test anything")
			}
			for _, damage := range []string{
				"UPDATE agents SET state = 'x', turn = turn + 1",
				"DELETE FROM turns WHERE number % 2 = 0",
				"INSERT INTO handles VALUES ('a_ghost', 'open', '', '', '', 0)",
				"UPDATE sandboxes SET generation = 'text' WHERE state <> 'intended'",
				"DELETE FROM permissions",
				"UPDATE idempotency SET answer = 'text'",
				"DELETE FROM runs",
				"DELETE FROM cursors",
			} {
				raw(t, path, damage)
				r, err := l.Verify(t.Context())
				if err != nil {
					t.Fatalf("%s: Verify: %v", damage, err)
				}
				if r.OK || len(r.Differences) == 0 {
					t.Fatalf("Verify did not see: %s", damage)
				}
			}
			r, err := l.Rebuild(t.Context())
			if err != nil || !r.OK {
				t.Fatalf("Rebuild: %+v, %v", r, err)
			}
			wantSound(t, l)
			if d := cmp.Diff(want, state(t, l)); d != "" {
				t.Errorf("after Rebuild (-want +got):\n%s", d)
			}
			history(t, l, rnd, 100)
			wantSound(t, l)
		})
	}
}

// Damage of the log itself is reported event by event; neither Verify nor
// Rebuild stops at it.
func TestUnreadableEventsAreSetAside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path, ledger.Options{})
	begin(t, l)
	mustAppend(t, l, ledger.Entry{AgentID: agentID, Event: "some.other", Body: map[string]int{"a": 1}})
	if r := wantSound(t, l); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "some.other") {
		t.Errorf("notes: %q", r.Notes)
	}
	for i := range 4 {
		mustAppend(t, l, request(fmt.Sprintf("t_%d", i+1), i+1))
	}
	raw(t, path,
		"UPDATE ledger SET payload = '{\"turn\":' WHERE seq = 7", // the last request
		"UPDATE bodies SET body = 'no json' WHERE seq = 6",
		"INSERT INTO bodies VALUES (999, '{}')",
		"INSERT INTO ledger SELECT 8, ts, run_id, agent_id, sandbox_id, 't_1', 'turn.ended', '{}', NULL, NULL FROM ledger WHERE seq = 4",
		"INSERT INTO ledger SELECT 9, ts, run_id, agent_id, sandbox_id, 't_1', 'turn.ended', '{}', NULL, NULL FROM ledger WHERE seq = 4",
		"INSERT INTO ledger SELECT 12, ts, run_id, agent_id, 's_1', '', 'message.ended', '{}', 'e', 7 FROM ledger WHERE seq = 4")
	r, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"event 7 ", "event 9:", "bodies: 6", "bodies: 999", "events 10 to 11", "turns: row t_4", "cursors: sandbox s_1 has none"} {
		found := false
		for _, d := range r.Differences {
			found = found || strings.Contains(d, want)
		}
		if !found {
			t.Errorf("nothing about %q in\n%s", want, strings.Join(r.Differences, "\n"))
		}
	}
	if r, err = l.Rebuild(t.Context()); err != nil || r.OK {
		t.Fatalf("Rebuild: %+v, %v", r, err)
	}
	if c, err := l.Cursor(t.Context(), "s_1"); err != nil || c.Pos != 7 || c.Epoch != "e" {
		t.Errorf("cursor after Rebuild: %+v, %v", c, err)
	}
	if l.LastSeq() != 12 {
		// The log was written behind the ledger's back; Rebuild has read it.
		t.Errorf("LastSeq after Rebuild: %d", l.LastSeq())
	}
	turn, err := l.Turn(t.Context(), "t_1")
	if err != nil || turn.State != "ended" {
		t.Errorf("turn: %+v, %v", turn, err)
	}
	// It goes on, and what can be folded is.
	mustAppend(t, l, of(agentID, "", "t_2", ledger.TurnStarted, ledger.TurnStartedPayload{Turn: 2}))
}
