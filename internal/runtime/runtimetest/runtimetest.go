// Package runtimetest is the suite that every driver of runtime.Runtime passes.
//
// It runs the driver with any executable that behaves as `alineod bridge`
// does: the stand-in that Standin builds, or the real one.
package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// patience is how long something may take that must happen. No test waits for
// it in vain: it ends only tests that fail.
const patience = 60 * time.Second

// Config is what a driver is made with.
type Config struct {
	Instance string
	StateDir string
	Binary   string
}

// Options say how the sandboxes of a driver are to be treated.
type Options struct {
	// Binary is the executable that runs in the sandbox.
	Binary string
	// Image is what sandboxes are made from; it has a shell and the usual
	// commands. Empty where the driver has an empty image.
	Image string
	// Dir returns a directory of the sandbox that can be written to, as CopyIn
	// and Exec name it, and that a commit holds.
	Dir func(runtime.Info) string
	// Talk asks the bridge something and checks its answer. Nil: what is
	// written comes back, as from the stand-in.
	Talk func(io.ReadWriter) error
	// Many is how many sandboxes are made at once; 0: twenty.
	Many int
	// Parallel lets the tests run side by side.
	Parallel bool
}

// New makes a driver; several may exist for one Config, one after another.
type New func(t *testing.T, cfg Config) runtime.Runtime

// Run runs the whole suite.
func Run(t *testing.T, newRuntime New, opts Options) {
	t.Helper()
	if opts.Talk == nil {
		opts.Talk = echo
	}
	if opts.Many == 0 {
		opts.Many = 20
	}
	s := &suite{newRuntime: newRuntime, opts: opts}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Lifecycle", testLifecycle},
		{"CreateAdopts", testCreateAdopts},
		{"CreateRefuses", testCreateRefuses},
		{"CreateInterrupted", testCreateInterrupted},
		{"CreateConcurrently", testCreateConcurrently},
		{"Remove", testRemove},
		{"Pause", testPause},
		{"NotFound", testNotFound},
		{"NotRunning", testNotRunning},
		{"DialAndKick", testDialAndKick},
		{"Exec", testExec},
		{"ExecInterrupted", testExecInterrupted},
		{"Copy", testCopy},
		{"Commit", testCommit},
		{"Stats", testStats},
		{"Events", testEvents},
		{"EventsAfterRestart", testEventsAfterRestart},
		{"DaemonRestarted", testDaemonRestarted},
		{"OtherInstance", testOtherInstance},
	} {
		t.Run(test.name, func(t *testing.T) {
			if opts.Parallel {
				t.Parallel()
			}
			test.run(t, s)
		})
	}
}

type suite struct {
	newRuntime New
	opts       Options
}

// place is one driver with its state.
type place struct {
	runtime.Runtime
	t   *testing.T
	s   *suite
	cfg Config
}

// start makes a driver with a state of its own, which is cleared away at the
// end whatever became of the test.
func (s *suite) start(t *testing.T) *place {
	t.Helper()
	cfg := Config{Instance: TestInstance(), StateDir: t.TempDir(), Binary: s.opts.Binary}
	return s.open(t, cfg)
}

// TestInstance returns a fresh instance's name that is recognised as a test's.
func TestInstance() string { return "test-" + ids.New("i")[2:] }

// open makes a driver of an existing state.
func (s *suite) open(t *testing.T, cfg Config) *place {
	t.Helper()
	p := &place{Runtime: s.newRuntime(t, cfg), t: t, s: s, cfg: cfg}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		Clear(ctx, t, p.Runtime)
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// Clear removes all sandboxes and images of a driver.
func Clear(ctx context.Context, t testing.TB, rt runtime.Runtime) {
	t.Helper()
	infos, err := rt.List(ctx)
	if err != nil {
		t.Errorf("List for the clean-up: %v", err)
	}
	for _, info := range infos {
		if err := rt.Remove(ctx, info.SandboxID); err != nil {
			t.Errorf("Remove for the clean-up: %v", err)
		}
	}
	images, err := rt.Images(ctx)
	if err != nil {
		t.Errorf("Images for the clean-up: %v", err)
	}
	for _, img := range images {
		if err := rt.RemoveImage(ctx, img.Ref); err != nil {
			t.Errorf("RemoveImage for the clean-up: %v", err)
		}
	}
}

// request asks for a fresh sandbox.
func (p *place) request() runtime.CreateRequest {
	return runtime.CreateRequest{
		Labels: runtime.Labels{
			SandboxID: ids.New(ids.Sandbox), RunID: ids.New(ids.Run), AgentID: ids.New(ids.Agent), Generation: 1,
		},
		Image: p.s.opts.Image,
		Env:   map[string]string{"GREETING": "good morning"},
	}
}

// create makes a fresh sandbox.
func (p *place) create() runtime.Info {
	p.t.Helper()
	info, err := p.Create(p.t.Context(), p.request())
	if err != nil {
		p.t.Fatalf("Create: %v", err)
	}
	return info
}

// must fails the test if a call did.
func (p *place) must(doing string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s: %v", doing, err)
	}
}

