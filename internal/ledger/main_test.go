package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/ledger"
)

func TestMain(m *testing.M) {
	// The child of the crash tests is this binary, started again.
	if path := os.Getenv(childEnv); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// open opens a ledger that the test closes.
func open(t testing.TB, path string, o ledger.Options) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), path, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func fresh(t testing.TB) *ledger.Ledger {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "ledger.db"), ledger.Options{})
}

func mustAppend(t testing.TB, l *ledger.Ledger, entries ...ledger.Entry) []ledger.Event {
	t.Helper()
	events, err := l.Append(context.Background(), ledger.Batch{Entries: entries})
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	return events
}

func wantErr(t testing.TB, l *ledger.Ledger, kind error, entries ...ledger.Entry) {
	t.Helper()
	before := l.LastSeq()
	events, err := l.Append(context.Background(), ledger.Batch{Entries: entries})
	if !errors.Is(err, kind) {
		t.Fatalf("Append: %v, want %v", err, kind)
	}
	if events != nil || l.LastSeq() != before {
		t.Fatalf("a refused batch left %d events, the log at %d after %d", len(events), l.LastSeq(), before)
	}
}

// wantSound is that the projections are those of the log.
func wantSound(t testing.TB, l *ledger.Ledger) ledger.Report {
	t.Helper()
	r, err := l.Verify(context.Background())
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if !r.OK || len(r.Differences) > 0 {
		t.Fatalf("Verify: %v", r.Differences)
	}
	if r.Events != l.LastSeq() {
		t.Fatalf("Verify read %d events, the log has %d", r.Events, l.LastSeq())
	}
	return r
}

const (
	runID   = "r_00000001"
	agentID = "a_00000001"
)

func runStarted(run, root string) ledger.Entry {
	return ledger.Entry{RunID: run, Event: ledger.RunStarted,
		Payload: ledger.RunStartedPayload{RootAgentID: root, CloseWhen: "explicit"}}
}

func spawned(run, agent string) ledger.Entry {
	return ledger.Entry{RunID: run, AgentID: agent, Event: ledger.AgentSpawned,
		Payload: ledger.AgentSpawnedPayload{SpecName: "spec", Harness: "scripted", Runtime: "local", State: "provisioning", SetupHash: "h", Checkpointing: true},
		Body:    map[string]any{"spec": map[string]any{"name": "spec"}}}
}

func of(agent, sandbox, turn, event string, payload any) ledger.Entry {
	return ledger.Entry{AgentID: agent, SandboxID: sandbox, TurnID: turn, Event: event, Payload: payload}
}

// begin appends a run with one agent.
func begin(t testing.TB, l *ledger.Ledger) {
	t.Helper()
	mustAppend(t, l, runStarted(runID, agentID), spawned(runID, agentID))
}

// provision gives the agent a sandbox.
func provision(t testing.TB, l *ledger.Ledger, sandbox string, generation int) {
	t.Helper()
	mustAppend(t, l, of(agentID, sandbox, "", ledger.SandboxIntended, ledger.SandboxIntendedPayload{Runtime: "local", Generation: generation, Purpose: "provision"}))
	mustAppend(t, l, of(agentID, sandbox, "", ledger.SandboxCreated, ledger.SandboxCreatedPayload{Handle: "h-" + sandbox, Transport: "socket"}))
	mustAppend(t, l, of(agentID, sandbox, "", ledger.AgentProvisioned, ledger.AgentProvisionedPayload{SandboxID: sandbox, SessionID: "ses", Messages: 1}))
}

func request(turn string, number int) ledger.Entry {
	return ledger.Entry{AgentID: agentID, TurnID: turn, Event: ledger.TurnRequested,
		Payload: ledger.TurnRequestedPayload{Turn: number}, Body: map[string]any{"text": "do it"}}
}

func agent(t testing.TB, l *ledger.Ledger) ledger.Agent {
	t.Helper()
	a, err := l.Agent(context.Background(), agentID)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// isRefusal reports an error that concerns one batch only.
func isRefusal(err error) bool {
	for _, kind := range []error{ledger.ErrConflict, ledger.ErrCursor, ledger.ErrDuplicate, ledger.ErrKeyReused} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
