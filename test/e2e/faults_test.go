package e2e_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/clocktest"
	"github.com/alineod/alineod/internal/config"
	inprocess "github.com/alineod/alineod/internal/daemon"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

// smallDisk mounts a file system of so many bytes on dir until the test ends.
func smallDisk(t *testing.T, dir string, bytes int64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("NOT TESTED: a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill writes a file until the disk is full, and leaves so many bytes.
func fill(t *testing.T, file string, leave int64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.Copy(f, rand.Reader)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	if err := f.Truncate(max(0, n-leave)); err != nil {
		t.Fatal(err)
	}
}

// TestLedgerOnFullDisk: what cannot be stored is refused as such, or waits in
// the bridge's journal; nothing is lost or doubled, and no restart is needed.
func TestLedgerOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	smallDisk(t, dir, 256<<20)
	// The sandboxes have a disk of their own: it is the ledger's that is full.
	smallDisk(t, filepath.Join(dir, "sandboxes"), 64<<20)
	d := newDaemonIn(t, dir)
	ctx := context.Background()
	a := d.run(scripted, "say one")
	d.result(a)
	gate := filepath.Join(dir, "sandboxes", "gate")
	turn := d.prompt(a, "run while [ ! -e "+gate+" ]; do sleep 0.02; done\nrun echo x >> effects\nsay two")
	d.inTurn(a, turn)

	filler := filepath.Join(dir, "filler")
	fill(t, filler, 0)
	// The ledger's files have some room of their own; one big prompt after
	// another uses it up.
	var refused *client.Error
	d.eventually("a prompt to be refused", func(ctx context.Context) (bool, error) {
		_, err := d.Prompt(ctx, a, client.PromptRequest{Text: "say " + strings.Repeat("more ", 100_000)})
		return errors.As(err, &refused), nil
	})
	want(t, "code", refused.Code, "disk_full")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.eventually("the turn's end to wait for the disk", func(context.Context) (bool, error) {
		return strings.Contains(d.log.String(), "storing what the sandbox said"), nil
	})
	if err := d.Health(ctx); err != nil {
		t.Errorf("the daemon does not answer on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d.eventually("the turn that met the full disk to end", func(ctx context.Context) (bool, error) {
		v, err := d.Transcript(ctx, a, false)
		return err == nil && v.Turns[1].Outcome == "success", err
	})
	d.result(a)
	want(t, "effects", result(d.ask(a, "run [ $(grep -c x effects) = 1 ] && echo once > verdict\nrun cat verdict\nsay end")), "success end")
	want(t, "verdict", d.home(a, "verdict"), "once\n")
	d.settle()
}

// home reads a file of a local agent's home.
func (d *daemon) home(agent, file string) string {
	d.t.Helper()
	v, err := d.Agent(context.Background(), agent)
	if err != nil || v.SandboxID == nil {
		d.t.Fatalf("%s has no sandbox (%v)", agent, err)
	}
	b, err := os.ReadFile(filepath.Join(d.dir, "sandboxes", *v.SandboxID, "home", file))
	if err != nil {
		d.t.Error(err)
	}
	return string(b)
}

// TestCheckpointOnFullDisk: the turn stays a success, the older checkpoint is
// kept, and the next one succeeds when there is room.
func TestCheckpointOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	smallDisk(t, filepath.Join(dir, "checkpoints"), 1<<20)
	d := newDaemonIn(t, dir)
	a := d.run(scripted, "say one")
	d.result(a)
	d.checkpoints(a, 1)
	want(t, "turn", result(d.ask(a, "run head -c 3000000 /dev/urandom > big\nsay two")), "success two")
	v, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	d.eventually("the checkpoint to fail", func(context.Context) (bool, error) {
		for _, e := range d.allEvents(v.RunID) {
			if e.Name == ledger.AgentCheckpointFailed {
				return strings.Contains(e.field("error"), "no space left"), nil
			}
		}
		return false, nil
	})
	want(t, "checkpoint kept", d.checkpoints(a, 1)[0].Turn, 1)
	want(t, "turn", result(d.ask(a, "run rm big\nsay three")), "success three")
	want(t, "newest checkpoint", d.checkpoints(a, 2)[0].Turn, 3)
	left, err := filepath.Glob(filepath.Join(dir, "checkpoints", a, "*", "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("files in the store: %v, %v; want 2", left, err)
	}
	d.settle()
}

// checkpoints waits for an agent to have n of them and returns them, newest
// first.
func (d *daemon) checkpoints(agent string, n int) []swarm.CheckpointView {
	d.t.Helper()
	var views []swarm.CheckpointView
	d.eventually(fmt.Sprintf("%d checkpoints of %s", n, agent), func(ctx context.Context) (bool, error) {
		var err error
		views, err = d.Checkpoints(ctx, agent)
		return len(views) == n, err
	})
	return views
}

// TestTornLedger: what a power cut leaves of the log's last page is cut off.
func TestTornLedger(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(scripted, "say one")
	d.result(a)
	d.checkpoints(a, 1)
	d.kill()
	wal, err := os.OpenFile(filepath.Join(d.dir, "ledger.db-wal"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	torn := make([]byte, 3000) // part of a frame
	rand.Read(torn)
	if _, err := wal.Write(torn); err != nil {
		t.Fatal(err)
	}
	wal.Close()
	d.start()
	d.ready()
	want(t, "after it", result(d.ask(a, "count")), "success count: 2")
	d.settle()
}

// TestTwoDaemons: the second is refused at once and disturbs nothing.
func TestTwoDaemons(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(scripted, "say one")
	d.result(a)
	turn := d.prompt(a, "sleep 600")
	d.inTurn(a, turn)
	second := exec.Command(d.bin, "serve", "--listen", "127.0.0.1:0")
	second.Env = append(os.Environ(), "ALINEOD_STATE_DIR="+d.dir, "ALINEOD_RUNTIME=local")
	out, err := second.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(string(out), d.dir) || strings.Count(string(out), "\n") != 1 {
		t.Errorf("the second daemon: %v, %q", err, out)
	}
	d.inTurn(a, turn)
	if _, err := d.Stop(context.Background(), a, client.StopRequest{Mode: "abort"}); err != nil {
		t.Fatal(err)
	}
	d.await(a, swarm.StateAborted)
	d.settle()
}

// TestClockSet: the order of things is that of the ledger. Neither a running
// daemon nor a start minds a clock that was set back or forward.
func TestClockSet(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t)
	a := d.run(scripted, "say one")
	d.result(a)
	d.checkpoints(a, 1)
	d.kill()
	clock := clocktest.New()
	days := func(n int) { clock.Shift(time.Duration(n) * 24 * time.Hour) }
	for i, set := range []struct{ start, running int }{{-2, -2}, {0, -400}, {400, -1}} {
		days(set.start)
		func() {
			cfg, err := config.Load(config.Sources{Environ: []string{"ALINEOD_STATE_DIR=" + d.dir, "ALINEOD_RUNTIME=local", "ALINEOD_LISTEN=127.0.0.1:0"}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			p, err := inprocess.New(ctx, cfg, inprocess.Options{Version: "test", Binary: bin, Clock: clock})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				p.Close()
			}()
			d.eventually("the daemon to answer", func(ctx context.Context) (bool, error) { return d.Health(ctx) == nil, nil })
			d.ready()
			want(t, "rung", d.awaitRung(a, i+1), "reattached")
			days(set.running)
			text := fmt.Sprintf("say clock %d", i)
			want(t, "turn", result(d.ask(a, text)), "success "+strings.TrimPrefix(text, "say "))
			d.eventually("its checkpoint", func(ctx context.Context) (bool, error) {
				views, err := d.Checkpoints(ctx, a)
				return err == nil && views[0].Turn == i+2, err
			})
		}()
	}
	d.start()
	d.ready()
	v, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	d.destroy(*v.SandboxID)
	d.eventually("the agent to be restored", func(context.Context) (bool, error) {
		return slices.Contains(d.recoveries(a), "restored"), nil
	})
	want(t, "conversation", result(d.ask(a, "count")), "success count: 8")
	d.settle()
}

// TestHostileHarness: a sandbox that floods and talks garbage harms nobody.
func TestHostileHarness(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	good := d.run(scripted, "say one")
	d.result(good)
	bad := d.run(scripted, "flood 20000\ngarbage\nsay still here")
	turn := d.prompt(good, "say beside it")
	d.eventually("the good agent's turn", func(ctx context.Context) (bool, error) {
		v, err := d.Result(ctx, good, time.Second)
		return v.State == "settled" && v.TurnID == turn, err
	})
	want(t, "the good one", result(d.result(good)), "success beside it")
	d.result(bad)
	want(t, "the bad one, later", result(d.ask(bad, "say calm")), "success calm")
	d.settle()
}

// TestHostileBridge: what answers in a bridge's place and talks garbage, says
// nothing or ends at once does not get the agent, and does not stop the boot.
func TestHostileBridge(t *testing.T) {
	t.Parallel()
	answers := map[string]func(net.Conn){
		"garbage": func(c net.Conn) { _, _ = io.Copy(c, rand.Reader) },
		"endless line": func(c net.Conn) {
			for line := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := c.Write(line); err != nil {
					return
				}
			}
		},
		"silence": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"end":     func(net.Conn) {},
	}
	for name, answer := range answers {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, "ALINEOD_TIMEOUTS_BRIDGE_HELLO=1s")
			bad, good := d.run(scripted, "say one"), d.run(scripted, "say one")
			d.result(bad)
			d.result(good)
			d.checkpoints(bad, 1)
			v, err := d.Agent(context.Background(), bad)
			if err != nil {
				t.Fatal(err)
			}
			d.kill()
			socket := filepath.Join(d.dir, "sandboxes", *v.SandboxID, "bridge.sock")
			if err := os.Remove(socket); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan struct{})
			go func() {
				defer close(served)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() { defer c.Close(); answer(c) }()
				}
			}()
			t.Cleanup(func() { l.Close(); <-served })
			d.start()
			want(t, "the good one's rung", d.awaitRung(good, 1), "reattached")
			want(t, "the bad one's rung", d.awaitRung(bad, 1), "resumed")
			want(t, "the bad one", result(d.ask(bad, "count")), "success count: 2")
			d.settle()
		})
	}
}

