package recovery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/recovery"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/faketest"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	agentID = "a_0000aaaa"
	runID   = "r_0000aaaa"
	oldID   = "s_0000aaaa"
	session = "one"
	said    = 4 // messages of the session, as the ledger knows them
)

// world is one agent in a ledger, with its sandbox in a fake runtime.
type world struct {
	*recovery.Ladder
	t         *testing.T
	ctx       context.Context
	dir       string
	rt        *faketest.Runtime
	old       *faketest.Sandbox
	store     *checkpoint.FileStore
	h         harness.Harness
	subject   recovery.Subject
	lim       recovery.Limits
	intended  []string
	abandoned []string
	fell      []error
	live      []*live.Agent
}

// inWorld runs f where time passes only when everyone waits: the limits of the
// ladder are those of contexts, and pass at once.
func inWorld(t *testing.T, f func(*world)) {
	t.Helper()
	dir := t.TempDir() // outside: its cleanup belongs to the outer test
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w := &world{t: t, ctx: ctx, dir: dir, rt: faketest.New(), lim: recovery.Limits{From: recovery.Reattached}}
		defer func() {
			for _, a := range w.live {
				a.Close()
			}
			w.rt.Close()
		}()
		l, err := ledger.Open(ctx, filepath.Join(dir, "ledger.db"), ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if w.store, err = checkpoint.NewFileStore(filepath.Join(dir, "checkpoints"), checkpoint.FileOptions{}); err != nil {
			t.Fatal(err)
		}
		defer w.store.Close()
		if w.h, err = registry.Get("scripted"); err != nil {
			t.Fatal(err)
		}
		clock := clockwork.NewRealClock()
		builder := setup.NewBuilder(l, clock, zap.NewNop())
		defer builder.Close()
		w.Ladder = &recovery.Ladder{
			Ledger: l, Setup: builder, Store: w.store, Clock: clock, Log: zap.NewNop(),
			Intend: w.intend, Abandoned: w.abandon, Env: func(*spec.Spec) (map[string]string, error) { return nil, nil },
			HelloTimeout: 5 * time.Second, StartTimeout: 2 * time.Minute,
		}
		w.populate()
		f(w)
	})
}

