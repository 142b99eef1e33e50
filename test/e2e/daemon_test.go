// Package e2e_test runs the real program as its users do: as a process of its
// own, over HTTP, killed with SIGKILL.
package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
)

// patience bounds every wait of these tests. They wait for events, not for
// time to pass; only a hang ever uses it up.
const patience = 90 * time.Second

// binary builds the program once, static and with failpoints; with the race
// detector where the tests have it.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "alineod-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "alineod")
	args, cgo := []string{"build", "-tags", "failpoint", "-o", path}, "CGO_ENABLED=0"
	if raceDetector {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1" // no static binary: the local runtime only
	}
	cmd := exec.Command("go", append(args, "../../cmd/alineod")...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// daemon is one state directory and the daemon that runs on it, if one does.
type daemon struct {
	t      testing.TB
	dir    string // the state directory
	listen string // empty: any free port
	bin    string
	env    []string
	cmd    *exec.Cmd
	exited chan struct{}
	log    *lockedBuffer
	*client.Client
}

// newDaemon makes a state directory and starts a daemon on it. env is added to
// its environment.
func newDaemon(t testing.TB, env ...string) *daemon {
	t.Helper()
	return newDaemonIn(t, stateDir(t), env...)
}

// stateDir makes a directory. It is none of t.TempDir: their names are long,
// and sandboxes outlive the daemon.
func stateDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "alineod-e2e-state-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newDaemonIn starts a daemon on a state directory.
func newDaemonIn(t testing.TB, state string, env ...string) *daemon {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: state, bin: bin, env: env, log: &lockedBuffer{},
		Client: client.New("unix://"+filepath.Join(state, "alineod.sock"), "")}
	d.Through(func(next http.RoundTripper) http.RoundTripper { return &contract{t: t, next: next} })
	t.Cleanup(func() {
		d.removeSandboxes()
		d.kill()
		if strings.Contains(d.log.String(), "DATA RACE") {
			t.Error("the race detector found something")
		}
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", d.log.tail(200))
		}
	})
	d.start()
	return d
}

// start starts the daemon and waits until it answers. More environment may arm
// a failpoint for this start alone.
func (d *daemon) start(more ...string) {
	d.t.Helper()
	d.launch(more...)
	d.eventually("the daemon to answer", func(ctx context.Context) (bool, error) {
		select {
		case <-d.exited:
			return false, errors.New("it exited")
		default:
		}
		return d.Health(ctx) == nil, nil
	})
}

// launch starts the process and returns at once.
func (d *daemon) launch(more ...string) {
	d.t.Helper()
	cmd := exec.Command(d.bin, "serve", "--listen", cmp.Or(d.listen, "127.0.0.1:0"), "--log-format", "json", "--log-level", "debug")
	cmd.Env = append(append(append(os.Environ(), "ALINEOD_STATE_DIR="+d.dir, "ALINEOD_RUNTIME=local"), d.env...), more...)
	cmd.Stderr = d.log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	d.cmd, d.exited = cmd, exited
}

// kill ends the daemon as a crash does, and waits for it to be gone.
func (d *daemon) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGKILL)
	<-d.exited
	d.cmd = nil
}

// awaitDeath waits for an armed failpoint to have killed the daemon.
func (d *daemon) awaitDeath() {
	d.t.Helper()
	select {
	case <-d.exited:
		d.cmd = nil
	case <-time.After(patience):
		d.t.Fatal("the failpoint was never hit")
	}
}

func (d *daemon) restart() {
	d.t.Helper()
	d.kill()
	d.start()
}

// removeSandboxes lets the daemon delete what it made, so that no process of a
// test is left.
func (d *daemon) removeSandboxes() {
	if d.cmd == nil {
		d.launch()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil && d.Health(ctx) != nil {
		select {
		case <-d.exited:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	agents, err := d.Agents(ctx)
	if err != nil {
		return
	}
	for _, a := range agents {
		_, _ = d.Stop(ctx, a.AgentID, client.StopRequest{Mode: "abort"})
	}
	for ctx.Err() == nil {
		left := 0
		if agents, err = d.Agents(ctx); err != nil {
			return
		}
		for _, a := range agents {
			if a.State != swarm.StateAborted {
				left++
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// eventually asks again and again until the answer is yes.
func (d *daemon) eventually(what string, ask func(context.Context) (bool, error)) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := ask(ctx)
		if err != nil {
			d.t.Fatalf("waiting for %s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			d.t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// ready waits until every agent has been through the boot pass.
func (d *daemon) ready() {
	d.t.Helper()
	d.eventually("the boot pass to be over", func(ctx context.Context) (bool, error) {
		r, err := d.Ready(ctx)
		return r.Ready, err
	})
}

// run starts an agent and returns its id.
func (d *daemon) run(spec, prompt string) string {
	d.t.Helper()
	answer, err := d.StartRun(context.Background(), client.RunRequest{Spec: json.RawMessage(spec), Prompt: prompt})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.RootAgentID
}

// ask sends a prompt and waits for its result.
func (d *daemon) ask(agent, text string) swarm.ResultView {
	d.t.Helper()
	d.prompt(agent, text)
	return d.result(agent)
}

func (d *daemon) prompt(agent, text string) string {
	d.t.Helper()
	answer, err := d.Prompt(context.Background(), agent, client.PromptRequest{Text: text})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.TurnID
}

// result waits for the agent's last turn to be settled.
func (d *daemon) result(agent string) swarm.ResultView {
	d.t.Helper()
	var v swarm.ResultView
	d.eventually("the result of "+agent, func(ctx context.Context) (bool, error) {
		var err error
		v, err = d.Result(ctx, agent, 5*time.Second)
		return v.State == "settled", err
	})
	return v
}

// await waits for an agent to be in one of the states.
func (d *daemon) await(agent string, want ...string) swarm.AgentView {
	d.t.Helper()
	var v swarm.AgentView
	d.eventually(agent+" to be "+strings.Join(want, " or "), func(ctx context.Context) (bool, error) {
		var err error
		v, err = d.Agent(ctx, agent)
		for _, s := range want {
			if v.State == s {
				return true, err
			}
		}
		return false, err
	})
	return v
}

// lockedBuffer is a buffer that a process writes while a test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) tail(lines int) string {
	all := strings.Split(l.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
