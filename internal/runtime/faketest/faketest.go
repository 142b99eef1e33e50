// Package faketest is a runtime without processes, for the tests of the rooms
// above: its sandboxes are rows in memory, and the bridge in each is a goroutine
// that speaks just enough of the wire to be greeted, to start and stop a
// harness, and to take an archive. A test says what goes wrong.
package faketest

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/runtime"
)

// Runtime is the fake. What it does not have panics: a test that gets there
// tests something else. Its methods are safe for concurrent use; its fields are
// to be set before.
type Runtime struct {
	runtime.Runtime
	Caps runtime.Capabilities
	// Fail has a call fail, by the method's name.
	Fail map[string]error
	// OnCall, where set, is told of each call before it is answered.
	OnCall func(method, sandboxID string)
	// OnCreate, where set, prepares a new sandbox's bridge.
	OnCreate func(*Sandbox)

	mu        sync.Mutex
	sandboxes map[string]*Sandbox
	images    map[string]bool
	calls     []string
	made      int
	work      sync.WaitGroup
}

// Sandbox is one sandbox with its bridge. Set its fields before it is used.
type Sandbox struct {
	runtime.Info
	Epoch string
	// Harness is what the bridge says of its harness; Session, what is found in
	// the home by a harness that is continued.
	Harness harness.Status
	Session harness.Status
	// Silent: the bridge takes connections and says nothing.
	Silent bool
	// Lingers is how many more times the bridge that was kicked answers.
	Lingers int
	// Hangs is how many starts of the harness tell no session: the process is
	// there, and says nothing.
	Hangs int
	// StartError is what starting the harness fails with.
	StartError string
	// Stops counts how often the harness was told to stop; Unpacked are the
	// archives that were laid into the home.
	Stops    int
	Unpacked int
	past     string
}

// New makes a runtime that can do everything.
func New() *Runtime {
	return &Runtime{
		Caps: runtime.Capabilities{Isolated: true, Commit: true, Pause: true, RestartInPlace: true, Resources: true, StoppedArchive: true},
		Fail: map[string]error{}, sandboxes: map[string]*Sandbox{}, images: map[string]bool{},
	}
}

// Add puts a sandbox there, with an idle harness on a session of its home.
func (r *Runtime) Add(l runtime.Labels, state runtime.State, session string, messages int) *Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	sb := r.fresh(l)
	sb.State = state
	sb.Session = harness.Status{State: harness.StateIdle, SessionID: session, Messages: messages}
	sb.Harness = sb.Session
	r.sandboxes[l.SandboxID] = sb
	return sb
}

func (r *Runtime) fresh(l runtime.Labels) *Sandbox {
	return &Sandbox{Info: runtime.Info{Labels: l, State: runtime.StateRunning, Handle: "fake-" + l.SandboxID},
		Epoch: r.epoch(), Harness: harness.Status{State: harness.StateNone}}
}

func (r *Runtime) epoch() string {
	r.made++
	return fmt.Sprintf("epoch-%d", r.made)
}

// AddImage puts an image there.
func (r *Runtime) AddImage(ref string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[ref] = true
}

// Calls are the calls so far that change something, as "Kick s_1". They are in
// order.
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Sandboxes are the ids of those that are there, sorted.
func (r *Runtime) Sandboxes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]string, 0, len(r.sandboxes))
	for id := range r.sandboxes {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// Look returns a copy of a sandbox; nil where there is none.
func (r *Runtime) Look(id string) *Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sb := r.sandboxes[id]; sb != nil {
		c := *sb
		return &c
	}
	return nil
}

// call notes a call and finds its sandbox; r.mu is held where err is nil. looks
// says that it changes nothing.
func (r *Runtime) call(ctx context.Context, method, id string, looks bool) (*Sandbox, error) {
	if r.OnCall != nil {
		r.OnCall(method, id)
	}
	r.mu.Lock()
	if !looks {
		r.calls = append(r.calls, strings.TrimSpace(method+" "+id))
	}
	err := r.Fail[method]
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		r.mu.Unlock()
		return nil, fmt.Errorf("fake: %s %s: %w", method, id, err)
	}
	return r.sandboxes[id], nil
}

// known is call for a sandbox that must be there.
func (r *Runtime) known(ctx context.Context, method, id string, looks bool) (*Sandbox, error) {
	sb, err := r.call(ctx, method, id, looks)
	if err == nil && sb == nil {
		r.mu.Unlock()
		return nil, fmt.Errorf("fake: %s %s: %w", method, id, runtime.ErrNotFound)
	}
	return sb, err
}

// Name implements runtime.Runtime.
func (*Runtime) Name() string { return "fake" }

// Transport implements runtime.Runtime.
func (*Runtime) Transport() string { return "pipe" }

// Capabilities implements runtime.Runtime.
func (r *Runtime) Capabilities() runtime.Capabilities { return r.Caps }

