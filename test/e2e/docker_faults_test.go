package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
	"github.com/alineod/alineod/internal/swarm"
)

// engine is a Docker Engine of a test's own, to be killed.
type engine struct {
	t    *testing.T
	dir  string
	log  *lockedBuffer
	cmd  *exec.Cmd
	gone chan struct{}
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	if raceDetector {
		t.Skip("containers take a static program, and the race detector makes none")
	}
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: an engine of one's own needs root")
	}
	dir, err := os.MkdirTemp("", "alineod-engine-") // short: a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, dir: dir, log: &lockedBuffer{}}
	t.Cleanup(func() {
		e.kill(syscall.SIGTERM)
		// What a killed engine left mounted goes before its directory.
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
				_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
			}
		}
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("log of the engine:\n%s", e.log.tail(60))
		}
	})
	e.start()
	return e
}

func (e *engine) host() string { return "unix://" + filepath.Join(e.dir, "docker.sock") }

func (e *engine) start() {
	e.t.Helper()
	cmd := exec.Command("dockerd", "--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"),
		"-H", e.host(), "--pidfile", filepath.Join(e.dir, "pid"), "--bridge", "none", "--iptables=false")
	cmd.Stdout, cmd.Stderr = e.log, e.log
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	e.cmd, e.gone = cmd, gone
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for exec.Command("docker", "-H", e.host(), "version").Run() != nil {
		select {
		case <-tick.C:
		case <-gone:
			e.t.Fatalf("the engine ended at its start:\n%s", e.log.tail(40))
		case <-deadline:
			e.t.Fatalf("the engine does not answer:\n%s", e.log.tail(40))
		}
	}
}

// kill ends the engine. SIGTERM stops its containers first; SIGKILL leaves them
// at work without an engine.
func (e *engine) kill(how syscall.Signal) {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Signal(how)
	<-e.gone
	e.cmd = nil
	if how == syscall.SIGKILL {
		e.forget()
	}
}

// forget waits until the engine's containerd has died with it, and removes its
// pid file: where nobody collects orphans, the next engine would take the dead
// process for a living one.
func (e *engine) forget() {
	e.t.Helper()
	file := filepath.Join(e.dir, "exec", "containerd", "containerd.pid")
	pid, err := os.ReadFile(file)
	if err != nil {
		e.t.Fatal(err)
	}
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile("/proc/" + string(pid) + "/stat")
		if _, state, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(state, "Z") {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			e.t.Fatal("containerd outlives its engine")
		}
	}
	if err := os.Remove(file); err != nil {
		e.t.Fatal(err)
	}
}

// load copies an image from the engine of the other tests.
func (e *engine) load(image string) {
	e.t.Helper()
	save := exec.Command("docker", "save", image)
	load := exec.Command("docker", "-H", e.host(), "load")
	r, w := io.Pipe()
	save.Stdout, load.Stdin = w, r
	if err := load.Start(); err != nil {
		e.t.Fatal(err)
	}
	w.CloseWithError(save.Run())
	if err := load.Wait(); err != nil {
		e.t.Fatalf("copying %s to the engine: %v", image, err)
	}
}

func (e *engine) docker(args ...string) string {
	e.t.Helper()
	return docker(e.t, append([]string{"-H", e.host()}, args...)...)
}

