package bridge_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest[0] != 'Z' && rest[0] != 'X'
}

// exists says whether pid is in the process table, dead or alive.
func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// awaitGone waits for the end of a process that is nobody's child here.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d lives", pid)
		}
		return
	}
}

// leftoversOf reads the processes a prompt "leave FILE" started.
func leftoversOf(t *testing.T, c *bridge.Client, id, dir string) []int {
	t.Helper()
	file := filepath.Join(dir, "pids-"+id)
	deliver(t, c, id, "leave "+file+"\nsay left\nwait")
	until(t, c, "message.ended")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil || !alive(pid) {
			t.Fatalf("leftover %q does not live", f)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 3 {
		t.Fatalf("leftovers %v", pids)
	}
	return pids
}

func TestKilledBridge(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	c := b.ready(t, nil)
	epoch := c.Hello().Epoch
	deliver(t, c, "t_1", "say one")
	until(t, c, "turn.ended")
	deliver(t, c, "t_2", "say two\nwait")
	seen := until(t, c, "message.ended")
	last := seen[len(seen)-1].Pos
	h, err := c.Status(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	b.kill9()
	<-c.Done()
	wantErr(t, c.Err(), bridge.ErrClosed)
	_, err = c.Status(testContext(t))
	wantErr(t, err, bridge.ErrClosed)

	c = b.connect(t)
	n := c.Hello()
	if n.Epoch == epoch || n.Harness.State != harness.StateNone || n.PID != 0 || n.TurnID != "" || n.LastTurnID != "t_2" || n.Head <= last {
		t.Errorf("hello of the next bridge %+v", n)
	}
	for _, id := range []string{"t_1", "t_2"} {
		known, err := c.Deliver(testContext(t), bridge.Turn{ID: id, Prompt: harness.Prompt{Text: "say again"}})
		if err != nil || !known {
			t.Errorf("Deliver(%s) = %v, %v", id, known, err)
		}
	}
	if err := c.Subscribe(testContext(t), last); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartHarness(testContext(t), startRequest(nil)); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, h.PID) // the old harness was killed before
	deliver(t, c, "t_3", "say three")
	records := until(t, c, "turn.ended")
	checkPositions(t, last, records)
	if records[0].Kind != bridge.KindBoot || records[0].Epoch != n.Epoch {
		t.Errorf("first record of the new epoch %+v", records[0])
	}
	if got := said(records); len(got) != 1 || got[0] != "three" {
		t.Errorf("said %q", got)
	}
}

// Whatever a harness leaves is killed before the next one starts, by the same
// bridge or by the one after it; other people's processes are left alone.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	bystander := exec.Command(self(t), roleArg, "sleeper")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	foreign := exec.Command(self(t), roleArg, "sleeper")
	foreign.Env = append(os.Environ(), "ALINEO_HARNESS=1", "ALINEO_SANDBOX=s_ffffffffffff")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	defer foreign.Wait()
	defer foreign.Process.Kill()

	b := start(t, "init", newArgs(t))
	c := b.ready(t, nil)
	// Killed harness, living bridge.
	left := leftoversOf(t, c, "t_1", b.args.Home)
	h, _ := c.Status(testContext(t))
	syscall.Kill(h.PID, syscall.SIGKILL)
	until(t, c, "turn.ended") // although a leftover holds the harness's output
	if _, err := c.StartHarness(testContext(t), startRequest(nil)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range left {
		if alive(pid) {
			t.Errorf("leftover %d lives beside the next harness", pid)
		}
	}
	// Killed bridge: the harness and what it left are orphans.
	left = leftoversOf(t, c, "t_2", b.args.Home)
	h, _ = c.Status(testContext(t))
	unmarked := left[2] // not to be told from what others left in the sandbox
	b.kick(t)
	c = b.ready(t, nil)
	for _, pid := range append(left[:2:2], h.PID) {
		if alive(pid) {
			t.Errorf("leftover %d lives beside the next bridge's harness", pid)
		}
	}
	// The end of the sandbox.
	left = leftoversOf(t, c, "t_3", b.args.Home)
	h, _ = c.Status(testContext(t))
	left = append(left, h.PID, unmarked)
	b.cmd.Process.Signal(syscall.SIGTERM)
	if err := b.cmd.Wait(); err != nil {
		t.Errorf("init: %v", err)
	}
	for _, pid := range left {
		if exists(pid) && alive(pid) {
			t.Errorf("leftover %d outlived its sandbox", pid)
		}
	}
	if !alive(bystander.Process.Pid) || !alive(foreign.Process.Pid) {
		t.Error("a process of somebody else was killed")
	}
}

// bridgePID is the process that listens.
func (b *box) bridgePID(t *testing.T) int {
	t.Helper()
	conn, err := bridge.Dial(testContext(t), b.args.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *unix.Ucred
	raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil {
		t.Fatal(err)
	}
	return int(cred.Pid)
}

// kick has the init start a new bridge, and waits for it.
func (b *box) kick(t *testing.T) {
	t.Helper()
	started := strings.Count(b.log.String(), "bridge started")
	b.cmd.Process.Signal(syscall.SIGUSR1)
	b.log.await(t, "bridge started", started+1)
	b.awaitServing(t)
}

// awaitServing waits until the bridge that was started last serves.
func (b *box) awaitServing(t *testing.T) {
	t.Helper()
	for serves := 1; ; serves++ {
		b.log.await(t, "bridge serves", serves)
		log := b.log.String()
		if strings.Contains(log[strings.LastIndex(log, "bridge started"):], "bridge serves") {
			return
		}
		serves = strings.Count(log, "bridge serves")
	}
}

func readExit(t *testing.T, b *box) bridge.BridgeExit {
	t.Helper()
	var e bridge.BridgeExit
	data, err := os.ReadFile(filepath.Join(b.args.Dir, "bridge-exit.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestInit(t *testing.T) {
	t.Parallel()
	b := start(t, "init", newArgs(t))
	first := b.bridgePID(t)
	if first == b.cmd.Process.Pid {
		t.Fatal("the bridge is no process of its own")
	}
	// A bridge that dies by itself stays dead.
	syscall.Kill(first, syscall.SIGKILL)
	b.log.await(t, "bridge ended", 1)
	if e := readExit(t, b); e.PID != first || e.Code != -1 || e.Signal != "SIGKILL" || e.Kicked {
		t.Errorf("%+v", e)
	}
	if exists(first) {
		t.Error("dead bridge was not collected")
	}
	if c, err := bridge.Dial(testContext(t), b.args.Dir); err == nil {
		c.Close()
		t.Error("somebody listens")
	}
	// Kicks in a row leave one bridge. The last is the one to wait for.
	for n := range 5 {
		b.cmd.Process.Signal(syscall.SIGUSR1)
		b.log.await(t, "bridge started", n+2)
	}
	b.awaitServing(t)
	second := b.bridgePID(t)
	// A kick kills a living bridge, even a frozen one.
	syscall.Kill(second, syscall.SIGSTOP)
	b.kick(t)
	if exists(second) {
		t.Error("kicked bridge lives")
	}
	if e := readExit(t, b); e.PID != second || !e.Kicked {
		t.Errorf("%+v", e)
	}
	// The end: the bridge stops the harness, whose exit it records.
	c := b.ready(t, map[string]string{"FAKE_MODE": "graceful"})
	third := b.bridgePID(t)
	b.cmd.Process.Signal(syscall.SIGTERM)
	if err := b.cmd.Wait(); err != nil {
		t.Errorf("init: %v", err)
	}
	<-c.Done()
	if e := readExit(t, b); e.PID != third || e.Code != 0 {
		t.Errorf("%+v", e)
	}
	records, err := bridge.ReadJournal(filepath.Join(b.args.Dir, "journal"), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	last := records[len(records)-1]
	if last.Kind != bridge.KindExit || last.Exit.Code != 7 {
		t.Errorf("last record %+v", last)
	}
}

// Orphans come to the init when the bridge is dead, and to the bridge before;
// neither leaves them as zombies.
func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()
	b := start(t, "init", newArgs(t))
	c := b.ready(t, nil)
	pids := leftoversOf(t, c, "t_1", b.args.Home)
	orphan := pids[2] // its parent is dead
	syscall.Kill(orphan, syscall.SIGKILL)
	awaitCollected(t, orphan)
	syscall.Kill(b.bridgePID(t), syscall.SIGKILL)
	b.log.await(t, "bridge ended", 1)
	for _, pid := range pids[:2] {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	// The init has them now, with all that the bridge had.
	for _, pid := range pids[:2] {
		awaitGone(t, pid)
	}
}

// awaitCollected waits until a process is not even a zombie.
func awaitCollected(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for exists(pid) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d was not collected", pid)
		}
		<-time.After(time.Millisecond)
	}
}

// However often a subscriber comes back, from wherever, it sees each record
// once, while the harness works.
func TestReconnects(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	args.SegmentBytes = 64 << 10
	b := start(t, "serve", args)
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "say start\nflood 3000\nsay end")
	last := int64(0)
	n := 0
	for round := 0; ; round++ {
		done := false
		batches := 0
		for batch := range c.Records() {
			checkPositions(t, last, batch)
			for _, r := range batch {
				last = r.Pos
				n += len(said([]bridge.Record{r}))
				done = done || has(r, "turn.ended")
			}
			if batches++; done || batches > round%4 {
				break
			}
		}
		if done {
			break
		}
		if round%2 == 0 {
			if err := c.Ack(testContext(t), last); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		// In odd rounds the old connection is left open: the new one wins.
		old := c
		c = b.connect(t)
		if err := c.Subscribe(testContext(t), last); err != nil {
			t.Fatal(err)
		}
		go func() {
			for range old.Records() {
			}
		}()
		<-old.Done()
		if round%2 == 1 {
			wantErr(t, old.Err(), bridge.ErrSuperseded)
		}
	}
	if n != 3002 {
		t.Errorf("%d messages, want 3002", n)
	}
}

// rss is a process's resident memory in bytes.
func rss(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// A reader that does not read costs no memory, and keeps no request waiting; a
// journal over its bound tells what went.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	args.SegmentBytes, args.JournalBytes = 1<<20, 4<<20
	b := start(t, "serve", args)
	c := b.ready(t, nil)
	before := rss(t, b.cmd.Process.Pid)
	deliver(t, c, "t_1", "flood 40000\ndeltas 5000\nsay end")
	if err := c.Drain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	h, err := c.Status(testContext(t))
	if err != nil || h.Head < 45000 {
		t.Fatalf("%+v, %v", h, err)
	}
	// 44 MiB were said. The race detector alone takes some 16.
	if grown := rss(t, b.cmd.Process.Pid) - before; grown > 30<<20 {
		t.Errorf("bridge grew by %d MiB", grown>>20)
	}
	last, dropped, messages := int64(0), int64(0), 0
	for last < h.Head {
		batch, open := <-c.Records()
		if !open {
			t.Fatal(c.Err())
		}
		for _, r := range batch {
			if r.Kind == bridge.KindDropped {
				dropped += r.Dropped
				last += r.Dropped
			} else {
				last++
			}
			if r.Pos != last {
				t.Fatalf("record %+v, expected %d", r, last)
			}
			messages += len(said([]bridge.Record{r}))
		}
	}
	if dropped == 0 || int64(messages)+dropped < 40001 {
		t.Errorf("%d messages read, %d records dropped", messages, dropped)
	}
	if h.Oldest <= 1 {
		t.Errorf("oldest record %d", h.Oldest)
	}
}

// A client that hangs in the middle of the stream does not hold up the next.
func TestHungClient(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	hung, err := bridge.Dial(testContext(t), b.args.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	fmt.Fprintf(hung, `{"version":1,"sandboxId":%q,"mode":"control"}`+"\n"+`{"id":1,"op":"subscribe"}`+"\n", b.args.SandboxID)
	for range 1000 {
		fmt.Fprintln(hung, `{"op":"credit"}`)
	}
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "flood 2000\nsay end")
	until(t, c, "turn.ended")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := c.Status(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