// TestSilentBridge: a bridge that is there and does not answer is replaced, at
// the start of a daemon and while it runs.
func TestSilentBridge(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, "ALINEOD_TIMEOUTS_BRIDGE_HELLO=1s")
	a := d.run(scripted, "say one")
	d.result(a)
	v, err := d.Agent(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	hang := func() {
		for _, pid := range processes(t, *v.SandboxID, "bridge serve") {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.kill()
	hang()
	d.start()
	want(t, "rung", d.awaitRung(a, 1), "resumed")
	want(t, "conversation", result(d.ask(a, "count")), "success count: 2")
	hang()
	want(t, "rung", d.awaitRung(a, 2), "resumed")
	want(t, "conversation", result(d.ask(a, "count")), "success count: 4")
	d.settle()
}

// TestSilentTurn: where the operator sets a limit, a turn in which the harness
// says nothing is ended, and the next one is taken.
func TestSilentTurn(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, "ALINEOD_TIMEOUTS_TURN_IDLE=1s")
	a := d.run(scripted, "sleep 600")
	d.prompt(a, "say two")
	want(t, "next turn", result(d.result(a)), "success two")
	view, err := d.Transcript(context.Background(), a, false)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "silent turn", view.Turns[0].Outcome, "failed")
	d.settle()
}

