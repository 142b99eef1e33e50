package local_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

func labels() runtime.Labels {
	return runtime.Labels{SandboxID: ids.New(ids.Sandbox), RunID: ids.New(ids.Run), AgentID: ids.New(ids.Agent), Generation: 1}
}

func testConfig(t *testing.T) runtimetest.Config {
	return runtimetest.Config{Instance: runtimetest.TestInstance(), StateDir: t.TempDir(), Binary: runtimetest.Standin(t)}
}

// open makes a driver and clears all away at the end.
func open(t *testing.T, cfg runtimetest.Config) runtime.Runtime {
	t.Helper()
	l := newLocal(t, cfg)
	t.Cleanup(func() {
		runtimetest.Clear(context.Background(), t, l)
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func create(t *testing.T, l runtime.Runtime) runtime.Info {
	t.Helper()
	info, err := l.Create(t.Context(), runtime.CreateRequest{Labels: labels()})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return info
}

// firstOf reads the pid of a sandbox's first process.
func firstOf(t *testing.T, info runtime.Info) int {
	t.Helper()
	var first struct{ PID int }
	data, err := os.ReadFile(filepath.Join(info.Handle, "init.pid"))
	if err == nil {
		err = json.Unmarshal(data, &first)
	}
	if err != nil || first.PID <= 1 {
		t.Fatalf("init.pid: %s: %v", data, err)
	}
	return first.PID
}

// initsOf counts the living first processes of a sandbox.
func initsOf(t *testing.T, id string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), "init\x00--sandbox\x00"+id+"\x00") {
			n++
		}
	}
	return n
}

const daemonEnv = "LOCAL_TEST_DAEMON"

// TestDaemonProcess is no test: TestDaemonKilled runs it as a daemon of its own.
func TestDaemonProcess(t *testing.T) {
	arg := os.Getenv(daemonEnv)
	if arg == "" {
		t.Skip("run by TestDaemonKilled")
	}
	var cfg runtimetest.Config
	if err := json.Unmarshal([]byte(arg), &cfg); err != nil {
		t.Fatal(err)
	}
	l := newLocal(t, cfg)
	running, frozen := create(t, l), create(t, l)
	if err := l.Pause(t.Context(), frozen.SandboxID); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("made %s %s\n", running.SandboxID, frozen.SandboxID)
	select {} // until it is killed
}

// TestDaemonKilled: sandboxes outlive a daemon that is killed, and the next one
// has them in hand: it sees them end, though they are not its children.
func TestDaemonKilled(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	arg, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(os.Args[0], "-test.run=^TestDaemonProcess$", "-test.v")
	daemon.Env = append(os.Environ(), daemonEnv+"="+string(arg), "SECRET_OF_THE_DAEMON=hush")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var running, frozen string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "made %s %s", &running, &frozen); n == 2 {
			break
		}
	}
	daemon.Process.Kill()
	daemon.Wait()
	if frozen == "" {
		t.Fatal("the daemon made no sandboxes")
	}

	l := open(t, cfg)
	events := l.Events(t.Context())
	info, err := l.Inspect(t.Context(), running)
	if err != nil || info.State != runtime.StateRunning {
		t.Fatalf("Inspect: %+v, %v; want it running", info, err)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", firstOf(t, info)))
	if err != nil || strings.Contains(string(env), "SECRET_OF_THE_DAEMON") {
		t.Errorf("environment of the first process: %q, %v; want nothing of the daemon's own", env, err)
	}
	if info, err := l.Inspect(t.Context(), frozen); err != nil || info.State != runtime.StatePaused {
		t.Fatalf("Inspect: %+v, %v; want it paused", info, err)
	}
	if err := l.Unpause(t.Context(), frozen); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{running, frozen} {
		if err := l.Stop(t.Context(), id, time.Minute); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		for ev := range events {
			if ev.Type == runtime.EventDied && ev.SandboxID == id {
				break
			}
		}
	}
}

// TestFirstProcessKilled: its end is noticed and noted, and what it leaves
// behind ends too.
func TestFirstProcessKilled(t *testing.T) {
	t.Parallel()
	l := open(t, testConfig(t))
	info := create(t, l)
	events := l.Events(t.Context())
	// Something that left its parent and its session, as a tool may.
	if code, err := l.Exec(t.Context(), info.SandboxID, runtime.ExecRequest{
		Args: []string{"sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! > stray"},
	}); err != nil || code != 0 {
		t.Fatalf("Exec: %d, %v", code, err)
	}
	if err := syscall.Kill(firstOf(t, info), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for ev := range events {
		if ev.Type == runtime.EventDied {
			if ev.ExitCode != 137 {
				t.Errorf("%+v, want exit code 137", ev)
			}
			break
		}
	}
	got, err := l.Inspect(t.Context(), info.SandboxID)
	if err != nil || got.State != runtime.StateStopped || got.ExitCode != 137 || got.FinishedAt.IsZero() {
		t.Errorf("Inspect: %+v, %v; want stopped with 137", got, err)
	}
	// The next start waits for the clearing away, and does it if need be.
	if err := l.Start(t.Context(), info.SandboxID); err != nil {
		t.Fatal(err)
	}
	if n := strays(t, info.SandboxID); n != 0 {
		t.Errorf("%d strays of the earlier start live on", n)
	}
}

// strays counts the sleeping tools of a sandbox.
func strays(t *testing.T, id string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		env, _ := os.ReadFile(f)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if strings.Contains(string(env), "ALINEO_SANDBOX="+id) && strings.HasPrefix(string(command), "sleep\x00") {
			n++
		}
	}
	return n
}