// TestDockerEngineRestarted: with the real Pi. An engine that is away is no
// dead agent: what runs goes on. One that comes back has stopped its
// containers: they are started again, with all that was in them.
func TestDockerEngineRestarted(t *testing.T) {
	t.Parallel()
	image := piImage(t)
	e := newEngine(t)
	e.load(image)
	d := newDockerDaemon(t, "ALINEOD_DOCKER_HOST="+e.host())
	answer, err := d.StartRun(context.Background(), client.RunRequest{Spec: json.RawMessage(fmt.Sprintf(
		`{"harness": "pi", "provider": "fake", "model": "fake-1", "image": %q, "checkpoint": true,
		  "env": {"MODEL_KEY": "${ALINEOD_TEST_SECRET}", "PI_OFFLINE": "1"}}`, image)), Prompt: "run echo kept > ~/note.txt\nsay one"})
	if err != nil {
		t.Fatal(err)
	}
	a := answer.RootAgentID
	want(t, "first turn", result(d.result(a)), "success one")
	v := d.await(a, swarm.StateDone)
	root := "/proc/" + e.docker("inspect", "-f", "{{.State.Pid}}", container(*v.SandboxID)) + "/root"

	// The engine is killed in mid-turn. The container works on, and so does
	// the agent: its socket needs no engine.
	turn := d.prompt(a, "hold /tmp/gate\nsay through")
	d.inTurn(a, turn)
	e.kill(syscall.SIGKILL)
	d.eventually("the daemon to notice", func(context.Context) (bool, error) {
		return strings.Contains(d.log.String(), "runtime does not answer"), nil
	})
	if err := os.WriteFile(root+"/tmp/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "turn without an engine", result(d.result(a)), "success through")
	d.eventually("its checkpoint", func(ctx context.Context) (bool, error) {
		v, err := d.Checkpoints(ctx, a)
		return len(v) == 2, err
	})
	if err := os.Remove(root + "/tmp/gate"); err != nil {
		t.Fatal(err)
	}

	// It comes back, and with it the sandbox, in mid-turn.
	turn = d.prompt(a, "hold /tmp/gate\nsay through")
	d.inTurn(a, turn)
	e.start()
	want(t, "rung", d.awaitRung(a, 1), "restarted")
	want(t, "turn over the engine's restart", *d.result(a).Outcome, "interrupted")
	want(t, "next turn", result(d.ask(a, "say two")), "success two")

	// The daemon starts while the engine is away: the agent is held, and
	// nothing is started in its place.
	turn = d.prompt(a, "hold /tmp/gate\nsay through")
	d.inTurn(a, turn)
	d.kill()
	e.kill(syscall.SIGTERM)
	d.start()
	d.ready()
	held := d.await(a, swarm.StateRecovering)
	want(t, "why", held.Recovering, "runtime_unreachable")
	e.start()
	want(t, "rung", d.awaitRung(a, 2), "restarted")
	want(t, "turn over both", *d.result(a).Outcome, "interrupted")
	want(t, "next turn", result(d.ask(a, "say three")), "success three")
	now := d.await(a, swarm.StateDone)
	want(t, "sandbox", *now.SandboxID, *v.SandboxID)
	want(t, "containers", e.docker("ps", "-a", "--format", "{{.Names}}"), container(*v.SandboxID))
	want(t, "file", e.docker("exec", container(*v.SandboxID), "cat", "/root/note.txt"), "kept")
	requests := strings.Split(e.docker("exec", container(*v.SandboxID), "cat", "/var/log/requests.jsonl"), "\n")
	for _, said := range []string{"echo kept", "say two", "say three"} {
		if !strings.Contains(requests[len(requests)-1], said) {
			t.Errorf("the last request to the model does not hold %q", said)
		}
	}
	d.settle()
}

// smallSpec is an agent in the small image, with other keys as JSON.
func smallSpec(image, more string) string {
	return fmt.Sprintf(`{"harness": "scripted", "image": %q, "checkpoint": true%s}`, image, more)
}

// noteInHome prints the note of an agent in the small image.
const noteInHome = "cat /home/agent/note.txt"

// TestDockerOutOfMemory: the memory limit is met by the harness's child, by the
// harness and by the first process.
func TestDockerOutOfMemory(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	d := newDockerDaemon(t)
	a := d.run(smallSpec(image, `, "resources": {"memory": "64Mi"}`), "run echo kept > ~/note.txt\nsay one")
	want(t, "first turn", result(d.result(a)), "success one")
	// The tail of a line without an end is all of it. What a killed process held
	// is not free at once, so that the kernel may take a second one: there are
	// some for it that nobody will miss.
	const spare = "{ (head -c 4000000 /dev/zero | tr '\\0' x; sleep 600) | (echo 1000 >/proc/self/oom_score_adj; exec tail -n 1); } >/dev/null 2>&1 &"
	const big = "for i in 1 2 3; do " + spare + " done; tr '\\0' x </dev/zero | (echo 1000 >/proc/self/oom_score_adj; exec tail -n 1)"
	// Many that hold a little each: the kernel takes whom it was told to take.
	const many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40; do " +
		"(head -c 2000000 /dev/zero | tr '\\0' x; sleep 600) | tail -n 1 & done; wait"
	first := func(pid int) {
		v, err := d.Agent(context.Background(), a)
		if err != nil {
			t.Fatal(err)
		}
		docker(t, "exec", "-u", "0:0", container(*v.SandboxID), "sh", "-c", fmt.Sprintf("echo 1000 >/proc/%d/oom_score_adj", pid))
	}

	want(t, "turn in which a child was killed", result(d.ask(a, "run "+big+"\nsay outlived")), "success outlived")
	if n := len(d.recoveries(a)); n != 0 {
		t.Errorf("%d recoveries, though the harness lived", n)
	}

	first(d.harnessPID(a))
	d.prompt(a, "run "+many)
	want(t, "rung after the harness's death", d.awaitRung(a, 1), "resumed")
	want(t, "its turn", *d.result(a).Outcome, "interrupted")
	want(t, "next turn", result(d.ask(a, "say two")), "success two")

	first(1)
	d.prompt(a, "run "+many)
	want(t, "rung after the first process's death", d.awaitRung(a, 2), "restarted")
	want(t, "its turn", *d.result(a).Outcome, "interrupted")
	want(t, "file", d.in(a, noteInHome), "kept")
	want(t, "next turn", result(d.ask(a, "say three")), "success three")

	v, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	diagnosed := 0
	for _, e := range d.allEvents(v.RunID) {
		if e.Name == ledger.AgentDiagnosed && e.field("class") == "out_of_memory" {
			diagnosed++
		}
	}
	if diagnosed == 0 {
		t.Error("no event says that memory ran out")
	}
	d.settle()
}

// TestDockerStopped: other people stop, freeze and remove containers.
func TestDockerStopped(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	d := newDockerDaemon(t, "ALINEOD_TIMEOUTS_BRIDGE_HELLO=1s")
	ctx := context.Background()
	a := d.run(smallSpec(image, ""), "run echo kept > ~/note.txt\nsay one")
	want(t, "first turn", result(d.result(a)), "success one")
	v, err := d.Agent(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	name := container(*v.SandboxID)

	turn := d.prompt(a, "sleep 600")
	d.inTurn(a, turn)
	docker(t, "stop", "-t", "1", name)
	want(t, "rung", d.awaitRung(a, 1), "restarted")
	want(t, "turn over the stop", *d.result(a).Outcome, "interrupted")

	// Removed while the daemon is down, twice.
	for n := range 2 {
		want(t, "turn", result(d.ask(a, "say two")), "success two")
		d.eventually("its checkpoint", func(ctx context.Context) (bool, error) {
			v, err := d.Checkpoints(ctx, a)
			return len(v) > 0 && v[0].Turn == 3+n, err
		})
		v, err := d.Agent(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		d.kill()
		docker(t, "rm", "-f", container(*v.SandboxID))
		d.start()
		want(t, "rung", d.awaitRung(a, 2+n), "restored")
		want(t, "file", d.in(a, noteInHome), "kept")
		d.oneContainer(a)
	}

	// A bridge that does not answer.
	if v, err = d.Agent(ctx, a); err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes(t, *v.SandboxID, "bridge serve") { // as the host numbers them
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	d.restart()
	want(t, "rung", d.awaitRung(a, 4), "resumed")
	want(t, "next turn", result(d.ask(a, "say three")), "success three")
	d.settle()
}

// TestDockerFrozenByOthers: a container that other people freeze is a paused
// agent, whether or not the daemon runs at that moment, until they thaw it.
func TestDockerFrozenByOthers(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	d := newDockerDaemon(t)
	a := d.run(smallSpec(image, ""), "say one")
	want(t, "first turn", result(d.result(a)), "success one")
	v := d.await(a, swarm.StateDone)
	name := container(*v.SandboxID)
	frozen := func() {
		t.Helper()
		v := d.await(a, swarm.StatePaused)
		want(t, "paused by", *v.PausedBy, "runtime")
	}
	turn := d.prompt(a, "run while [ ! -e /tmp/gate ]; do sleep 0.02; done\nsay two")
	d.inTurn(a, turn)
	docker(t, "pause", name)
	frozen()
	d.restart()
	frozen()
	docker(t, "unpause", name)
	d.await(a, swarm.StateRunning)
	docker(t, "exec", name, "touch", "/tmp/gate")
	want(t, "the same turn", result(d.result(a)), "success two")
	d.await(a, swarm.StateDone)

	d.kill()
	docker(t, "pause", name)
	d.start()
	frozen()
	if _, err := d.Unpause(context.Background(), a); err != nil {
		t.Fatal(err)
	}
	want(t, "after it", result(d.ask(a, "say three")), "success three")
	d.settle()
}

// TestDaemonInContainer: the daemon in a container of its own brings up
// siblings, if its state directory has the same path inside and outside, and
// says so if it has not.
func TestDaemonInContainer(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("containers take a static program, and the race detector makes none")
	}
	image := runtimetest.BaseImage(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	socket, ok := strings.CutPrefix(docker(t, "context", "inspect", "-f", "{{.Endpoints.docker.Host}}"), "unix://")
	if !ok {
		t.Skip("NOT TESTED: the engine has no unix socket")
	}
	serve := func(state, inside string, how ...string) []string {
		args := append([]string{"run", "--network", "none", "--entrypoint", "/alineod", "--user", "0:0"}, how...)
		return append(args, "-v", bin+":/alineod:ro", "-v", socket+":/var/run/docker.sock", "-v", state+":"+inside,
			"-e", "ALINEOD_STATE_DIR="+inside, "-e", "ALINEOD_RUNTIME=docker", "-e", "ALINEOD_DOCKER_NETWORK=none",
			"-e", "ALINEOD_TEST_SECRET="+secret, image, "serve", "--listen", "127.0.0.1:0")
	}

	out, err := exec.Command("docker", serve(stateDir(t), "/var/lib/alineod", "--rm")...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "-v /var/lib/alineod:/var/lib/alineod") {
		t.Errorf("another path outside: %v, %s", err, out)
	}

	dir := stateDir(t)
	own := "alineod-test-" + filepath.Base(dir)
	d := &daemon{t: t, dir: dir, bin: bin, env: []string{"ALINEOD_RUNTIME=docker", "ALINEOD_DOCKER_NETWORK=none"}, log: &lockedBuffer{}, Client: client.New("unix://"+filepath.Join(dir, "alineod.sock"), "")}
	docker(t, serve(dir, dir, "-d", "--name", own)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", docker(t, "logs", own))
		}
		docker(t, "rm", "-f", own)
		d.removeSandboxes()
		d.kill()
	})
	up := func() {
		d.eventually("the daemon to answer", func(ctx context.Context) (bool, error) { return d.Health(ctx) == nil, nil })
	}
	up()
	a := d.run(smallSpec(image, ""), "say one")
	want(t, "turn", result(d.result(a)), "success one")
	turn := d.prompt(a, "run while [ ! -e /tmp/gate ]; do sleep 0.02; done\nsay two")
	d.inTurn(a, turn)
	v := d.await(a, swarm.StateRunning)
	docker(t, "kill", own)
	docker(t, "exec", container(*v.SandboxID), "touch", "/tmp/gate")
	docker(t, "start", own)
	up()
	want(t, "turn over the death of the daemon's container", result(d.result(a)), "success two")
	want(t, "rung", d.awaitRung(a, 1), "reattached")
}
