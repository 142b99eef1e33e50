package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/client"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/docker"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

// proxy stands between the driver and the engine and can be cut.
type proxy struct {
	t      *testing.T
	path   string
	engine string
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	silent   bool // connections are accepted and never served
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	cli := runtimetest.Engine(t)
	u, err := client.ParseHostURL(cli.DaemonHost())
	if err != nil || u.Scheme != "unix" {
		t.Skipf("NOT TESTED: the engine is at %s, not at a unix socket", cli.DaemonHost())
	}
	dir, err := os.MkdirTemp("", "proxy") // short: a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, path: filepath.Join(dir, "s"), engine: u.Host}
	t.Cleanup(func() {
		p.cut()
		p.wg.Wait()
		os.RemoveAll(dir)
	})
	p.serve()
	return p
}

func (p *proxy) host() string { return "unix://" + p.path }

// serve opens the proxy, at first or again.
func (p *proxy) serve() {
	p.t.Helper()
	l, err := net.Listen("unix", p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.join(c) })
		}
	})
}

func (p *proxy) join(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	silent := p.silent
	p.conns = append(p.conns, c)
	p.mu.Unlock()
	if silent {
		io.Copy(io.Discard, c)
		return
	}
	engine, err := net.Dial("unix", p.engine)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, engine)
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(engine, c)
		engine.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(c, engine)
	c.Close()
	engine.Close()
	<-done
}

// cut ends all connections and refuses new ones.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// hush keeps accepting connections, but serves none, nor those that are open.
func (p *proxy) hush() {
	p.cut()
	p.mu.Lock()
	p.silent = true
	p.mu.Unlock()
	p.serve()
}

func labels() runtime.Labels {
	return runtime.Labels{SandboxID: ids.New(ids.Sandbox), RunID: ids.New(ids.Run), AgentID: ids.New(ids.Agent), Generation: 1}
}

func testConfig(t *testing.T) runtimetest.Config {
	return runtimetest.Config{Instance: runtimetest.TestInstance(), StateDir: t.TempDir(), Binary: runtimetest.Standin(t)}
}

// open makes a driver that goes straight to the engine and clears all away.
func open(t *testing.T, cfg runtimetest.Config, change func(*docker.Options)) runtime.Runtime {
	t.Helper()
	d := newDocker(change)(t, cfg)
	t.Cleanup(func() {
		runtimetest.Clear(context.Background(), t, d)
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// TestEngineGone: silence of any kind is ErrUnreachable and nothing else; the
// sandbox is not touched by it; events tell of both ends of it.
func TestEngineGone(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	cfg := testConfig(t)
	direct := open(t, cfg, nil)
	d := newDocker(func(o *docker.Options) { o.Host = p.host() })(t, cfg)
	defer d.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := d.Events(ctx)
	want := func(typ runtime.EventType) runtime.Event {
		t.Helper()
		select {
		case ev := <-events:
			if ev.Type != typ {
				t.Fatalf("event %+v, want %q", ev, typ)
			}
			return ev
		case <-time.After(time.Minute):
			t.Fatalf("no event %q", typ)
		}
		return runtime.Event{}
	}
	want(runtime.EventResync)
	req := runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t)}
	info, err := d.Create(ctx, req)
	if err != nil {
		t.Fatalf("Create through the proxy: %v", err)
	}
	want(runtime.EventStarted)

	p.cut()
	want(runtime.EventDown)
	for name, err := range calls(ctx, d, req) {
		if !errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, runtime.ErrNotFound) || errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("%s without an engine: %v, want ErrUnreachable alone", name, err)
		}
	}
	// What happens meanwhile is told by the list that follows the resync.
	if err := direct.Stop(ctx, info.SandboxID, 0); err != nil {
		t.Fatalf("Stop behind the proxy's back: %v", err)
	}
	p.serve()
	want(runtime.EventResync)
	infos, err := d.List(ctx)
	if err != nil || len(infos) != 1 || infos[0].State != runtime.StateStopped {
		t.Errorf("List after the engine's return: %+v, %v; want one, stopped", infos, err)
	}
	// And the stream is alive.
	if err := direct.Start(ctx, info.SandboxID); err != nil {
		t.Fatal(err)
	}
	if ev := want(runtime.EventStarted); ev.SandboxID != info.SandboxID {
		t.Errorf("event %+v, want of %s", ev, info.SandboxID)
	}
}