// TestRecycledPID: a pid that is another process's by now is not ours.
func TestRecycledPID(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	l := open(t, cfg)
	info := create(t, l)
	if err := l.Stop(t.Context(), info.SandboxID, 0); err != nil {
		t.Fatal(err)
	}
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	path := filepath.Join(info.Handle, "init.pid")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var first map[string]any
	if err := json.Unmarshal(data, &first); err != nil {
		t.Fatal(err)
	}
	first["PID"] = bystander.Process.Pid
	if data, err = json.Marshal(first); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, cfg) // takes everything up anew
	got, err := again.Inspect(t.Context(), info.SandboxID)
	if err != nil || got.State != runtime.StateStopped {
		t.Errorf("Inspect: %+v, %v; want stopped", got, err)
	}
	if err := again.Kick(t.Context(), info.SandboxID); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("Kick: %v, want ErrNotRunning", err)
	}
	if err := again.Remove(t.Context(), info.SandboxID); err != nil {
		t.Fatal(err)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

// TestHalfMade: what a crash left at each step is found, and brought to order.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	l := open(t, cfg)
	sandboxes := filepath.Join(cfg.StateDir, "sandboxes")

	// Before the directory had its name, and in the midst of a removal.
	for _, name := range []string{".new-", ".gone-"} {
		half := filepath.Join(sandboxes, name+cfg.Instance+"."+ids.New(ids.Sandbox)+".x_1", "home", "locked")
		if err := os.MkdirAll(half, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	others := filepath.Join(sandboxes, ".new-other-instance."+ids.New(ids.Sandbox)+".x_1")
	if err := os.Mkdir(others, 0o755); err != nil {
		t.Fatal(err)
	}

	// Before the first process, and before its pid was noted.
	unborn, unnoted := create(t, l), create(t, l)
	if err := l.Stop(t.Context(), unborn.SandboxID, 0); err != nil {
		t.Fatal(err)
	}
	for _, info := range []runtime.Info{unborn, unnoted} {
		if err := os.Remove(filepath.Join(info.Handle, "init.pid")); err != nil {
			t.Fatal(err)
		}
	}

	again := open(t, cfg)
	entries, err := os.ReadDir(sandboxes)
	if err != nil || len(entries) != 3 {
		t.Errorf("after the next start: %v, %v; want two sandboxes and another instance's", entries, err)
	}
	for _, info := range []runtime.Info{unborn, unnoted} {
		got, err := again.Inspect(t.Context(), info.SandboxID)
		if err != nil || got.State != runtime.StateCreated {
			t.Errorf("Inspect: %+v, %v; want %q", got, err, runtime.StateCreated)
		}
		got, err = again.Create(t.Context(), runtime.CreateRequest{Labels: info.Labels})
		if err != nil || got.State != runtime.StateRunning || got.Handle != info.Handle {
			t.Errorf("Create adopts: %+v, %v", got, err)
		}
		if n := initsOf(t, info.SandboxID); n != 1 {
			t.Errorf("%d first processes, want 1", n)
		}
	}
}

// TestFrozenForCommit: a daemon that died in a commit leaves no sandbox frozen.
func TestFrozenForCommit(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	l := open(t, cfg)
	info := create(t, l)
	if err := l.Pause(t.Context(), info.SandboxID); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(info.Handle, "frozen"), []byte("commit\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, cfg)
	if got, err := again.Inspect(t.Context(), info.SandboxID); err != nil || got.State != runtime.StateRunning {
		t.Errorf("Inspect: %+v, %v; want it running", got, err)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", firstOf(t, info)))
	if err != nil || strings.Contains(string(data), ") T ") {
		t.Errorf("the first process: %s, %v; want it thawed", data, err)
	}
}

// TestBadRecord: one unreadable record is set aside and can be removed.
func TestBadRecord(t *testing.T) {
	t.Parallel()
	l := open(t, testConfig(t))
	good, bad := create(t, l), create(t, l)
	if err := os.WriteFile(filepath.Join(bad.Handle, "sandbox.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	infos, err := l.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].SandboxID != good.SandboxID {
		t.Errorf("List: %+v, %v; want the good one", infos, err)
	}
	if err := l.Remove(t.Context(), bad.SandboxID); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if n := initsOf(t, bad.SandboxID); n != 0 {
		t.Errorf("%d first processes after Remove", n)
	}
}

// TestFailedStart: nothing is left of a creation that failed.
func TestFailedStart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Binary = filepath.Join(t.TempDir(), "nonsense")
	if err := os.WriteFile(cfg.Binary, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := open(t, cfg)
	if _, err := l.Create(t.Context(), runtime.CreateRequest{Labels: labels()}); !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("Create: %v, want ENOEXEC", err)
	}
	entries, err := os.ReadDir(filepath.Join(cfg.StateDir, "sandboxes"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestDeepState: a state directory too deep for a socket's address.
func TestDeepState(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.StateDir = filepath.Join(cfg.StateDir, strings.Repeat("deep/", 40))
	l := open(t, cfg)
	info := create(t, l)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		conn, err := l.Dial(t.Context(), info.SandboxID)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("Dial: %v", err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]local.Options{
		"no instance":     {StateDir: "/nonexistent"},
		"instance's form": {Instance: "a/b", StateDir: "/nonexistent"},
		"relative state":  {Instance: "a", StateDir: "state"},
	} {
		if _, err := local.New(o); !errors.Is(err, runtime.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
