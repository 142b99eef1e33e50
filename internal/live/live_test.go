package live_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/live"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/faketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "s_0000aaaa"

// bubble runs f where time passes only when everyone waits. The limits here are
// those of contexts, which no fake clock could move.
func bubble(t *testing.T, f func(*testing.T, *faketest.Runtime, *faketest.Sandbox)) {
	synctest.Test(t, func(t *testing.T) {
		rt := faketest.New()
		sb := rt.Add(runtime.Labels{SandboxID: id}, runtime.StateRunning, "one", 2)
		f(t, rt, sb)
		rt.Close()
	})
}

// TestAwaitPastEpoch: the bridge that is being replaced may answer for a while
// yet, and is not taken for the one that replaces it.
func TestAwaitPastEpoch(t *testing.T) {
	t.Parallel()
	for _, lingers := range []int{0, 1, 5} {
		bubble(t, func(t *testing.T, rt *faketest.Runtime, sb *faketest.Sandbox) {
			past := sb.Epoch
			sb.Lingers = lingers
			if err := rt.Kick(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			a, err := live.Await(t.Context(), rt, id, past, time.Minute, clockwork.NewRealClock())
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if got := a.Hello().Epoch; got == past || got != rt.Look(id).Epoch || a.SandboxID() != id {
				t.Errorf("epoch %s of %s; past is %s, current %s", got, a.SandboxID(), past, rt.Look(id).Epoch)
			}
			if left := rt.Look(id).Lingers; left != 0 {
				t.Errorf("the past bridge was asked %d times too few", left)
			}
		})
	}
}

// TestAwaitLimit: a bridge that does not come is given up after the time limit,
// and the error says why it was not had.
func TestAwaitLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set  func(*faketest.Runtime, *faketest.Sandbox)
		says string
	}{
		"never replaced": {func(_ *faketest.Runtime, sb *faketest.Sandbox) { sb.Lingers = 1 << 20 }, "that is to be replaced still runs"},
		"silent":         {func(_ *faketest.Runtime, sb *faketest.Sandbox) { sb.Silent = true }, "greeting the bridge of " + id},
		"not listening": {func(rt *faketest.Runtime, _ *faketest.Sandbox) { rt.Fail["Dial"] = runtime.ErrNotRunning },
			runtime.ErrNotRunning.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, rt *faketest.Runtime, sb *faketest.Sandbox) {
				past := sb.Epoch
				if err := rt.Kick(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				test.set(rt, sb)
				const limit = 30 * time.Second
				begun := time.Now()
				a, err := live.Await(t.Context(), rt, id, past, limit, clockwork.NewRealClock())
				if a != nil || !errors.Is(err, bridge.ErrNoAnswer) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, %v", a, err)
				}
				if took := time.Since(begun); took != limit {
					t.Errorf("gave up after %s", took)
				}
			})
		})
	}
}

// TestAwaitEnds: what will not change by waiting ends it at once.
func TestAwaitEnds(t *testing.T) {
	t.Parallel()
	for _, why := range []error{runtime.ErrUnreachable, runtime.ErrNotFound, bridge.ErrVersion} {
		bubble(t, func(t *testing.T, rt *faketest.Runtime, _ *faketest.Sandbox) {
			rt.Fail["Dial"] = why
			begun := time.Now()
			_, err := live.Await(t.Context(), rt, id, "", time.Minute, clockwork.NewRealClock())
			if !errors.Is(err, why) || errors.Is(err, bridge.ErrNoAnswer) || time.Since(begun) != 0 {
				t.Errorf("%v: got %v after %s", why, err, time.Since(begun))
			}
		})
	}
}

// TestConnectLimit: the end of Connect's own limit is the bridge's silence; the
// end of the caller's context says nothing of the bridge.
func TestConnectLimit(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, rt *faketest.Runtime, sb *faketest.Sandbox) {
		sb.Silent = true
		begun := time.Now()
		_, err := live.Connect(t.Context(), rt, id, 2*time.Second)
		if !errors.Is(err, bridge.ErrNoAnswer) || time.Since(begun) != 2*time.Second {
			t.Errorf("own limit: %v after %s", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = live.Connect(ctx, rt, id, 2*time.Second)
		if errors.Is(err, bridge.ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's limit: %v", err)
		}
	})
}

// TestStart: a harness that comes back with another session has not come back,
// and does not go on.
func TestStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		want live.Expect
		ok   bool
	}{
		"nothing expected":      {live.Expect{}, true},
		"the same":              {live.Expect{SessionID: "one", Messages: 2}, true},
		"exactly the same":      {live.Expect{SessionID: "one", Messages: 2, Exactly: true}, true},
		"a turn more":           {live.Expect{SessionID: "one", Messages: 1}, true},
		"a turn more, exactly":  {live.Expect{SessionID: "one", Messages: 1, Exactly: true}, false},
		"messages lost":         {live.Expect{SessionID: "one", Messages: 3}, false},
		"another session":       {live.Expect{SessionID: "two", Messages: 2}, false},
		"another, longer":       {live.Expect{SessionID: "two", Messages: 1}, false},
		"fewer than the ledger": {live.Expect{SessionID: "one", Messages: 3, Exactly: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, rt *faketest.Runtime, _ *faketest.Sandbox) {
				a, err := live.Connect(t.Context(), rt, id, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				hello, err := a.Start(t.Context(), bridge.StartRequest{Harness: "scripted", Launch: harness.Launch{Continue: true}}, test.want)
				if test.ok != (err == nil) || err != nil && !errors.Is(err, live.ErrSession) {
					t.Errorf("got %+v, %v", hello.Harness, err)
				}
				wantStops := 1
				if test.ok {
					wantStops = 0
				}
				if got := rt.Look(id); got.Stops != wantStops || live.Ready(bridge.Hello{Harness: got.Harness}) != test.ok {
					t.Errorf("stopped %d times, then %s", got.Stops, got.Harness.State)
				}
			})
		})
	}
}