// TestOnInterrupt: a prompt is sent again only where the spec asks for it, and
// after an unmatched tool call only where it insists.
func TestOnInterrupt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how, prompt string
		runs        int
		outcomes    []string
	}{
		{"idle", "think hold", 1, []string{"interrupted"}},
		{"retry", "run echo x >> runs; [ $(grep -c x runs) -gt 1 ] || sleep 600\nsay done", 1, []string{"interrupted"}},
		{"retry-always", "run echo x >> runs; [ $(grep -c x runs) -gt 1 ] || sleep 600\nsay done", 2, []string{"interrupted", "success"}},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			spec := fmt.Sprintf(`{"harness": "scripted", "checkpoint": true, "onInterrupt": %q}`, c.how)
			prompt := c.prompt
			if c.how == "idle" {
				prompt = "run echo x >> runs; sleep 600\nsay done"
			}
			a := d.run(spec, "")
			turn := d.prompt(a, prompt)
			d.inTurn(a, turn)
			d.eventually("the tool call to run", func(ctx context.Context) (bool, error) {
				v, err := d.Agent(ctx, a)
				if err != nil {
					return false, err
				}
				b, err := os.ReadFile(filepath.Join(d.dir, "sandboxes", *v.SandboxID, "home", "runs"))
				return err == nil && string(b) == "x\n", nil
			})
			v, err := d.Agent(context.Background(), a)
			if err != nil {
				t.Fatal(err)
			}
			killAll(t, []int{v.SessionStats.PID})
			want(t, "rung", d.awaitRung(a, 1), "resumed")
			d.result(a)
			view, err := d.Transcript(context.Background(), a, false)
			if err != nil {
				t.Fatal(err)
			}
			var outcomes []string
			for _, turn := range view.Turns {
				outcomes = append(outcomes, turn.Outcome)
			}
			want(t, "outcomes", outcomes, c.outcomes)
			want(t, "runs of the tool", strings.Count(d.home(a, "runs"), "x"), c.runs)
			d.settle()
		})
	}
}

