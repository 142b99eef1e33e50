package runtimetest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

func testLifecycle(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	p.must("Ping", p.Ping(ctx))

	req := p.request()
	info, err := p.Create(ctx, req)
	p.must("Create", err)
	if diff := cmp.Diff(req.Labels, info.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if info.State != runtime.StateRunning || info.Handle == "" || info.Image != req.Image || info.CreatedAt.IsZero() || info.StartedAt.IsZero() {
		t.Errorf("Create: %+v, want a running sandbox with handle, image %q and times", info, req.Image)
	}
	listed, _ := p.find(req.SandboxID)
	if diff := cmp.Diff(req.Labels, listed.Labels); diff != "" {
		t.Errorf("labels in List (-want +got):\n%s", diff)
	}
	if listed.Handle != info.Handle || listed.Image != req.Image {
		t.Errorf("List: %+v, Create: %+v", listed, info)
	}
	p.talk(info.SandboxID).Close()

	// Start of a running one does nothing.
	p.must("Start", p.Start(ctx, info.SandboxID))
	again := p.wantState(info.SandboxID, runtime.StateRunning)
	if !again.StartedAt.Equal(info.StartedAt) {
		t.Errorf("Start of a running sandbox started it anew: %v, then %v", info.StartedAt, again.StartedAt)
	}

	file := s.opts.Dir(info) + "/kept"
	if _, code := p.sh(info.SandboxID, "echo content > "+file); code != 0 {
		t.Fatalf("writing a file: exit code %d", code)
	}
	for range 2 {
		p.must("Stop", p.Stop(ctx, info.SandboxID, patience))
		stopped := p.wantState(info.SandboxID, runtime.StateStopped)
		if stopped.ExitCode != 0 || stopped.FinishedAt.IsZero() {
			t.Errorf("after SIGTERM: %+v, want exit code 0 and a time", stopped)
		}
	}
	p.must("Start", p.Start(ctx, info.SandboxID))
	p.wantState(info.SandboxID, runtime.StateRunning)
	// A socket that the earlier bridge left must not be in the way.
	p.talk(info.SandboxID).Close()
	if out, _ := p.sh(info.SandboxID, "cat "+file); out != "content\n" {
		t.Errorf("file after stop and start: %q", out)
	}

	p.must("Remove", p.Remove(ctx, info.SandboxID))
	if _, err := p.Inspect(ctx, info.SandboxID); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("Inspect of a removed sandbox: %v, want ErrNotFound", err)
	}
	if _, ok := p.find(info.SandboxID); ok {
		t.Error("List shows a removed sandbox")
	}
}

