// Package setup makes setup snapshots: images that hold a harness, the
// packages of a spec and what its setup steps made. There is one for each
// setup hash and runtime; it is made once, however many agents ask for it at
// the same moment, recorded in the ledger, and made again when its image has
// vanished.
package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/spec"
)

// PurposeSetup marks the sandboxes this package builds in, in sandbox.intended.
const PurposeSetup = "setup"

// StepError is a step that failed.
type StepError struct {
	Step     string
	ExitCode int
	Output   string // its last lines
}

func (e *StepError) Error() string {
	return fmt.Sprintf("setup step %q exited %d: %s", e.Step, e.ExitCode, strings.TrimSpace(e.Output))
}

// ErrUnisolated: packages would have to be installed on the host itself.
var ErrUnisolated = errors.New("packages are not installed where sandboxes are not isolated")

// Builder makes setup snapshots. It is safe for concurrent use.
type Builder struct {
	ledger *ledger.Ledger
	clock  clockwork.Clock
	log    *zap.Logger

	ctx    context.Context // of builds: they outlive the agent that asked first
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	builds map[string]*build // by runtime and hash
	held   map[string]bool   // sandboxes builds stand in
}

type build struct {
	done chan struct{}
	ref  string
	err  error
}

// NewBuilder makes a Builder. Close ends its builds.
func NewBuilder(l *ledger.Ledger, clock clockwork.Clock, log *zap.Logger) *Builder {
	ctx, cancel := context.WithCancel(context.Background())
	return &Builder{ledger: l, clock: clock, log: log, ctx: ctx, cancel: cancel,
		builds: map[string]*build{}, held: map[string]bool{}}
}

// Close ends all builds and waits for them.
func (b *Builder) Close() {
	b.cancel()
	b.work.Wait()
}

// Holds reports whether a build stands in that sandbox right now.
func (b *Builder) Holds(sandboxID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[sandboxID]
}

// Ensure returns the image to make an agent's sandbox from. Those who ask for
// one that is being made wait for it. Errors: *StepError, ErrUnisolated, those
// of the runtime and the ledger, and the context's.
func (b *Builder) Ensure(ctx context.Context, rt runtime.Runtime, s *spec.Spec, h harness.Harness) (string, error) {
	key := rt.Name() + "\x00" + s.SetupHash()
	b.mu.Lock()
	if err := b.ctx.Err(); err != nil {
		b.mu.Unlock()
		return "", err
	}
	run := b.builds[key]
	if run == nil {
		run = &build{done: make(chan struct{})}
		b.builds[key] = run
		b.work.Go(func() {
			run.ref, run.err = b.ensure(b.ctx, rt, s, h)
			b.mu.Lock()
			delete(b.builds, key)
			b.mu.Unlock()
			close(run.done)
		})
	}
	b.mu.Unlock()
	select {
	case <-run.done:
		return run.ref, run.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (b *Builder) ensure(ctx context.Context, rt runtime.Runtime, s *spec.Spec, h harness.Harness) (string, error) {
	hash := s.SetupHash()
	stored, err := b.ledger.Snapshot(ctx, rt.Name(), hash)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return "", fmt.Errorf("looking up setup snapshot %s: %w", hash, err)
	case stored.State == "created":
		gone, err := b.gone(ctx, rt, stored)
		if err != nil || !gone {
			return stored.Ref, err
		}
	}
	return b.make(ctx, rt, s, h, hash)
}

// gone reports, and records, that a snapshot's image is there no more. An
// image that may be had from a registry again does not count.
func (b *Builder) gone(ctx context.Context, rt runtime.Runtime, s ledger.Snapshot) (bool, error) {
	if s.Ref == "" {
		return false, nil
	}
	_, err := rt.Image(ctx, s.Ref)
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, runtime.ErrNotFound) {
		return false, fmt.Errorf("looking for the image of setup snapshot %s: %w", s.Hash, err)
	}
	b.log.Warn("setup snapshot's image has vanished; making it again", zap.String("hash", s.Hash), zap.String("ref", s.Ref))
	_, err = b.ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{Event: ledger.SnapshotGone,
		Payload: ledger.SnapshotPayload{Runtime: s.Runtime, Hash: s.Hash, Ref: s.Ref, Reason: "image not found"}}}})
	if err != nil {
		return false, fmt.Errorf("recording that setup snapshot %s is gone: %w", s.Hash, err)
	}
	return true, nil
}

