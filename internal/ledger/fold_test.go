package ledger_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/alineod/alineod/internal/ledger"
)

func TestFoldRun(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	wantErr(t, l, ledger.ErrConflict, runStarted(runID, agentID))
	wantErr(t, l, ledger.ErrConflict, spawned("r_other", "a_other"))
	mustAppend(t, l, spawned(runID, "a_00000002"))
	mustAppend(t, l, ledger.Entry{RunID: runID, Event: ledger.RunClosed, Payload: ledger.RunClosedPayload{Reason: "asked"}})
	wantErr(t, l, ledger.ErrConflict, ledger.Entry{RunID: runID, Event: ledger.RunClosed})
	got, err := l.Run(t.Context(), runID)
	if err != nil {
		t.Fatal(err)
	}
	want := ledger.Run{RunID: runID, RootAgentID: agentID, CloseWhen: "explicit", State: "closed", Agents: 2}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(ledger.Run{}, "CreatedAt", "ClosedAt")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.CreatedAt == 0 || got.ClosedAt < got.CreatedAt {
		t.Errorf("times: %+v", got)
	}
	wantSound(t, l)
}

func TestFoldSpawnedAndStates(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	two := 2
	mustAppend(t, l, runStarted(runID, agentID), ledger.Entry{RunID: runID, AgentID: agentID, Event: ledger.AgentSpawned,
		Payload: ledger.AgentSpawnedPayload{ParentAgentID: "a_p", Depth: 1, SpawnIndex: 3, SpecName: "n", Harness: "pi", Model: "m",
			Runtime: "docker", State: "spawning", Checkpointing: true, SpawnDepth: &two, SetupHash: "h"}})
	want := ledger.Agent{AgentID: agentID, RunID: runID, ParentAgentID: "a_p", Depth: 1, SpawnIndex: 3, SpecName: "n", Harness: "pi",
		Model: "m", Runtime: "docker", SetupHash: "h", Checkpointing: true, SpawnDepth: &two, SpawnedSeq: 2, State: "spawning", UpdatedSeq: 2}
	check := func(what string) {
		t.Helper()
		if d := cmp.Diff(want, agent(t, l), cmpopts.IgnoreFields(ledger.Agent{}, "CreatedAt")); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	check("spawned")
	wantErr(t, l, ledger.ErrConflict, spawned(runID, agentID))
	change := func(p ledger.AgentStateChangedPayload) ledger.Entry {
		return of(agentID, "", "", ledger.AgentStateChanged, p)
	}
	mustAppend(t, l, change(ledger.AgentStateChangedPayload{From: "spawning", To: "paused", Reason: "asked", PausedBy: "parent", Recovering: "ignored"}))
	want.State, want.Reason, want.PausedBy, want.UpdatedSeq = "paused", "asked", "parent", 3
	check("paused")
	wantErr(t, l, ledger.ErrConflict, change(ledger.AgentStateChangedPayload{From: "running", To: "done"}))
	mustAppend(t, l, change(ledger.AgentStateChangedPayload{To: "recovering", Recovering: "runtime_unreachable", PausedBy: "ignored"}))
	want.State, want.Reason, want.PausedBy, want.Recovering, want.UpdatedSeq = "recovering", "", "", "runtime_unreachable", 4
	check("recovering")
	mustAppend(t, l, of(agentID, "", "", ledger.IntentStop, ledger.IntentStopPayload{Mode: "drain"}))
	want.StopMode, want.UpdatedSeq = "drain", 5
	check("stop asked for")
	mustAppend(t, l, of(agentID, "", "", ledger.MessageEnded, nil))
	check("a message changes nothing")
	mustAppend(t, l, of(agentID, "", "", ledger.AgentStopped, ledger.ReasonPayload{Reason: "asked"}))
	want.StopMode, want.UpdatedSeq = "", 7
	check("stopped")
	mustAppend(t, l, of(agentID, "", "", ledger.IntentStop, ledger.IntentStopPayload{Mode: "abort"}),
		of(agentID, "", "", ledger.AgentEnded, ledger.AgentEndedPayload{Outcome: "aborted", EndedAt: 77, Error: "why"}))
	want.Outcome, want.EndedAt, want.Error, want.UpdatedSeq = "aborted", 77, "why", 9
	check("ended")
	mustAppend(t, l, of(agentID, "", "", ledger.AgentRevived, ledger.ReasonPayload{Reason: "asked"}))
	want.EndedAt, want.UpdatedSeq = 0, 10
	check("revived")
	mustAppend(t, l, of(agentID, "", "", ledger.SessionStarted, ledger.SessionPayload{SessionID: "s9", Messages: 5}))
	want.SessionID, want.UpdatedSeq = "s9", 11
	check("session started")
	wantSound(t, l)
}

func TestFoldSandboxes(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	provision(t, l, "s_00000001", 1)
	wantErr(t, l, ledger.ErrConflict, of(agentID, "s_00000001", "", ledger.AgentProvisioned, ledger.AgentProvisionedPayload{SandboxID: "s_00000001"}))
	wantErr(t, l, ledger.ErrConflict, of(agentID, "s_x", "", ledger.AgentProvisioned, ledger.AgentProvisionedPayload{SandboxID: "s_x"}))
	wantErr(t, l, ledger.ErrConflict, of(agentID, "s_00000001", "", ledger.SandboxIntended, ledger.SandboxIntendedPayload{}))
	wantErr(t, l, ledger.ErrConflict, of(agentID, "s_x", "", ledger.SandboxCreated, ledger.SandboxCreatedPayload{}))
	provision(t, l, "s_00000002", 2)
	// A third one comes with the recovery itself.
	mustAppend(t, l, of(agentID, "s_00000003", "", ledger.SandboxIntended, ledger.SandboxIntendedPayload{Runtime: "local", Generation: 3, Purpose: "restore"}),
		of(agentID, "s_00000003", "", ledger.AgentRecovered, ledger.AgentRecoveredPayload{Rung: "restored", SandboxID: "s_00000003",
			PreviousSandboxID: "s_00000002", SessionID: "ses3", Messages: 7}))
	a := agent(t, l)
	if a.SandboxID != "s_00000003" || a.Generation != 3 || a.SessionID != "ses3" || a.Messages != 7 {
		t.Errorf("agent: %+v", a)
	}
	// Reattached says nothing of the session, and moves nothing.
	mustAppend(t, l, of(agentID, "s_00000003", "", ledger.AgentRecovered, ledger.AgentRecoveredPayload{Rung: "reattached", SandboxID: "s_00000003"}))
	if a := agent(t, l); a.SessionID != "ses3" || a.Messages != 7 {
		t.Errorf("agent after it was reattached: %+v", a)
	}
	mustAppend(t, l, of(agentID, "s_00000001", "", ledger.SandboxRemoved, ledger.ReasonPayload{Reason: "released"}))
	mustAppend(t, l, of("", "s_unknown1", "", ledger.SandboxRemoved, ledger.ReasonPayload{Reason: "orphan"}))
	mustAppend(t, l, of("", "s_builder1", "", ledger.SandboxIntended, ledger.SandboxIntendedPayload{Runtime: "local", Purpose: "setup"}))
	want := map[string]string{"s_00000001": "removed", "s_00000002": "released", "s_00000003": "current", "s_builder1": "intended"}
	got := map[string]string{}
	all, err := l.Sandboxes(t.Context(), ledger.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		got[s.SandboxID] = s.State
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	for id := range want {
		a, err := l.AgentBySandbox(t.Context(), id)
		if id == "s_builder1" {
			if !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("agent of a builder: %v", err)
			}
		} else if err != nil || a.AgentID != agentID {
			t.Errorf("agent of %s: %q, %v", id, a.AgentID, err)
		}
	}
	one, err := l.Sandboxes(t.Context(), ledger.SandboxFilter{AgentID: agentID, States: []string{"released", "removed"}})
	if err != nil || len(one) != 2 {
		t.Errorf("by state: %+v, %v", one, err)
	}
	s, err := l.Sandbox(t.Context(), "s_00000002")
	if err != nil || s.Handle != "h-s_00000002" || s.Transport != "socket" || s.RunID != runID {
		t.Errorf("sandbox: %+v, %v", s, err)
	}
	wantSound(t, l)
}

func TestFoldTurns(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	if _, err := l.Handle(t.Context(), agentID); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("handle before a prompt: %v", err)
	}
	wantErr(t, l, ledger.ErrConflict, request("t_1", 2))
	mustAppend(t, l, request("t_1", 1))
	wantErr(t, l, ledger.ErrConflict, request("t_1", 2))
	wantErr(t, l, ledger.ErrConflict, request("t_2", 1))
	mustAppend(t, l, request("t_2", 2))
	mustAppend(t, l, of(agentID, "s_1", "t_1", ledger.TurnStarted, ledger.TurnStartedPayload{Turn: 1}))
	end := func(turn string, p ledger.TurnEndedPayload) ledger.Entry {
		return of(agentID, "s_1", turn, ledger.TurnEnded, p)
	}
	settle := func(turn, outcome string) ledger.Entry {
		return of(agentID, "", turn, ledger.HandleSettled, ledger.HandleSettledPayload{Outcome: outcome, ResultRef: "turn:" + turn})
	}
	mustAppend(t, l, end("t_1", ledger.TurnEndedPayload{Turn: 1, Outcome: "failed", Class: "model_error", Error: "bad", SessionID: "ses", Messages: 4}),
		settle("t_1", "failed"))
	wantErr(t, l, ledger.ErrConflict, end("t_1", ledger.TurnEndedPayload{Turn: 1, Outcome: "success"}))
	wantErr(t, l, ledger.ErrConflict, of(agentID, "s_1", "t_1", ledger.TurnStarted, ledger.TurnStartedPayload{Turn: 1}))
	wantErr(t, l, ledger.ErrConflict, end("t_none", ledger.TurnEndedPayload{}))
	if a := agent(t, l); a.Outcome != "failed" || a.Error != "bad" || a.SessionID != "ses" || a.Messages != 4 || a.Turn != 2 {
		t.Errorf("agent after a failure: %+v", a)
	}
	// The second prompt was accepted before the first turn ended: its answer is
	// still owed.
	if h, err := l.Handle(t.Context(), agentID); err != nil || h.State != "open" || h.TurnID != "t_2" {
		t.Errorf("handle with a turn queued: %+v, %v", h, err)
	}
	mustAppend(t, l, end("t_2", ledger.TurnEndedPayload{Turn: 2, Outcome: "interrupted"}), settle("t_2", "interrupted"))
	if a := agent(t, l); a.Outcome != "interrupted" || a.Error != "bad" {
		t.Errorf("agent after an interruption: %+v", a)
	}
	mustAppend(t, l, request("t_3", 3))
	mustAppend(t, l, end("t_3", ledger.TurnEndedPayload{Turn: 3, Outcome: "success", OwesCheckpoint: true, SessionID: "ses", Messages: 8}),
		settle("t_3", "success"))
	if a := agent(t, l); a.Outcome != "success" || a.Error != "" || a.Messages != 8 {
		t.Errorf("agent after a success: %+v", a)
	}
	h, err := l.Handle(t.Context(), agentID)
	want := ledger.Handle{AgentID: agentID, State: "settled", Outcome: "success", ResultRef: "turn:t_3", TurnID: "t_3"}
	if d := cmp.Diff(want, h, cmpopts.IgnoreFields(ledger.Handle{}, "SettledAt")); err != nil || d != "" {
		t.Errorf("handle: %v (-want +got):\n%s", err, d)
	}
	owing := func() int {
		t.Helper()
		turns, err := l.Turns(t.Context(), ledger.TurnFilter{OwesCheckpoint: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(turns)
	}
	if n := owing(); n != 1 {
		t.Errorf("%d turns owe a checkpoint, want 1", n)
	}
	mustAppend(t, l, of(agentID, "s_1", "t_3", ledger.AgentCheckpointFailed, ledger.AgentCheckpointFailedPayload{Turn: 3, Error: "full"}))
	if n := owing(); n != 0 {
		t.Errorf("%d turns owe a checkpoint after it failed", n)
	}
	turn, err := l.Turn(t.Context(), "t_1")
	if err != nil || turn.State != "ended" || turn.Class != "model_error" || turn.SandboxID != "s_1" || turn.StartedSeq == 0 || turn.EndedSeq <= turn.StartedSeq {
		t.Errorf("turn: %+v, %v", turn, err)
	}
	wantSound(t, l)
}

func TestFoldCheckpoints(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	for i, ref := range []string{"c1", "c2", "c3"} {
		turn := "t_" + ref
		mustAppend(t, l, request(turn, i+1))
		mustAppend(t, l, of(agentID, "s_1", turn, ledger.TurnEnded, ledger.TurnEndedPayload{Turn: i + 1, Outcome: "success"}),
			of(agentID, "s_1", turn, ledger.CheckpointIntended, nil))
		mustAppend(t, l, of(agentID, "s_1", turn, ledger.AgentCheckpointed, ledger.AgentCheckpointedPayload{Turn: i + 1, TurnID: turn,
			SnapshotRef: ref, SHA256: "sum", Bytes: 10, Files: 2, SessionID: "ses", Messages: 2 * i}))
	}
	if owing, err := l.Turns(t.Context(), ledger.TurnFilter{AgentID: agentID, OwesCheckpoint: true}); err != nil || len(owing) != 0 {
		t.Errorf("owing: %+v, %v", owing, err)
	}
	mustAppend(t, l, of(agentID, "", "", ledger.CheckpointPruned, ledger.CheckpointRefPayload{SnapshotRef: "c1"}),
		of(agentID, "", "", ledger.CheckpointDamaged, ledger.CheckpointRefPayload{SnapshotRef: "c3", Reason: "short"}))
	wantErr(t, l, ledger.ErrConflict, of(agentID, "", "", ledger.CheckpointPruned, ledger.CheckpointRefPayload{SnapshotRef: "c9"}))
	kept, err := l.Checkpoints(t.Context(), ledger.CheckpointFilter{AgentID: agentID, SandboxID: "s_1", State: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != 2 || kept[0].SnapshotRef != "c3" || kept[0].Damaged != "short" || kept[1].SnapshotRef != "c2" || kept[1].Damaged != "" {
		t.Errorf("kept: %+v", kept)
	}
	pruned, err := l.Checkpoints(t.Context(), ledger.CheckpointFilter{State: "pruned"})
	if err != nil || len(pruned) != 1 || pruned[0].Turn != 1 || pruned[0].Bytes != 10 {
		t.Errorf("pruned: %+v, %v", pruned, err)
	}
	wantSound(t, l)
}

func TestFoldPermissions(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	begin(t, l)
	mustAppend(t, l, request("t_1", 1))
	ask := func(id string) ledger.Entry {
		return of(agentID, "s_1", "t_1", ledger.PermissionRequested, ledger.PermissionRequestedPayload{RequestID: id, Title: "may I"})
	}
	say := func(event, id, decision string) ledger.Entry {
		return of(agentID, "s_1", "t_1", event, ledger.PermissionResolvedPayload{RequestID: id, Decision: decision})
	}
	mustAppend(t, l, ask("p1"), ask("p2"), ask("p3"))
	mustAppend(t, l, say(ledger.PermissionAnswered, "p1", "once"))
	wantErr(t, l, ledger.ErrConflict, say(ledger.PermissionAnswered, "p1", "reject"))
	wantErr(t, l, ledger.ErrConflict, say(ledger.PermissionAnswered, "p9", "once"))
	mustAppend(t, l, say(ledger.PermissionResolved, "p2", "reject"), say(ledger.PermissionResolved, "p9", "once"))
	read := func(states ...string) map[string]string {
		t.Helper()
		ps, err := l.Permissions(t.Context(), agentID, states...)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for _, p := range ps {
			m[p.RequestID] = p.State + " " + p.Decision
		}
		return m
	}
	if d := cmp.Diff(map[string]string{"p1": "answered once", "p3": "pending "}, read("pending", "answered")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	mustAppend(t, l, of(agentID, "s_1", "t_1", ledger.TurnEnded, ledger.TurnEndedPayload{Turn: 1, Outcome: "interrupted"}))
	if d := cmp.Diff(map[string]string{"p1": "resolved once", "p2": "resolved reject", "p3": "resolved cancelled"}, read()); d != "" {
		t.Errorf("after the turn (-want +got):\n%s", d)
	}
	mustAppend(t, l, ask("p3"))
	if d := cmp.Diff(map[string]string{"p3": "pending "}, read("pending")); d != "" {
		t.Errorf("asked again (-want +got):\n%s", d)
	}
	wantSound(t, l)
}

func TestFoldSetupSnapshots(t *testing.T) {
	t.Parallel()
	l := fresh(t)
	read := func() ledger.Snapshot {
		t.Helper()
		s, err := l.Snapshot(t.Context(), "docker", "h")
		if err != nil {
			t.Fatal(err)
		}
		s.CreatedAt = 0
		return s
	}
	if _, err := l.Snapshot(t.Context(), "docker", "h"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	add := func(event string, p ledger.SnapshotPayload) {
		mustAppend(t, l, ledger.Entry{Event: event, Payload: p})
	}
	add(ledger.SnapshotIntended, ledger.SnapshotPayload{Runtime: "docker", Hash: "h"})
	if d := cmp.Diff(ledger.Snapshot{Runtime: "docker", Hash: "h", State: "intended"}, read()); d != "" {
		t.Errorf("intended (-want +got):\n%s", d)
	}
	add(ledger.SnapshotCreated, ledger.SnapshotPayload{Runtime: "docker", Hash: "h", Ref: "img", Skipped: []string{"npm"}})
	if d := cmp.Diff(ledger.Snapshot{Runtime: "docker", Hash: "h", Ref: "img", State: "created", Skipped: []string{"npm"}}, read()); d != "" {
		t.Errorf("created (-want +got):\n%s", d)
	}
	add(ledger.SnapshotGone, ledger.SnapshotPayload{Runtime: "docker", Hash: "h"})
	if s := read(); s.State != "gone" || s.Ref != "img" {
		t.Errorf("gone: %+v", s)
	}
	wantSound(t, l)
}
