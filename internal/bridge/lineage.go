package bridge

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sys/unix"
)

// lineage knows which processes belong to the sandbox's harness: those that
// descend from this process, and those that bear the marks. A process that is
// neither is never touched; on a host that is shared with others that is
// everybody else.
type lineage struct {
	sandboxID string
	clock     clockwork.Clock
	// init is the sandbox's first process, 0 where there is none of ours.
	init int
	// whole: the sandbox has its own process table, and all in it is ours.
	whole bool
	// shared: this process does other things beside being a bridge (a test), so
	// its children are not all ours: only the marks count.
	shared bool
}

func newLineage(sandboxID string, clock clockwork.Clock, shared bool) lineage {
	l := lineage{sandboxID: sandboxID, clock: clock, shared: shared}
	if ppid := os.Getppid(); !shared && os.Getenv(envInit) == strconv.Itoa(ppid) {
		l.init = ppid
		l.whole = ppid == 1
	}
	return l
}

// ours says whether p belongs to the harness. The bridge, the first process
// and what stands above them do not.
func (l lineage) ours(table map[int]proc, p proc) bool {
	self, first := os.Getpid(), l.init
	if os.Getppid() != first {
		first = 0 // it died, and its number may be another's by now
	}
	if p.pid == self || p.pid == first || descends(table, self, p.pid) {
		return false
	}
	if !l.shared && descends(table, p.pid, self) {
		return true
	}
	// What an earlier bridge had below it is below the first process now, but
	// so is what others ran in the sandbox and left: the marks tell, and where
	// they cannot be read, another user's process is taken for the harness's.
	yes, hidden := marked(p.pid, l.sandboxID)
	return yes || hidden && first != 0 && descends(table, p.pid, first)
}

// leftovers lists the living processes of the harness.
func (l lineage) leftovers() ([]proc, error) {
	table, err := processTable()
	if err != nil {
		return nil, fmt.Errorf("reading the process table: %w", err)
	}
	var found []proc
	for _, p := range table {
		// A zombie is dead; whoever adopted it will collect it.
		if p.state != 'Z' && p.state != 'X' && l.ours(table, p) {
			found = append(found, p)
		}
	}
	return found, nil
}

// reap kills what an earlier harness left, again and again until nothing is:
// a process may have forked while the table was read.
func (l lineage) reap(ctx context.Context) (killed int, err error) {
	seen := make(map[int]uint64)
	for {
		found, err := l.leftovers()
		if err != nil || len(found) == 0 {
			return len(seen), err
		}
		for _, p := range found {
			seen[p.pid] = p.start
			_ = signalProc(p, syscall.SIGKILL) // gone already, or seen again
		}
		if err := l.awaitDeath(ctx, found[0]); err != nil {
			return len(seen), fmt.Errorf("killing what the last harness left (%d processes): %w", len(found), err)
		}
	}
}

// awaitDeath returns when p is dead, or after a moment: a killed process may
// take its time in the kernel, and the others are looked at again then.
func (l lineage) awaitDeath(ctx context.Context, p proc) error {
	const moment = 20 * time.Millisecond
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(moment.Milliseconds()))
		return ctx.Err()
	}
	select {
	case <-l.clock.After(moment):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// reapOrphans collects the dead children of this process, but for the one
// that has its own waiter.
func reapOrphans(except int) {
	table, err := processTable()
	if err != nil {
		return
	}
	self := os.Getpid()
	for _, p := range table {
		if p.ppid == self && p.state == 'Z' && p.pid != except {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// processes describes the sandbox's processes for a person to read.
func (l lineage) processes() ([]Process, error) {
	table, err := processTable()
	if err != nil {
		return nil, fmt.Errorf("reading the process table: %w", err)
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux
	boot, _ := readCounter("/proc/stat", "btime")
	users := make(map[string]string)
	list := []Process{}
	for _, p := range table {
		if !l.whole && p.pid != os.Getpid() && p.pid != l.init && !l.ours(table, p) {
			continue
		}
		dir := "/proc/" + strconv.Itoa(p.pid)
		list = append(list, Process{
			PID: p.pid, PPID: p.ppid, State: string(p.state),
			CPUMillis: p.ticks * (1000 / ticksPerSecond),
			RSSBytes:  p.rssPages * int64(os.Getpagesize()),
			StartedAt: boot*1000 + int64(p.start)*(1000/ticksPerSecond),
			User:      userOf(dir, users),
			Command:   commandOf(dir, p.name),
		})
	}
	return list, nil
}