func (b *Builder) make(ctx context.Context, rt runtime.Runtime, s *spec.Spec, h harness.Harness, hash string) (string, error) {
	base := ""
	if rt.Capabilities().BaseImages {
		base = s.Image
	}
	todo := steps(s, h)
	start := b.clock.Now()
	if len(todo) == 0 {
		return base, b.record(ctx, ledger.SnapshotPayload{Runtime: rt.Name(), Hash: hash, Ref: base})
	}

	id := ids.New(ids.Sandbox)
	b.hold(id, true)
	defer b.hold(id, false)
	if _, err := b.ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{
		{SandboxID: id, Event: ledger.SandboxIntended, Payload: ledger.SandboxIntendedPayload{
			Runtime: rt.Name(), Generation: 1, Purpose: PurposeSetup, Image: base}},
		{Event: ledger.SnapshotIntended, Payload: ledger.SnapshotPayload{Runtime: rt.Name(), Hash: hash}},
	}}); err != nil {
		return "", fmt.Errorf("recording the intent of setup snapshot %s: %w", hash, err)
	}
	failpoint.Hit("setup.intended")
	defer b.remove(rt, id)
	if _, err := rt.Create(ctx, runtime.CreateRequest{
		Labels: runtime.Labels{SandboxID: id, Generation: 1}, Image: base,
		Bridge: runtime.Bridge{User: "root"},
	}); err != nil {
		return "", fmt.Errorf("making the sandbox of setup snapshot %s: %w", hash, err)
	}
	skipped, err := b.runSteps(ctx, rt, id, todo)
	if err != nil {
		return "", err
	}
	ref := base
	if len(skipped) < len(todo) {
		image, err := rt.Commit(ctx, id, "setup-"+hash, map[string]string{"alineo.setup": hash})
		if err != nil {
			return "", fmt.Errorf("committing setup snapshot %s: %w", hash, err)
		}
		ref = image.Ref
	}
	failpoint.Hit("setup.committed")
	took := b.clock.Since(start)
	b.log.Info("setup snapshot made", zap.String("hash", hash), zap.String("ref", ref),
		zap.Strings("skipped", skipped), zap.Duration("took", took))
	return ref, b.record(ctx, ledger.SnapshotPayload{Runtime: rt.Name(), Hash: hash, Ref: ref,
		TookMs: took.Milliseconds(), Skipped: skipped})
}

func (b *Builder) record(ctx context.Context, p ledger.SnapshotPayload) error {
	if _, err := b.ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{Event: ledger.SnapshotCreated, Payload: p}}}); err != nil {
		return fmt.Errorf("recording setup snapshot %s: %w", p.Hash, err)
	}
	return nil
}

func (b *Builder) hold(id string, held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held {
		b.held[id] = true
	} else {
		delete(b.held, id)
	}
}

// remove lets the building sandbox go, also when the build was called off. What
// it cannot remove, the reconciliation finds.
func (b *Builder) remove(rt runtime.Runtime, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), runtime.DefaultCallTimeout)
	defer cancel()
	err := rt.Remove(ctx, id)
	if err == nil {
		_, err = b.ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{SandboxID: id, Event: ledger.SandboxRemoved,
			Payload: ledger.ReasonPayload{Reason: "setup snapshot made"}}}})
	}
	if err != nil {
		b.log.Warn("cannot remove the sandbox of a setup snapshot", zap.String("sandbox", id), zap.Error(err))
	}
}

// Apply takes the steps of a spec in a sandbox that was made from something
// else than its setup snapshot. Those whose result is there are skipped. Errors
// as Ensure.
func (b *Builder) Apply(ctx context.Context, rt runtime.Runtime, sandboxID string, s *spec.Spec, h harness.Harness) error {
	_, err := b.runSteps(ctx, rt, sandboxID, steps(s, h))
	return err
}

type step struct {
	harness.SetupStep
	cwd       string
	needsRoot bool // changes the system, so it needs isolation
}

// steps lists what a spec asks to have installed, in order.
func steps(s *spec.Spec, h harness.Harness) []step {
	var all []step
	if len(s.Packages) > 0 {
		// The spec lets no name through that a shell could take for more.
		names := strings.Join(s.Packages, " ")
		all = append(all, step{needsRoot: true, SetupStep: harness.SetupStep{
			Name:  "packages",
			Check: "dpkg-query -W -f '${db:Status-Status}\\n' " + names + " 2>/dev/null | { ! grep -qvx installed; } && dpkg-query -W " + names + " >/dev/null 2>&1",
			Run:   "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends " + names,
		}})
	}
	for _, hs := range h.Setup(s.HarnessVersion) {
		all = append(all, step{SetupStep: hs, needsRoot: true})
	}
	for i, own := range s.Setup {
		name := own.Name
		if name == "" {
			name = fmt.Sprintf("setup[%d]", i)
		}
		all = append(all, step{SetupStep: harness.SetupStep{Name: name, Run: own.Run}, cwd: own.Cwd})
	}
	return all
}

func (b *Builder) runSteps(ctx context.Context, rt runtime.Runtime, id string, todo []step) (skipped []string, err error) {
	for _, st := range todo {
		if st.Check != "" {
			code, err := rt.Exec(ctx, id, runtime.ExecRequest{Args: []string{"sh", "-c", st.Check}})
			if err != nil {
				return nil, fmt.Errorf("checking setup step %q: %w", st.Name, err)
			}
			if code == 0 {
				skipped = append(skipped, st.Name)
				continue
			}
		}
		if st.needsRoot && !rt.Capabilities().Isolated {
			return nil, fmt.Errorf("setup step %q: %w", st.Name, ErrUnisolated)
		}
		var out tail
		code, err := rt.Exec(ctx, id, runtime.ExecRequest{Args: []string{"sh", "-c", st.Run}, Workdir: st.cwd, Stdout: &out, Stderr: &out})
		if err != nil {
			return nil, fmt.Errorf("running setup step %q: %w", st.Name, err)
		}
		if code != 0 {
			return nil, &StepError{Step: st.Name, ExitCode: code, Output: out.lines(stepTailLines)}
		}
	}
	return slices.Clip(skipped), nil
}

// stepTailLines is how much of a failed step's output its error carries
// (lifecycle.md: the last 40 lines).
const stepTailLines = 40

// tail keeps the end of what is written to it. Stdout and stderr of one
// command share it, hence the lock.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) lines(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := strings.Split(strings.ToValidUTF8(strings.TrimRight(string(t.buf), "\n"), "�"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