// JournalDir implements runtime.Runtime.
func (*Runtime) JournalDir(string) string { return "" }

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, req runtime.CreateRequest) (runtime.Info, error) {
	sb, err := r.call(ctx, "Create", req.SandboxID, false)
	if err != nil {
		return runtime.Info{}, err
	}
	defer r.mu.Unlock()
	if sb == nil {
		sb = r.fresh(req.Labels)
		sb.Image = req.Image
		if r.OnCreate != nil {
			r.OnCreate(sb)
		}
		r.sandboxes[req.SandboxID] = sb
	}
	sb.State = runtime.StateRunning
	return sb.Info, nil
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) ([]runtime.Info, error) {
	if _, err := r.call(ctx, "List", "", true); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	var all []runtime.Info
	for _, sb := range r.sandboxes {
		all = append(all, sb.Info)
	}
	slices.SortFunc(all, func(a, b runtime.Info) int { return strings.Compare(a.SandboxID, b.SandboxID) })
	return all, nil
}

// Inspect implements runtime.Runtime.
func (r *Runtime) Inspect(ctx context.Context, id string) (runtime.Info, error) {
	sb, err := r.known(ctx, "Inspect", id, true)
	if err != nil {
		return runtime.Info{}, err
	}
	defer r.mu.Unlock()
	return sb.Info, nil
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, id string) error {
	sb, err := r.known(ctx, "Start", id, false)
	if err != nil {
		return err
	}
	defer r.mu.Unlock()
	if sb.State != runtime.StateRunning {
		sb.State, sb.Epoch, sb.Harness = runtime.StateRunning, r.epoch(), harness.Status{State: harness.StateNone}
	}
	return nil
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string, _ time.Duration) error {
	sb, err := r.known(ctx, "Stop", id, false)
	if err != nil {
		return err
	}
	defer r.mu.Unlock()
	sb.State = runtime.StateStopped
	return nil
}

// Pause implements runtime.Runtime.
func (r *Runtime) Pause(ctx context.Context, id string) error {
	return r.freeze(ctx, "Pause", id, runtime.StatePaused)
}

// Unpause implements runtime.Runtime.
func (r *Runtime) Unpause(ctx context.Context, id string) error {
	return r.freeze(ctx, "Unpause", id, runtime.StateRunning)
}

func (r *Runtime) freeze(ctx context.Context, method, id string, to runtime.State) error {
	sb, err := r.known(ctx, method, id, false)
	if err != nil {
		return err
	}
	defer r.mu.Unlock()
	if sb.State == runtime.StateStopped {
		return fmt.Errorf("fake: %s %s: %w", method, id, runtime.ErrNotRunning)
	}
	sb.State = to
	return nil
}

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	if _, err := r.call(ctx, "Remove", id, false); err != nil {
		return err
	}
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
	return nil
}

// Kick implements runtime.Runtime.
func (r *Runtime) Kick(ctx context.Context, id string) error {
	sb, err := r.known(ctx, "Kick", id, false)
	if err != nil {
		return err
	}
	defer r.mu.Unlock()
	if sb.State != runtime.StateRunning {
		return fmt.Errorf("fake: Kick %s: %w", id, runtime.ErrNotRunning)
	}
	sb.past, sb.Epoch = sb.Epoch, r.epoch()
	sb.Silent, sb.Harness = false, harness.Status{State: harness.StateNone}
	return nil
}

// Dial implements runtime.Runtime.
func (r *Runtime) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	sb, err := r.known(ctx, "Dial", id, true)
	if err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if sb.State != runtime.StateRunning {
		return nil, fmt.Errorf("fake: Dial %s: %w", id, runtime.ErrNotRunning)
	}
	epoch := sb.Epoch
	if sb.past != "" && sb.Lingers > 0 {
		sb.Lingers--
		epoch = sb.past
	}
	ours, theirs := net.Pipe()
	r.work.Go(func() {
		defer theirs.Close()
		r.serve(theirs, sb, epoch)
	})
	return ours, nil
}

// Exec implements runtime.Runtime: every command succeeds.
func (r *Runtime) Exec(ctx context.Context, id string, _ runtime.ExecRequest) (int, error) {
	_, err := r.known(ctx, "Exec", id, false)
	if err == nil {
		r.mu.Unlock()
	}
	return 0, err
}

// Image implements runtime.Runtime.
func (r *Runtime) Image(ctx context.Context, ref string) (runtime.Image, error) {
	if _, err := r.call(ctx, "Image", ref, true); err != nil {
		return runtime.Image{}, err
	}
	defer r.mu.Unlock()
	if !r.images[ref] {
		return runtime.Image{}, fmt.Errorf("fake: image %s: %w", ref, runtime.ErrNotFound)
	}
	return runtime.Image{Ref: ref}, nil
}

// Images implements runtime.Runtime.
func (r *Runtime) Images(ctx context.Context) ([]runtime.Image, error) {
	if _, err := r.call(ctx, "Images", "", true); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	var all []runtime.Image
	for ref := range r.images {
		all = append(all, runtime.Image{Ref: ref})
	}
	return all, nil
}

// Close waits until every connection has ended: whoever dialled closes it.
func (r *Runtime) Close() error {
	r.work.Wait()
	return nil
}