// calls makes the calls that ask the engine something.
func calls(ctx context.Context, d runtime.Runtime, req runtime.CreateRequest) map[string]error {
	id := req.SandboxID
	got := map[string]error{
		"Ping":    d.Ping(ctx),
		"Start":   d.Start(ctx, id),
		"Stop":    d.Stop(ctx, id, 0),
		"Pause":   d.Pause(ctx, id),
		"Unpause": d.Unpause(ctx, id),
		"Kick":    d.Kick(ctx, id),
		"Remove":  d.Remove(ctx, id),
	}
	_, got["Create"] = d.Create(ctx, req)
	_, got["List"] = d.List(ctx)
	_, got["Inspect"] = d.Inspect(ctx, id)
	_, got["Exec"] = d.Exec(ctx, id, runtime.ExecRequest{Args: []string{"true"}})
	_, got["Stats"] = d.Stats(ctx, id)
	_, got["Commit"] = d.Commit(ctx, id, "never", nil)
	_, got["Image"] = d.Image(ctx, req.Image)
	_, got["Images"] = d.Images(ctx)
	_, got["CopyOut"] = d.CopyOut(ctx, id, "/tmp")
	got["RemoveImage"] = d.RemoveImage(ctx, "alineo/none/never:latest")
	return got
}

// TestEngineSilent: an engine that accepts connections and says nothing is
// unreachable once the call's own time is over; a caller that leaves earlier
// gets its own context's error.
func TestEngineSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.hush()
	d := newDocker(func(o *docker.Options) {
		o.Host, o.CallTimeout = p.host(), 50*time.Millisecond
	})(t, testConfig(t))
	defer d.Close()
	req := runtime.CreateRequest{Labels: labels(), Image: "any"}
	for name, err := range calls(t.Context(), d, req) {
		if !errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("%s of a silent engine: %v, want ErrUnreachable", name, err)
		}
	}
	patient := newDocker(func(o *docker.Options) { o.Host = p.host() })(t, testConfig(t))
	defer patient.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := patient.List(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, runtime.ErrUnreachable) {
		t.Errorf("List with an impatient caller: %v, want its context's error", err)
	}
}

// TestExecEngineLost: the stream of a bridge over exec ends with the engine's
// connection; one that falls silent while a command is attached is noticed.
func TestExecEngineLost(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	cfg := testConfig(t)
	exec := func(o *docker.Options) { o.Transport = docker.TransportExec }
	direct := open(t, cfg, exec)
	info, err := direct.Create(t.Context(), runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t)})
	if err != nil {
		t.Fatal(err)
	}
	d := newDocker(func(o *docker.Options) {
		exec(o)
		o.Host = p.host()
	})(t, cfg)
	defer d.Close()
	conn, err := d.Dial(t.Context(), info.SandboxID)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	defer conn.Close()
	p.cut()
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, runtime.ErrNotFound) || errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("the stream ended with %v: the engine's silence is none of those", err)
	}
	if _, err := d.Dial(t.Context(), info.SandboxID); !errors.Is(err, runtime.ErrUnreachable) {
		t.Errorf("Dial without an engine: %v, want ErrUnreachable", err)
	}
}

// TestNewNeedsNoEngine: a daemon starts while the engine is away.
func TestNewNeedsNoEngine(t *testing.T) {
	t.Parallel()
	cfg := runtimetest.Config{Instance: runtimetest.TestInstance(), StateDir: t.TempDir(), Binary: "/nonexistent"}
	d := newDocker(func(o *docker.Options) { o.Host = "unix://" + filepath.Join(t.TempDir(), "none.sock") })(t, cfg)
	if err := d.Ping(t.Context()); !errors.Is(err, runtime.ErrUnreachable) {
		t.Errorf("Ping: %v, want ErrUnreachable", err)
	}
	events := d.Events(t.Context())
	if ev := <-events; ev.Type != runtime.EventDown {
		t.Errorf("first event without an engine: %+v, want %q", ev, runtime.EventDown)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range events { // ends with the driver
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := docker.Options{Instance: "test-a", StateDir: "/nonexistent", Host: "unix:///nonexistent"}
	for name, change := range map[string]func(*docker.Options){
		"no instance":       func(o *docker.Options) { o.Instance = "" },
		"instance's form":   func(o *docker.Options) { o.Instance = "Not/OK" },
		"relative state":    func(o *docker.Options) { o.StateDir = "state" },
		"unknown transport": func(o *docker.Options) { o.Transport = "pigeon" },
	} {
		o := good
		change(&o)
		if _, err := docker.New(o); !errors.Is(err, runtime.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
