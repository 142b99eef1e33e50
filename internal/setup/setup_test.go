package setup_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/setup"
	"github.com/alineod/alineod/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is a runtime that notes what is built in it. What it is not made for
// panics.
type shop struct {
	runtime.Runtime
	isolated bool
	fails    map[string]int // exit codes by command

	mu        sync.Mutex
	ran       []string
	images    map[string]bool
	sandboxes map[string]bool
	hold      chan struct{} // closed: commands may end
}

func newShop() *shop {
	hold := make(chan struct{})
	close(hold)
	return &shop{isolated: true, fails: map[string]int{}, images: map[string]bool{}, sandboxes: map[string]bool{}, hold: hold}
}

func (s *shop) Name() string { return "shop" }

func (s *shop) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolated: s.isolated, Commit: true, BaseImages: true}
}

func (s *shop) Create(_ context.Context, req runtime.CreateRequest) (runtime.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[req.SandboxID] = true
	return runtime.Info{Labels: req.Labels, Image: req.Image}, nil
}

func (s *shop) Remove(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, id)
	return nil
}

func (s *shop) Exec(ctx context.Context, _ string, req runtime.ExecRequest) (int, error) {
	select {
	case <-s.hold:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	command := req.Args[len(req.Args)-1]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran = append(s.ran, command)
	for part, code := range s.fails {
		if strings.Contains(command, part) {
			if req.Stderr != nil {
				fmt.Fprintf(req.Stderr, "first words\nlast words of %s\n", part)
			}
			return code, nil
		}
	}
	return 0, nil
}

func (s *shop) Commit(_ context.Context, _, name string, _ map[string]string) (runtime.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[name] = true
	return runtime.Image{Ref: name}, nil
}

func (s *shop) Image(_ context.Context, ref string) (runtime.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.images[ref] {
		return runtime.Image{}, fmt.Errorf("image %s: %w", ref, runtime.ErrNotFound)
	}
	return runtime.Image{Ref: ref}, nil
}

// times says how often a command ran that holds part.
func (s *shop) times(part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.ran {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

// tool is a harness that is installed in one step.
type tool struct{ harness.Harness }

func (tool) Setup(version string) []harness.SetupStep {
	return []harness.SetupStep{{Name: "tool", Check: "check-tool " + version, Run: "install-tool " + version}}
}

func open(t *testing.T) (*setup.Builder, *ledger.Ledger) {
	t.Helper()
	l, err := ledger.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := setup.NewBuilder(l, clockwork.NewRealClock(), zap.NewNop())
	t.Cleanup(func() { b.Close(); l.Close() })
	return b, l
}

func parse(t *testing.T, text string) *spec.Spec {
	t.Helper()
	s, _, err := spec.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const recipe = `{"harness": "scripted", "harnessVersion": "1.2.3", "image": "base", "packages": ["git"], "setup": [{"name": "own", "run": "own-step"}]}`

// TestOnce: ten who ask at the same moment get one snapshot, made once; who
// asks later gets the same. It is made again when its image has vanished.
func TestOnce(t *testing.T) {
	t.Parallel()
	b, l := open(t)
	rt := newShop()
	rt.hold = make(chan struct{})
	rt.fails["check-tool"], rt.fails["dpkg-query"] = 1, 1 // nothing is there yet
	s := parse(t, recipe)
	var all, there sync.WaitGroup
	refs := make([]string, 10)
	there.Add(len(refs))
	for i := range refs {
		all.Go(func() {
			var err error
			there.Done()
			if refs[i], err = b.Ensure(t.Context(), rt, s, tool{}); err != nil {
				t.Error(err)
			}
		})
	}
	there.Wait()
	close(rt.hold)
	all.Wait()
	for _, ref := range refs {
		if ref != refs[0] || ref == "" {
			t.Errorf("got %q and %q", refs[0], ref)
		}
	}
	for _, step := range []string{"apt-get install", "install-tool 1.2.3", "own-step"} {
		if n := rt.times(step); n != 1 {
			t.Errorf("%q ran %d times", step, n)
		}
	}
	if len(rt.sandboxes) != 0 {
		t.Errorf("sandboxes left: %v", rt.sandboxes)
	}
	if ref, err := b.Ensure(t.Context(), rt, s, tool{}); err != nil || ref != refs[0] || rt.times("own-step") != 1 {
		t.Errorf("asked later: %q, %v", ref, err)
	}
	rt.images = map[string]bool{}
	if ref, err := b.Ensure(t.Context(), rt, s, tool{}); err != nil || ref == "" || rt.times("own-step") != 2 {
		t.Errorf("after the image has vanished: %q, %v, built %d times", ref, err, rt.times("own-step"))
	}
	stored, err := l.Snapshot(t.Context(), "shop", s.SetupHash())
	if err != nil || stored.State != "created" || stored.Ref != refs[0] {
		t.Errorf("recorded: %+v, %v", stored, err)
	}
}

// TestSkipped: a step whose result is there is skipped, and that is recorded;
// where all are, the image is used as it is.
func TestSkipped(t *testing.T) {
	t.Parallel()
	b, l := open(t)
	rt := newShop()
	s := parse(t, `{"harness": "scripted", "harnessVersion": "1.2.3", "image": "base", "packages": ["git"]}`)
	ref, err := b.Ensure(t.Context(), rt, s, tool{})
	if err != nil || ref != "base" || len(rt.images) != 0 {
		t.Errorf("%q, %v, images %v", ref, err, rt.images)
	}
	if rt.times("apt-get") != 0 || rt.times("install-tool") != 0 {
		t.Errorf("ran %q", rt.ran)
	}
	events, err := l.Events(t.Context(), ledger.EventFilter{Names: []string{ledger.SnapshotCreated}})
	if err != nil || len(events) != 1 || !strings.Contains(string(events[0].Payload), `"skipped":["packages","tool"]`) {
		t.Errorf("recorded %v, %v", events, err)
	}
}

// TestFailedStep: the error names the step, its exit code and its last words;
// nothing is left, and the next one who asks has it tried again.
func TestFailedStep(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	rt := newShop()
	rt.fails["own-step"] = 3
	s := parse(t, recipe)
	for n := range 2 {
		_, err := b.Ensure(t.Context(), rt, s, tool{})
		var step *setup.StepError
		if !errors.As(err, &step) || step.Step != "own" || step.ExitCode != 3 || step.Output != "first words\nlast words of own-step" {
			t.Errorf("%v", err)
		}
		if rt.times("own-step") != n+1 || len(rt.images) != 0 || len(rt.sandboxes) != 0 {
			t.Errorf("try %d: images %v, sandboxes %v", n+1, rt.images, rt.sandboxes)
		}
	}
}

// TestUnisolated: nothing is installed on the host itself.
func TestUnisolated(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	rt := newShop()
	rt.isolated = false
	rt.fails["check-tool"] = 1
	_, err := b.Ensure(t.Context(), rt, parse(t, `{"harness": "scripted", "harnessVersion": "1.2.3", "image": "base"}`), tool{})
	if !errors.Is(err, setup.ErrUnisolated) || rt.times("install-tool") != 0 {
		t.Errorf("%v, ran %q", err, rt.ran)
	}
}

// TestCalledOff: who leaves does not end the build for those who stay; the end
// of the builder does.
func TestCalledOff(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	rt := newShop()
	rt.hold = make(chan struct{})
	s := parse(t, recipe)
	leaves, leave := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := b.Ensure(leaves, rt, s, tool{}); left <- err }()
	go func() { _, err := b.Ensure(t.Context(), rt, s, tool{}); stayed <- err }()
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left: %v", err)
	}
	close(rt.hold)
	if err := <-stayed; err != nil {
		t.Errorf("who stayed: %v", err)
	}
	rt.hold = make(chan struct{})
	rt.images = map[string]bool{}
	ended := make(chan error, 1)
	go func() { _, err := b.Ensure(t.Context(), rt, s, tool{}); ended <- err }()
	b.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a closed builder made a snapshot")
		}
	case <-time.After(time.Minute):
		t.Error("a closed builder hangs")
	}
}