// wantState checks the state by Inspect and by List, which must agree.
func (p *place) wantState(id string, want runtime.State) runtime.Info {
	p.t.Helper()
	info, err := p.Inspect(p.t.Context(), id)
	p.must("Inspect", err)
	if info.State != want {
		p.t.Fatalf("Inspect: state %q, want %q", info.State, want)
	}
	listed, ok := p.find(id)
	if !ok || listed.State != want {
		p.t.Fatalf("List: %+v (found %t), want state %q", listed, ok, want)
	}
	return info
}

// find looks for a sandbox in List.
func (p *place) find(id string) (runtime.Info, bool) {
	p.t.Helper()
	infos, err := p.List(p.t.Context())
	p.must("List", err)
	for _, info := range infos {
		if info.SandboxID == id {
			return info, true
		}
	}
	return runtime.Info{}, false
}

// sh runs a shell command in the sandbox and returns what it wrote.
func (p *place) sh(id, script string) (stdout string, code int) {
	p.t.Helper()
	var out, errOut bytes.Buffer
	code, err := p.Exec(p.t.Context(), id, runtime.ExecRequest{
		Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errOut,
	})
	if err != nil {
		p.t.Fatalf("Exec %q: %v", script, err)
	}
	if errOut.Len() > 0 {
		p.t.Logf("Exec %q: standard error: %s", script, errOut.String())
	}
	return out.String(), code
}

// talk dials until the bridge answers, and returns the stream. The bridge
// needs a moment after its start; nothing tells when that is over.
func (p *place) talk(id string) io.ReadWriteCloser {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := p.Dial(ctx, id)
		if err == nil {
			if err = p.s.opts.Talk(conn); err == nil {
				return conn
			}
			conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("the bridge of %s does not answer; at last: %v", id, err)
		}
	}
}

func echo(rw io.ReadWriter) error {
	const said = "are you there?\n"
	if _, err := io.WriteString(rw, said); err != nil {
		return err
	}
	got := make([]byte, len(said))
	if _, err := io.ReadFull(rw, got); err != nil {
		return err
	}
	if string(got) != said {
		return fmt.Errorf("said %q, heard %q", said, got)
	}
	return nil
}

// next waits for an event that fits. Those before it are passed over, save
// that the stream must not end.
func next(t *testing.T, events <-chan runtime.Event, typ runtime.EventType, id string) runtime.Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				t.Fatalf("the events ended before %q of %q", typ, id)
			}
			if ev.Type == typ && ev.SandboxID == id {
				return ev
			}
		case <-timeout:
			t.Fatalf("no event %q of %q", typ, id)
		}
	}
}

var standin struct {
	once sync.Once
	path string
	err  error
}

// Standin builds the stand-in for alineod and returns its path. It is built
// once for each test program; Go's cache makes that cheap.
func Standin(t testing.TB) string {
	t.Helper()
	standin.once.Do(func() { standin.path, standin.err = buildStandin() })
	if standin.err != nil {
		t.Fatalf("building the stand-in: %v", standin.err)
	}
	return standin.path
}

func buildStandin() (string, error) {
	_, file, _, _ := goruntime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "testdata", "standin")
	// A fixed name: the next program overwrites it with the same, in one step.
	path := filepath.Join(os.TempDir(), "alineo-test-standin")
	tmp, err := os.CreateTemp("", "alineo-test-standin-*")
	if err != nil {
		return "", err
	}
	tmp.Close()
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", tmp.Name(), ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, os.Rename(tmp.Name(), path)
}