// populate has the agent run in its first sandbox, on a session.
func (w *world) populate() {
	w.t.Helper()
	sp, _, err := spec.Parse([]byte(`{"harness": "scripted"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	w.append(
		ledger.Entry{Event: ledger.RunStarted, Payload: ledger.RunStartedPayload{RootAgentID: agentID, CloseWhen: "explicit"}},
		ledger.Entry{Event: ledger.AgentSpawned, Payload: ledger.AgentSpawnedPayload{Harness: "scripted", Runtime: "fake", State: "done"}},
		ledger.Entry{SandboxID: oldID, Event: ledger.SandboxIntended, Payload: ledger.SandboxIntendedPayload{Runtime: "fake", Generation: 1, Purpose: recovery.PurposeProvision}},
		ledger.Entry{SandboxID: oldID, Event: ledger.AgentProvisioned, Payload: ledger.AgentProvisionedPayload{SandboxID: oldID, SessionID: session, Messages: said}},
	)
	w.old = w.rt.Add(runtime.Labels{SandboxID: oldID, RunID: runID, AgentID: agentID, Generation: 1}, runtime.StateRunning, session, said)
	w.subject.Spec = sp
	w.subject.Falling = func(err error) { w.fell = append(w.fell, err) }
	if w.subject.Agent, err = w.Ledger.Agent(w.ctx, agentID); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) append(entries ...ledger.Entry) {
	w.t.Helper()
	for i := range entries {
		entries[i].RunID, entries[i].AgentID = runID, agentID
	}
	if _, err := w.Ledger.Append(w.ctx, ledger.Batch{Entries: entries}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) intend(context.Context, ledger.Agent, string, string) (string, int, error) {
	id := ids.New(ids.Sandbox)
	w.intended = append(w.intended, id)
	return id, len(w.intended) + 1, nil
}

func (w *world) abandon(_ context.Context, _ ledger.Agent, id, _ string) error {
	w.abandoned = append(w.abandoned, id)
	return nil
}

// put stores the archive of a home that holds a session.
func (w *world) put(turn int, home harness.Status) checkpoint.Stored {
	w.t.Helper()
	dir := w.t.TempDir()
	b, err := json.Marshal(home)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, faketest.SessionFile), b, 0o600); err != nil {
		w.t.Fatal(err)
	}
	var packed bytes.Buffer
	if _, err := archive.Pack(w.ctx, &packed, archive.PackOptions{Home: dir}); err != nil {
		w.t.Fatal(err)
	}
	stored, err := w.store.Put(w.ctx, checkpoint.Meta{AgentID: agentID, SandboxID: oldID, Turn: turn}, &packed)
	if err != nil {
		w.t.Fatal(err)
	}
	return stored
}

// checkpoint takes one of a home that holds a session. The ledger is told how
// many messages it should have; what is in the archive is the home's.
func (w *world) checkpoint(turn int, home harness.Status, known int) ledger.Checkpoint {
	w.t.Helper()
	stored := w.put(turn, home)
	w.append(ledger.Entry{SandboxID: oldID, Event: ledger.AgentCheckpointed, Payload: ledger.AgentCheckpointedPayload{
		Turn: turn, SnapshotRef: stored.Ref, SHA256: stored.SHA256, Bytes: stored.Bytes, Files: stored.Files,
		SessionID: session, Messages: known, Imported: true}})
	all, err := w.Ledger.Checkpoints(w.ctx, ledger.CheckpointFilter{AgentID: agentID, State: "kept"})
	if err != nil {
		w.t.Fatal(err)
	}
	return all[0] // the newest
}

// good takes a checkpoint that is what the ledger says.
func (w *world) good(turn int) ledger.Checkpoint {
	w.t.Helper()
	return w.checkpoint(turn, harness.Status{State: harness.StateIdle, SessionID: session, Messages: 2 * turn}, 2*turn)
}

// damage flips a byte in the middle of a stored checkpoint.
func (w *world) damage(c ledger.Checkpoint) {
	w.t.Helper()
	path := filepath.Join(w.dir, "checkpoints", c.SnapshotRef)
	b, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	b[len(b)/2] ^= 0xff
	if err := os.WriteFile(path, b, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// climb climbs. The connection that comes of it lasts as long as the world.
func (w *world) climb() (*recovery.Outcome, error) {
	w.t.Helper()
	out, err := w.Climb(w.ctx, w.rt, w.h, w.subject, w.lim)
	if out != nil && out.Live != nil {
		w.live = append(w.live, out.Live)
	}
	if err == nil != (out != nil) {
		w.t.Errorf("got both or neither: %+v, %v", out, err)
	}
	return out, err
}

func (w *world) want(what string, got, want any) {
	w.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantSandboxes: these are there and no other, and of all that were intended
// those that are not have been recorded as abandoned.
func (w *world) wantSandboxes(want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.want("sandboxes", w.rt.Sandboxes(), want)
	var gone []string
	for _, id := range w.intended {
		if !slices.Contains(want, id) {
			gone = append(gone, id)
		}
	}
	w.want("abandoned", w.abandoned, gone)
}

func rungs(attempts []ledger.RungAttempt) []string {
	var all []string
	for _, a := range attempts {
		all = append(all, a.Rung)
	}
	return all
}

var errDefinite = errors.New("no such thing")

// TestRungs: the first rung that holds is the one, the next is tried only when
// the one before has failed, and each failure is kept.
func TestRungs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given func(*world)
		rung  recovery.Rung
		tried string
		calls string // that change something
	}{
		"bridge and harness are well": {func(*world) {}, recovery.Reattached, "[]", "[]"},
		"a turn is running": {func(w *world) { w.old.Harness.State = harness.StateBusy },
			recovery.Reattached, "[]", "[]"},
		"harness is dead": {func(w *world) { w.old.Harness.State = harness.StateExited },
			recovery.Resumed, "[reattached]", "[Kick old]"},
		"bridge is silent": {func(w *world) { w.old.Silent = true },
			recovery.Resumed, "[reattached]", "[Kick old]"},
		"the old bridge lingers": {func(w *world) { w.old.Harness.State, w.old.Lingers = harness.StateExited, 3 },
			recovery.Resumed, "[reattached]", "[Kick old]"},
		"asked to begin below": {func(w *world) { w.lim.From, w.old.Lingers = recovery.Resumed, 2 },
			recovery.Resumed, "[]", "[Kick old]"},
		"sandbox is stopped": {func(w *world) { w.old.State = runtime.StateStopped },
			recovery.Restarted, "[]", "[Start old]"},
		"it ends under our hands": {func(w *world) {
			known, err := w.rt.Inspect(w.ctx, oldID) // before it ended
			if err != nil {
				t.Error(err)
			}
			w.subject.Known = &known
			w.old.State = runtime.StateStopped
		}, recovery.Restarted, "[reattached resumed]", "[Kick old Start old]"},
		"it cannot be started again": {func(w *world) {
			w.old.State, w.rt.Caps.RestartInPlace = runtime.StateStopped, false
		}, recovery.Restored, "[restarted]", "[Create new]"},
		"starting it fails": {func(w *world) { w.old.State, w.rt.Fail["Start"] = runtime.StateStopped, errDefinite },
			recovery.Restored, "[restarted]", "[Start old Create new]"},
		"the bridge cannot be kicked": {func(w *world) { w.old.Silent, w.rt.Fail["Kick"] = true, errDefinite },
			recovery.Restored, "[reattached resumed]", "[Kick old Create new]"},
		"the harness does not come back": {func(w *world) { w.old.Harness.State, w.old.StartError = harness.StateExited, "torn file" },
			recovery.Restored, "[reattached resumed]", "[Kick old Create new]"},
		"the harness hangs": {func(w *world) { w.old.Harness.State, w.old.Hangs = harness.StateExited, 1 },
			recovery.Restored, "[reattached resumed]", "[Kick old Create new]"},
		"sandbox is gone": {func(w *world) {
			if err := w.rt.Remove(w.ctx, oldID); err != nil {
				t.Error(err)
			}
		}, recovery.Restored, "[]", "[Remove old Create new]"},
		"a list showed it gone": {func(w *world) { w.subject.Gone = true }, recovery.Restored, "[]", "[Create new]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				cp := w.good(1)
				test.given(w)
				out, err := w.climb()
				if err != nil {
					w.t.Fatal(err)
				}
				w.want("rung", out.Rung, test.rung)
				w.want("tried", rungs(out.Attempts), test.tried)
				calls := strings.ReplaceAll(fmt.Sprint(w.rt.Calls()), oldID, "old")
				w.want("calls", strings.ReplaceAll(calls, out.SandboxID, "new"), test.calls)
				if fell := len(w.fell); (fell > 0) != (len(out.Attempts) > 0) || fell > 1 {
					w.t.Errorf("told %d times that the first rung failed: %v", fell, w.fell)
				}
				w.want("session", out.Hello.Harness.SessionID, session)
				if out.Rung != recovery.Restored {
					w.want("sandbox", out.SandboxID+out.Previous, oldID)
					w.want("messages", out.Hello.Harness.Messages, said)
					w.want("bridge that answers", out.Hello.Epoch, w.rt.Look(oldID).Epoch)
					return
				}
				w.want("sandbox", out.SandboxID, w.intended[0])
				w.want("previous", out.Previous, oldID)
				w.want("checkpoint", out.Checkpoint.SnapshotRef, cp.SnapshotRef)
				w.want("messages", out.Hello.Harness.Messages, 2)
				w.want("blank, damaged", fmt.Sprint(out.Blank, out.Damaged), "false []")
			})
		})
	}
}

// TestPaused: a frozen sandbox is left so, unless the rungs below are asked for.
func TestPaused(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.old.State = runtime.StatePaused
		out, err := w.climb()
		if err != nil {
			w.t.Fatal(err)
		}
		w.want("rung", out.Rung, recovery.Reattached)
		w.want("calls", w.rt.Calls(), "[]")
		if out.Live != nil || out.SandboxID != oldID {
			w.t.Errorf("got %+v", out)
		}
		w.lim.From = recovery.Resumed
		if out, err = w.climb(); err != nil {
			w.t.Fatal(err)
		}
		w.want("rung asked for", out.Rung, recovery.Resumed)
		w.want("calls", w.rt.Calls(), []string{"Unpause " + oldID, "Kick " + oldID})
	})
}

// TestHeld: a runtime that does not answer is no dead agent, wherever on the
// ladder it falls silent: the climb ends there, and nothing is started in the
// agent's place.
func TestHeld(t *testing.T) {
	t.Parallel()
	stopped := func(w *world) { w.old.State = runtime.StateStopped }
	silent := func(w *world) { w.old.Silent = true }
	gone := func(w *world) { w.subject.Gone = true }
	for _, test := range []struct {
		method string
		given  func(*world)
		err    error
		last   string // the last call that changes something
	}{
		{"Inspect", func(*world) {}, runtime.ErrUnreachable, ""},
		{"Inspect", func(*world) {}, errors.New("unreadable answer"), ""}, // not definite either
		{"Dial", func(*world) {}, runtime.ErrUnreachable, ""},
		{"Kick", silent, runtime.ErrUnreachable, "Kick"},
		{"Start", stopped, runtime.ErrUnreachable, "Start"},
		{"Unpause", func(w *world) { w.old.State, w.lim.From = runtime.StatePaused, recovery.Resumed }, runtime.ErrUnreachable, "Unpause"},
		{"Image", func(w *world) { gone(w); w.subject.Agent.ForkImage = "fork" }, runtime.ErrUnreachable, ""},
		{"Create", gone, runtime.ErrUnreachable, "Remove"}, // it may have been made
	} {
		t.Run(fmt.Sprintf("%s/%v", test.method, test.err), func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.good(1)
				test.given(w)
				w.rt.Fail[test.method] = test.err
				_, err := w.climb()
				if !errors.Is(err, recovery.ErrHeld) || !errors.Is(err, test.err) || errors.Is(err, recovery.ErrLost) {
					w.t.Errorf("got %v", err)
				}
				w.wantSandboxes(oldID)
				last := ""
				if calls := w.rt.Calls(); len(calls) > 0 {
					last, _, _ = strings.Cut(calls[len(calls)-1], " ")
				}
				w.want("last call", last, test.last)
			})
		})
	}
}

// TestAlive: who asked for no more than a reattach gets no more while the
// sandbox is alive.
func TestAlive(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given func(*world)
		err   error
		calls string
	}{
		"silent": {func(w *world) { w.old.Silent = true }, recovery.ErrAlive, "[]"},
		"dead":   {func(w *world) { w.old.Harness.State = harness.StateExited }, recovery.ErrAlive, "[]"},
		"well":   {func(*world) {}, nil, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.good(1)
				w.lim.GentleOnly = true
				test.given(w)
				_, err := w.climb()
				if !errors.Is(err, test.err) {
					w.t.Errorf("got %v", err)
				}
				w.want("calls", w.rt.Calls(), test.calls)
				w.wantSandboxes(oldID)
			})
		})
	}
	inWorld(t, func(w *world) { // one that is gone is restored all the same
		w.good(1)
		w.lim.GentleOnly, w.subject.Gone = true, true
		out, err := w.climb()
		if err != nil {
			w.t.Fatal(err)
		}
		w.want("gone", out.Rung, recovery.Restored)
	})
}

// TestBlank: without a checkpoint an agent comes back blank and says so, but
// never while its workspace stands.
func TestBlank(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.subject.Gone = true
		out, err := w.climb()
		if err != nil {
			w.t.Fatal(err)
		}
		if out.Rung != recovery.Restored || !out.Blank || out.Checkpoint != nil || out.Previous != oldID {
			w.t.Errorf("got %+v", out)
		}
		w.want("session", out.Hello.Harness, harness.Status{State: harness.StateIdle, SessionID: "fresh"})
	})
	inWorld(t, func(w *world) {
		w.old.Silent, w.rt.Fail["Kick"] = true, errDefinite
		w.wantLost(true, "[reattached resumed restored]")
		w.want("calls", w.rt.Calls(), []string{"Kick " + oldID}) // no sandbox was even tried
		w.wantSandboxes(oldID)
	})
	inWorld(t, func(w *world) {
		w.subject.Gone, w.rt.Fail["Create"] = true, errDefinite
		w.wantLost(false, "[restored]")
	})
}

// wantLost climbs in vain.
func (w *world) wantLost(sandboxLeft bool, tried string) *recovery.LostError {
	w.t.Helper()
	_, err := w.climb()
	var lost *recovery.LostError
	if !errors.Is(err, recovery.ErrLost) || !errors.As(err, &lost) {
		w.t.Fatalf("got %v", err)
	}
	w.want("sandbox left", lost.SandboxLeft, sandboxLeft)
	w.want("tried", rungs(lost.Attempts), tried)
	for _, a := range lost.Attempts {
		if a.Error == "" || !strings.Contains(err.Error(), a.Rung+": "+a.Error) {
			w.t.Errorf("%q does not say how %s failed", err, a.Rung)
		}
	}
	return lost
}

// TestDamaged: a checkpoint that does not verify, or does not hold the session
// that it should, is skipped and reported, and the next older one is used.
func TestDamaged(t *testing.T) {
	t.Parallel()
	for name, newest := range map[string]func(*world) ledger.Checkpoint{
		"flipped": func(w *world) ledger.Checkpoint {
			c := w.good(2)
			w.damage(c)
			return c
		},
		"deleted": func(w *world) ledger.Checkpoint {
			c := w.good(2)
			if err := w.store.Remove(w.ctx, c.SnapshotRef); err != nil {
				w.t.Error(err)
			}
			return c
		},
		"another archive in its place": func(w *world) ledger.Checkpoint { // that can be read
			c := w.good(2)
			other := w.put(3, harness.Status{State: harness.StateIdle, SessionID: session, Messages: 4})
			store := filepath.Join(w.dir, "checkpoints")
			if err := os.Rename(filepath.Join(store, other.Ref), filepath.Join(store, c.SnapshotRef)); err != nil {
				w.t.Error(err)
			}
			return c
		},
		"another session": func(w *world) ledger.Checkpoint {
			return w.checkpoint(2, harness.Status{State: harness.StateIdle, SessionID: "two", Messages: 4}, 4)
		},
		"a message too many": func(w *world) ledger.Checkpoint {
			return w.checkpoint(2, harness.Status{State: harness.StateIdle, SessionID: session, Messages: 5}, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				older := w.good(1)
				bad := newest(w)
				w.subject.Gone = true
				out, err := w.climb()
				if err != nil {
					w.t.Fatal(err)
				}
				w.want("checkpoint", out.Checkpoint.SnapshotRef, older.SnapshotRef)
				w.want("session", out.Hello.Harness, harness.Status{State: harness.StateIdle, SessionID: session, Messages: 2})
				if len(out.Damaged) != 1 || out.Damaged[0].SnapshotRef != bad.SnapshotRef || out.Damaged[0].Reason == "" || out.Blank {
					w.t.Errorf("reported: %+v, blank %v", out.Damaged, out.Blank)
				}
				w.want("tried", rungs(out.Attempts), "[restored]")
				w.wantSandboxes(oldID, out.SandboxID)
			})
		})
	}
}

// TestHungCheckpoint: a harness that says nothing on the newest checkpoint does
// not keep the next older one from being used, which is not damaged.
func TestHungCheckpoint(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		older := w.good(1)
		w.good(2)
		w.subject.Gone = true
		w.rt.OnCreate = func(sb *faketest.Sandbox) { sb.Hangs = 1 }
		out, err := w.climb()
		if err != nil {
			w.t.Fatal(err)
		}
		if out.Blank || out.Checkpoint == nil || out.Checkpoint.SnapshotRef != older.SnapshotRef {
			w.t.Errorf("blank %v, checkpoint %+v, want that of turn 1; tried %+v", out.Blank, out.Checkpoint, out.Attempts)
		}
		w.want("damaged", out.Damaged, "[]") // the archives are well: the harness was not
		w.wantSandboxes(oldID, out.SandboxID)
	})
}

// TestAllDamaged: only where the workspace is gone too is a blank agent made,
// in a sandbox that holds no parts of a checkpoint.
func TestAllDamaged(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		for turn := 1; turn <= 2; turn++ {
			w.checkpoint(turn, harness.Status{SessionID: "two"}, 2) // it is laid before that shows
		}
		w.subject.Gone = true
		out, err := w.climb()
		if err != nil {
			w.t.Fatal(err)
		}
		if !out.Blank || out.Checkpoint != nil || len(out.Damaged) != 2 {
			w.t.Errorf("got %+v", out)
		}
		w.want("sandbox", out.SandboxID, w.intended[1])
		w.want("laid into it", w.rt.Look(out.SandboxID).Unpacked, 0)
		w.want("it answers", out.Live.SandboxID(), out.SandboxID)
		w.wantSandboxes(oldID, out.SandboxID)
	})
	inWorld(t, func(w *world) {
		w.damage(w.good(1))
		w.old.Silent, w.rt.Fail["Kick"] = true, errDefinite
		w.wantLost(true, "[reattached resumed restored restored]")
		w.wantSandboxes(oldID)
	})
}

// TestCleansUp: a restore that fails leaves nothing of what it made, and the
// old sandbox untouched.
func TestCleansUp(t *testing.T) {
	t.Parallel()
	silent := func(sb *faketest.Sandbox) { sb.Silent = true }
	for name, test := range map[string]struct {
		given func(*world)
		why   string
	}{
		"it cannot be made":        {func(w *world) { w.rt.Fail["Create"] = errDefinite }, errDefinite.Error()},
		"its bridge never answers": {func(w *world) { w.rt.OnCreate = silent }, bridge.ErrNoAnswer.Error()},
		"it cannot be furnished": {func(w *world) {
			w.Furnish = func(context.Context, runtime.Runtime, ledger.Agent, *spec.Spec, string, bool) error {
				return errDefinite
			}
		}, errDefinite.Error()},
		"its harness does not start": {func(w *world) {
			w.rt.OnCreate = func(sb *faketest.Sandbox) { sb.StartError = "no such program" }
		}, "no such program"},
		"its bridge goes": {func(w *world) {
			w.Places = func(ctx context.Context, rt runtime.Runtime, _ ledger.Agent, id string) (map[string]string, error) {
				return nil, bridge.ErrClosed
			}
		}, bridge.ErrClosed.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.good(1)
				w.old.State, w.rt.Caps.RestartInPlace = runtime.StateStopped, false
				test.given(w)
				_, err := w.climb()
				if !errors.Is(err, recovery.ErrLost) || !strings.Contains(err.Error(), test.why) {
					w.t.Errorf("got %v", err)
				}
				if len(w.intended) != 1 {
					w.t.Errorf("%d sandboxes were intended", len(w.intended))
				}
				w.wantSandboxes(oldID)
				w.want("the old one", w.rt.Look(oldID).State, runtime.StateStopped)
				for _, c := range w.rt.Calls() {
					if strings.Contains(c, oldID) {
						w.t.Errorf("%s", c)
					}
				}
			})
		})
	}
}

// TestCalledOff: the end of the climb's context is neither a hold nor a loss,
// and cleans up as well.
func TestCalledOff(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		w.good(1)
		w.subject.Gone = true
		outer := w.ctx
		ctx, cancel := context.WithCancelCause(outer)
		w.ctx = ctx
		why := errors.New("the daemon is stopping")
		w.rt.OnCall = func(method, _ string) {
			if method == "Dial" {
				cancel(why)
			}
		}
		_, err := w.climb()
		w.ctx = outer
		if !errors.Is(err, why) || errors.Is(err, recovery.ErrHeld) || errors.Is(err, recovery.ErrLost) {
			w.t.Errorf("got %v", err)
		}
		w.want("intended", len(w.intended), 1)
		w.wantSandboxes(oldID)
	})
}

// TestCalledOffEarly: the same on a rung that is not the last: no rung failed,
// and the next is not tried.
func TestCalledOffEarly(t *testing.T) {
	t.Parallel()
	inWorld(t, func(w *world) {
		outer := w.ctx
		ctx, cancel := context.WithTimeout(outer, time.Second) // before the silent bridge is given up
		defer cancel()
		w.old.Silent, w.ctx = true, ctx
		_, err := w.climb()
		w.ctx = outer
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, recovery.ErrHeld) || len(w.fell) > 0 {
			w.t.Errorf("got %v, told of %v", err, w.fell)
		}
		w.want("calls", w.rt.Calls(), "[]")
	})
}

// TestSession: a harness that comes back with another session, or with less of
// it than is known, has not come back.
func TestSession(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		home harness.Status
		rung recovery.Rung
	}{
		"the same":            {harness.Status{State: harness.StateIdle, SessionID: session, Messages: said}, recovery.Resumed},
		"an interrupted turn": {harness.Status{State: harness.StateIdle, SessionID: session, Messages: said + 1}, recovery.Resumed},
		"another":             {harness.Status{State: harness.StateIdle, SessionID: "two", Messages: said}, recovery.Restored},
		"messages lost":       {harness.Status{State: harness.StateIdle, SessionID: session, Messages: said - 1}, recovery.Restored},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.good(2)
				w.lim.From, w.old.Session = recovery.Resumed, test.home
				out, err := w.climb()
				if err != nil {
					w.t.Fatal(err)
				}
				w.want("rung", out.Rung, test.rung)
				stops := 0
				if out.Rung == recovery.Restored {
					stops = 1 // what came back must not go on beside its successor
					if len(out.Attempts) != 1 || !strings.Contains(out.Attempts[0].Error, live.ErrSession.Error()) {
						w.t.Errorf("tried: %+v", out.Attempts)
					}
				}
				w.want("stops of the old harness", w.rt.Look(oldID).Stops, stops)
			})
		})
	}
}

// TestRollBack: the checkpoint that was asked for is restored, and no other;
// what stands is not looked at, nor touched.
func TestRollBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damaged bool
	}{"good": {false}, "damaged": {true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				cp := w.good(1)
				w.good(2)
				w.subject.Checkpoint = &cp
				if test.damaged {
					w.damage(cp)
				}
				out, err := w.climb()
				if test.damaged {
					if !errors.Is(err, recovery.ErrLost) || !errors.Is(err, checkpoint.ErrDamaged) {
						w.t.Errorf("got %v", err)
					}
					w.want("calls", w.rt.Calls(), "[]")
					w.wantSandboxes(oldID)
					return
				}
				if err != nil {
					w.t.Fatal(err)
				}
				w.want("rung", out.Rung, recovery.Restored)
				w.want("checkpoint", out.Checkpoint.Turn, 1)
				w.want("messages", out.Hello.Harness.Messages, 2)
				w.wantSandboxes(oldID, out.SandboxID)
			})
		})
	}
}

// TestUnset: a variable that is not set is told as such, and no rung below is
// tried, which could not do without it either.
func TestUnset(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]func(*world){
		"standing": func(w *world) { w.old.Harness.State = harness.StateExited },
		"gone":     func(w *world) { w.subject.Gone = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, func(w *world) {
				w.good(1)
				given(w)
				w.Env = func(*spec.Spec) (map[string]string, error) { return nil, &spec.UnsetVarError{} }
				_, err := w.climb()
				var unset *spec.UnsetVarError
				if !errors.As(err, &unset) || errors.Is(err, recovery.ErrLost) {
					w.t.Errorf("got %v", err)
				}
				w.want("calls", w.rt.Calls(), "[]")
				w.wantSandboxes(oldID)
			})
		})
	}
}

// TestForked: an agent that was forked comes back in the copy of its parent's
// sandbox, and without it where that has vanished.
func TestForked(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.good(1)
			w.subject.Gone, w.subject.Agent.ForkImage = true, "fork"
			image := ""
			if there {
				w.rt.AddImage("fork")
				image = "fork"
			}
			var furnished []bool
			w.Furnish = func(_ context.Context, _ runtime.Runtime, _ ledger.Agent, _ *spec.Spec, _ string, forked bool) error {
				furnished = append(furnished, forked)
				return nil
			}
			out, err := w.climb()
			if err != nil {
				w.t.Fatal(err)
			}
			w.want("image", w.rt.Look(out.SandboxID).Image, image)
			w.want("furnished as forked", furnished, []bool{there})
		})
	}
}