func testCreateAdopts(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	req := p.request()
	first, err := p.Create(ctx, req)
	p.must("Create", err)
	second, err := p.Create(ctx, req)
	p.must("second Create", err)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("adopted a running sandbox (-first +second):\n%s", diff)
	}

	p.must("Stop", p.Stop(ctx, req.SandboxID, 0))
	third, err := p.Create(ctx, req)
	p.must("Create of a stopped one", err)
	if third.State != runtime.StateRunning || third.Handle != first.Handle {
		t.Errorf("adopted a stopped sandbox: %+v, want handle %s, running", third, first.Handle)
	}
	p.talk(req.SandboxID).Close()

	p.must("Pause", p.Pause(ctx, req.SandboxID))
	frozen, err := p.Create(ctx, req)
	p.must("Create of a paused one", err)
	if frozen.State != runtime.StatePaused || frozen.Handle != first.Handle {
		t.Errorf("adopted a paused sandbox: %+v, want it as it was", frozen)
	}

	// Many at once make one sandbox.
	req = p.request()
	var wg sync.WaitGroup
	var mu sync.Mutex
	handles := make(map[string]bool)
	for range 5 {
		wg.Go(func() {
			info, err := p.Create(ctx, req)
			if err != nil {
				t.Errorf("Create at the same time: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			handles[info.Handle] = true
		})
	}
	wg.Wait()
	if len(handles) != 1 {
		t.Errorf("five Creates at once made %v", handles)
	}
}

func testCreateRefuses(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	made := p.create()

	change := func(f func(*runtime.CreateRequest)) runtime.CreateRequest {
		req := p.request()
		f(&req)
		return req
	}
	for _, test := range []struct {
		name string
		req  runtime.CreateRequest
		want error
	}{
		{"sandbox id leads out", change(func(r *runtime.CreateRequest) { r.SandboxID = "../../etc" }), runtime.ErrInvalid},
		{"no sandbox id", change(func(r *runtime.CreateRequest) { r.SandboxID = "" }), runtime.ErrInvalid},
		{"negative memory", change(func(r *runtime.CreateRequest) { r.MemoryBytes = -1 }), runtime.ErrInvalid},
		{"negative CPU", change(func(r *runtime.CreateRequest) { r.CPUMillis = -1 }), runtime.ErrInvalid},
		{"flag as image", change(func(r *runtime.CreateRequest) { r.Image = "--privileged" }), runtime.ErrInvalid},
		{"variable without name", change(func(r *runtime.CreateRequest) { r.Env = map[string]string{"": "x"} }), runtime.ErrInvalid},
		{"no such image", change(func(r *runtime.CreateRequest) { r.Image = "alineo-test/no-such-image:latest" }), runtime.ErrNotFound},
		{"other generation", change(func(r *runtime.CreateRequest) { r.Labels = made.Labels; r.Generation = 2 }), runtime.ErrForeign},
		{"other agent", change(func(r *runtime.CreateRequest) { r.SandboxID = made.SandboxID }), runtime.ErrForeign},
	} {
		if _, err := p.Create(ctx, test.req); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	infos, err := p.List(ctx)
	p.must("List", err)
	if len(infos) != 1 || infos[0].SandboxID != made.SandboxID || infos[0].State != runtime.StateRunning {
		t.Errorf("after refused creations: %+v, want only %s, running", infos, made.SandboxID)
	}
}

func testCreateInterrupted(t *testing.T, s *suite) {
	p := s.start(t)
	// Wherever the end of the context falls, there is either a sandbox, or an
	// error and nothing. The delays only spread where it falls.
	for _, delay := range []time.Duration{-1, time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		req := p.request()
		_, err := p.Create(ctx, req)
		cancel()
		_, found := p.find(req.SandboxID)
		switch {
		case err == nil && !found:
			t.Errorf("after %v: created, but not there", delay)
		case err != nil && found:
			t.Errorf("after %v: %v, but it is there", delay, err)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("after %v: %v, want the context's error", delay, err)
		case err != nil && errors.Is(err, runtime.ErrUnreachable):
			t.Errorf("after %v: %v: the caller's impatience taken for the runtime's silence", delay, err)
		}
		// The same may be asked for again.
		if _, err := p.Create(t.Context(), req); err != nil {
			t.Errorf("Create after an interrupted one: %v", err)
		}
		p.must("Remove", p.Remove(t.Context(), req.SandboxID))
	}
}

func testCreateConcurrently(t *testing.T, s *suite) {
	p := s.start(t)
	want := make(map[string]runtime.State)
	var wg sync.WaitGroup
	for range s.opts.Many {
		req := p.request()
		want[req.SandboxID] = runtime.StateRunning
		wg.Go(func() {
			if _, err := p.Create(t.Context(), req); err != nil {
				t.Errorf("Create: %v", err)
			}
		})
	}
	wg.Wait()
	infos, err := p.List(t.Context())
	p.must("List", err)
	got := make(map[string]runtime.State)
	for _, info := range infos {
		got[info.SandboxID] = info.State
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("many at once (-want +got):\n%s", diff)
	}
}

func testRemove(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	info := p.create()
	p.talk(info.SandboxID).Close()
	dir := p.JournalDir(info.SandboxID)
	if dir != "" {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("journal of a running sandbox: %v", err)
		}
	}
	p.must("Remove of a running one", p.Remove(ctx, info.SandboxID))
	p.must("Remove of a removed one", p.Remove(ctx, info.SandboxID))
	p.must("Remove of one that never was", p.Remove(ctx, ids.New(ids.Sandbox)))
	if dir != "" {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("journal of a removed sandbox: %v, want none", err)
		}
	}
	if err := p.Remove(ctx, "../elsewhere"); !errors.Is(err, runtime.ErrInvalid) {
		t.Errorf("Remove of a path: %v, want ErrInvalid", err)
	}

	// Several at once.
	info = p.create()
	p.must("Pause", p.Pause(ctx, info.SandboxID))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := p.Remove(ctx, info.SandboxID); err != nil {
				t.Errorf("Remove at the same time: %v", err)
			}
		})
	}
	wg.Wait()
	if _, ok := p.find(info.SandboxID); ok {
		t.Error("removed, and still there")
	}
}