// TestRetryWithoutToolCall: a turn that was only thinking is asked for again.
func TestRetryWithoutToolCall(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.run(`{"harness": "scripted", "onInterrupt": "retry"}`, "")
	turn := d.prompt(a, "ask may I?\nsay done")
	v := d.await(a, swarm.StateBlocked)
	killAll(t, []int{v.SessionStats.PID})
	want(t, "rung", d.awaitRung(a, 1), "resumed")
	// It asks again, in its second turn, and is answered.
	d.eventually("the question to be asked again", func(ctx context.Context) (bool, error) {
		pending, err := d.Permissions(ctx, a)
		if err != nil {
			return false, err
		}
		for _, p := range pending {
			if p.State == "pending" && p.TurnID != turn {
				_, err := d.Answer(ctx, a, p.RequestID, client.AnswerRequest{Decision: "once"})
				return err == nil, err
			}
		}
		return false, nil
	})
	want(t, "result", result(d.result(a)), "success done")
	d.settle()
}

// TestKillLoopInRecovery kills the daemon at random moments while it brings
// back agents whose sandboxes it has lost.
func TestKillLoopInRecovery(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	const agents, rounds = 4, 12
	d := newDaemon(t)
	var ids []string
	for i := range agents {
		ids = append(ids, d.run(scripted, fmt.Sprintf("write f agent%d\nsay one", i)))
	}
	for _, id := range ids {
		d.result(id)
		d.checkpoints(id, 1)
	}
	rng := mathrand.New(mathrand.NewPCG(3, 4))
	for range rounds {
		d.ready()
		for _, id := range ids {
			v := d.await(id, swarm.StateDone)
			d.destroyQuietly(*v.SandboxID)
		}
		for range 3 {
			// A random moment is what this test is about; nothing waits on it.
			<-time.After(time.Duration(rng.IntN(400)) * time.Millisecond)
			d.restart()
		}
	}
	d.ready()
	for i, id := range ids {
		d.await(id, swarm.StateDone)
		want(t, "conversation", result(d.ask(id, "count")), "success count: "+countAfterFirst)
		want(t, "file", d.home(id, "f"), fmt.Sprintf("agent%d\n", i))
	}
	d.eventually("one sandbox for each agent to be left", func(ctx context.Context) (bool, error) {
		if _, err := d.Reconcile(ctx, false); err != nil {
			return false, err
		}
		left, err := os.ReadDir(filepath.Join(d.dir, "sandboxes"))
		return len(left) == agents, err
	})
	d.settle()
}

// destroyQuietly destroys a sandbox of which a part may be gone already.
func (d *daemon) destroyQuietly(sandbox string) {
	dir := filepath.Join(d.dir, "sandboxes", sandbox)
	if os.Rename(dir, dir+".gone") != nil {
		return
	}
	for _, pid := range processes(d.t, sandbox, "alineod") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	os.RemoveAll(dir + ".gone")
}
