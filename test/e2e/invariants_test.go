package e2e_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// secret stands in the daemon's environment of every test. No file below the
// state directory may hold it.
const secret = "s3cret-value-of-these-tests"

// invariants holds the state directory of a daemon that is not running against
// what recovery.md promises after any fault.
func (d *daemon) invariants() {
	d.t.Helper()
	ctx := context.Background()
	path := filepath.Join(d.dir, "ledger.db")
	report, err := ledger.VerifyFile(ctx, path)
	if err != nil {
		d.t.Fatalf("verifying the ledger: %v", err)
	}
	if !report.OK {
		d.t.Errorf("projections differ from a fresh fold: %q", report.Differences)
	}
	l, err := ledger.Open(ctx, path, ledger.Options{Log: zap.NewNop()})
	if err != nil {
		d.t.Fatalf("opening the ledger: %v", err)
	}
	defer l.Close()
	events, err := l.Events(ctx, ledger.EventFilter{Bodies: true})
	if err != nil {
		d.t.Fatal(err)
	}
	d.checkEvents(events)
	agents, err := l.Agents(ctx, ledger.AgentFilter{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, a := range agents {
		d.checkAgent(ctx, l, a)
	}
	d.checkSecrets()
}

// checkEvents: the sequence has no gaps, each event is as the API documents it,
// each turn ended at most once, each message and tool call was stored once, no prompt started twice in a sandbox.
func (d *daemon) checkEvents(events []ledger.Event) {
	d.t.Helper()
	ended, started, said := map[string]int{}, map[string]int{}, map[string]int{}
	for i, e := range events {
		if e.Seq != int64(i)+1 {
			d.t.Fatalf("event %d of the log has seq %d", i+1, e.Seq)
		}
		if doc := promised.Load(); ledger.Public(e.Event) && doc != nil {
			if err := doc.Event(e.Seq, e.Event, e.Data()); err != nil {
				d.t.Error(err)
			}
		}
		switch e.Event {
		case ledger.TurnEnded:
			ended[e.TurnID]++
		case ledger.TurnStarted:
			started[e.TurnID]++
		case ledger.ToolStarted, ledger.ToolEnded:
			var c ledger.ToolCall
			if err := json.Unmarshal(e.Payload, &c); err != nil {
				d.t.Errorf("seq %d: %v", e.Seq, err)
			}
			said[e.SandboxID+" "+e.TurnID+" "+e.Event+" "+c.ID]++
		case ledger.MessageEnded:
			// The tests say each text once in a turn. A message without text
			// calls a tool: the call has been counted.
			var m struct{ Text string }
			if err := json.Unmarshal(e.Body, &m); err != nil || m.Text == "" {
				continue
			}
			said[e.SandboxID+" "+e.TurnID+" "+e.Event+" "+string(e.Body)]++
		}
	}
	for what, n := range merge(ended, started, said) {
		if n > 1 {
			d.t.Errorf("%d times in the ledger: %s", n, what)
		}
	}
}

func merge(maps ...map[string]int) map[string]int {
	all := map[string]int{}
	for i, m := range maps {
		for k, v := range m {
			all[string(rune('a'+i))+" "+k] = v
		}
	}
	return all
}

// checkAgent: one current sandbox for each live agent, none running without a
// turn, at most the retained checkpoints, and each of them verifies.
func (d *daemon) checkAgent(ctx context.Context, l *ledger.Ledger, a ledger.Agent) {
	d.t.Helper()
	current, err := l.Sandboxes(ctx, ledger.SandboxFilter{AgentID: a.AgentID, States: []string{"current"}})
	if err != nil {
		d.t.Fatal(err)
	}
	if len(current) > 1 {
		d.t.Errorf("agent %s has %d current sandboxes", a.AgentID, len(current))
	}
	if a.State == swarm.StateRunning {
		open, err := l.Turns(ctx, ledger.TurnFilter{AgentID: a.AgentID, States: []string{"started"}})
		if err != nil || len(open) != 1 {
			d.t.Errorf("agent %s is running with %d turns in progress (%v)", a.AgentID, len(open), err)
		}
	}
	kept, err := l.Checkpoints(ctx, ledger.CheckpointFilter{AgentID: a.AgentID, State: "kept"})
	if err != nil {
		d.t.Fatal(err)
	}
	perSandbox := map[string]int{}
	store, err := checkpoint.NewFileStore(filepath.Join(d.dir, "checkpoints"), checkpoint.FileOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	defer store.Close()
	for _, c := range kept {
		perSandbox[c.SandboxID]++
		if err := store.Verify(ctx, c.SnapshotRef, c.SHA256); err != nil && c.Damaged == "" {
			d.t.Errorf("checkpoint of turn %d of %s: %v", c.Turn, a.AgentID, err)
		}
	}
	for sandbox, n := range perSandbox {
		if n > checkpoint.DefaultRetain {
			d.t.Errorf("%d checkpoints of %s are kept", n, sandbox)
		}
	}
}

func (d *daemon) checkSecrets() {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(d.dir, "bin")) {
			return nil // gone meanwhile, or the program itself
		}
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), secret) {
			d.t.Errorf("a secret stands in %s", path)
		}
		return nil
	})
	if err != nil {
		d.t.Error(err)
	}
	if strings.Contains(d.log.String(), secret) {
		d.t.Error("a secret stands in the log")
	}
}

// settle waits until nothing is left to do for any agent and every sandbox is
// its agent's, kills the daemon and checks the invariants.
func (d *daemon) settle() {
	d.t.Helper()
	d.eventually("all agents to be at rest", func(ctx context.Context) (bool, error) {
		r, err := d.Ready(ctx)
		if err != nil || !r.Ready {
			return false, nil
		}
		agents, err := d.Agents(ctx)
		if err != nil {
			return false, err
		}
		for _, a := range agents {
			switch a.State {
			case swarm.StateRunning, swarm.StateRecovering, swarm.StateProvisioning:
				return false, nil
			}
			v, err := d.Result(ctx, a.AgentID, 0)
			if err != nil || a.Turn > 0 && v.State != "settled" {
				return false, err
			}
		}
		return true, nil
	})
	d.eventually("no sandbox to be orphaned", func(ctx context.Context) (bool, error) {
		actions, err := d.Reconcile(ctx, true)
		return len(actions) == 0, err
	})
	d.kill()
	d.invariants()
}

func init() { _ = os.Setenv("ALINEOD_TEST_SECRET", secret) }