func testPause(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	info := p.create()
	id := info.SandboxID
	p.talk(id).Close()
	// The counter is started away from its parent, as a harness's tools may be.
	file := s.opts.Dir(info) + "/count"
	p.sh(id, "(i=0; while :; do i=$((i+1)); echo $i > "+file+".new; mv "+file+".new "+file+"; done) >/dev/null 2>&1 &")
	count := func() string {
		t.Helper()
		r, err := p.CopyOut(ctx, id, file)
		if errors.Is(err, runtime.ErrInvalid) {
			return "" // not there yet
		}
		p.must("CopyOut", err)
		defer r.Close()
		for _, f := range readTar(t, r) {
			return f.Content
		}
		return ""
	}
	moves := func(from string) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for count() == from {
			if time.Now().After(deadline) {
				t.Fatalf("the counter stands at %q", from)
			}
		}
	}
	moves("")

	for range 2 {
		p.must("Pause", p.Pause(ctx, id))
		p.wantState(id, runtime.StatePaused)
	}
	at := count()
	for range 10 {
		if now := count(); now != at {
			t.Fatalf("the counter goes on while the sandbox is paused: %q, then %q", at, now)
		}
	}
	if _, err := p.Exec(ctx, id, runtime.ExecRequest{Args: []string{"true"}}); !errors.Is(err, runtime.ErrPaused) {
		t.Errorf("Exec in a paused sandbox: %v, want ErrPaused", err)
	}
	if err := p.Kick(ctx, id); !errors.Is(err, runtime.ErrPaused) {
		t.Errorf("Kick of a paused sandbox: %v, want ErrPaused", err)
	}
	for range 2 {
		p.must("Unpause", p.Unpause(ctx, id))
		p.wantState(id, runtime.StateRunning)
	}
	moves(at)

	// A paused one hears SIGTERM too.
	p.must("Pause", p.Pause(ctx, id))
	p.must("Stop", p.Stop(ctx, id, patience))
	if stopped := p.wantState(id, runtime.StateStopped); stopped.ExitCode != 0 {
		t.Errorf("Stop of a paused sandbox: exit code %d, want 0", stopped.ExitCode)
	}
	p.must("Start", p.Start(ctx, id))
	p.wantState(id, runtime.StateRunning)
	if out, _ := p.sh(id, "ps 2>/dev/null | grep -c '[w]hile :'"); strings.TrimSpace(out) > "0" && p.Capabilities().Isolated {
		t.Errorf("processes of the earlier start live on: %s", out)
	}
}

func testNotFound(t *testing.T, s *suite) {
	p := s.start(t)
	for _, id := range []string{ids.New(ids.Sandbox), "../../etc", ""} {
		for name, err := range p.everyCall(id) {
			if !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("%s of %q: %v, want ErrNotFound", name, id, err)
			}
		}
	}
}

func testNotRunning(t *testing.T, s *suite) {
	p := s.start(t)
	info := p.create()
	// Before it listens, it does not handle the signal either.
	p.talk(info.SandboxID).Close()
	p.must("Stop", p.Stop(t.Context(), info.SandboxID, 0))
	stopped := p.wantState(info.SandboxID, runtime.StateStopped)
	if stopped.ExitCode != 137 && stopped.ExitCode != 0 {
		t.Errorf("Stop without grace: exit code %d, want 137 (or 0, if it was quick)", stopped.ExitCode)
	}
	for name, err := range p.everyCall(info.SandboxID) {
		switch name {
		case "Inspect", "Start", "Stop", "CopyOut", "CopyIn", "Commit":
			continue
		}
		if !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("%s of a stopped sandbox: %v, want ErrNotRunning", name, err)
		}
	}
}

// everyCall makes every call that names a sandbox, save Remove.
func (p *place) everyCall(id string) map[string]error {
	ctx := p.t.Context()
	got := make(map[string]error)
	_, got["Inspect"] = p.Inspect(ctx, id)
	got["Stop"] = p.Stop(ctx, id, 0)
	got["Pause"] = p.Pause(ctx, id)
	got["Unpause"] = p.Unpause(ctx, id)
	got["Kick"] = p.Kick(ctx, id)
	_, got["Dial"] = p.Dial(ctx, id)
	_, got["Exec"] = p.Exec(ctx, id, runtime.ExecRequest{Args: []string{"true"}})
	_, got["Stats"] = p.Stats(ctx, id)
	r, err := p.CopyOut(ctx, id, "/tmp")
	if err == nil {
		r.Close()
	}
	got["CopyOut"] = err
	got["CopyIn"] = p.CopyIn(ctx, id, "/tmp", strings.NewReader(""))
	_, got["Commit"] = p.Commit(ctx, id, "never", nil)
	got["Start"] = p.Start(ctx, id)
	return got
}
