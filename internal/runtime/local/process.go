package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sandboxEnv is in the environment of every process of a sandbox, which
	// is how those are found that left their parents.
	sandboxEnv = "ALINEO_SANDBOX"
	killSignal = unix.SIGKILL
)

// bootID tells one boot of the machine from another.
var bootID = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // the start time alone must do
	}
	return strings.TrimSpace(string(data))
})

// stat is what matters here of /proc/<pid>/stat.
type stat struct {
	pid, parent int
	state       byte
	start       uint64
	cpuTicks    int64 // its own and that of the children it waited for
	residentKiB int64
}

// readStat reads a process's state. The name in it may hold anything, spaces
// and parentheses included, so the fields are counted from its end.
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	_, rest, _ := strings.Cut(string(data), " (")
	end := strings.LastIndexByte(rest, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("reading state of process %d: no name", pid)
	}
	f := strings.Fields(rest[end+1:])
	const state, parent, utime, stime, cutime, cstime, start, rss = 0, 1, 11, 12, 13, 14, 19, 21
	if len(f) <= rss {
		return stat{}, fmt.Errorf("reading state of process %d: %d fields", pid, len(f))
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	return stat{
		pid: pid, parent: int(number(parent)), state: f[state][0], start: uint64(number(start)),
		cpuTicks:    number(utime) + number(stime) + number(cutime) + number(cstime),
		residentKiB: number(rss) * int64(os.Getpagesize()/1024),
	}, nil
}

// ended says whether a process is dead, though its parent may not have asked.
func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

// stopped says whether a process is frozen, or beyond doing anything.
func (s stat) stopped() bool { return s.state == 'T' || s.state == 't' || s.ended() }

// blocked says whether a process waits for something that no signal ends.
func (s stat) blocked() bool { return s.state == 'D' }

// alive says whether the very process lives.
func (p process) alive() bool {
	s, err := readStat(p.PID)
	return err == nil && p.BootID == bootID() && s.start == p.Start && !s.ended()
}

// commandNames says whether the process's command line holds the sandbox's id.
func commandNames(pid int, id string) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(data, []byte("\x00"+id+"\x00"))
}

// processTable is one look at all processes of the machine.
type processTable struct {
	stats    map[int]stat
	children map[int][]int
	environ  map[int][]byte
}

func readProcesses() (*processTable, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	t := &processTable{
		stats: make(map[int]stat, len(dirs)), children: make(map[int][]int), environ: make(map[int][]byte, len(dirs)),
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		if err != nil || s.ended() {
			continue // gone since
		}
		t.stats[pid] = s
		t.children[s.parent] = append(t.children[s.parent], pid)
		// Not readable for the processes of others, which are none of ours.
		if env, err := os.ReadFile(dir + "/environ"); err == nil {
			t.environ[pid] = append([]byte{0}, env...)
		}
	}
	return t, nil
}

// of returns the living processes of a sandbox: those that bear its mark, and
// all that descend from them or from its first process. This process is never
// among them.
func (t *processTable) of(id string, first int) []stat {
	return t.marked(sandboxEnv+"="+id, first)
}

func (t *processTable) marked(mark string, roots ...int) []stat {
	want := []byte("\x00" + mark + "\x00")
	for pid, env := range t.environ {
		if bytes.Contains(env, want) {
			roots = append(roots, pid)
		}
	}
	var found []stat
	seen := map[int]bool{os.Getpid(): true, 0: true, 1: true}
	for len(roots) > 0 {
		pid := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if seen[pid] {
			continue
		}
		seen[pid] = true
		if s, ok := t.stats[pid]; ok {
			found = append(found, s)
			roots = append(roots, t.children[pid]...)
		}
	}
	return found
}

// processesOf looks for a sandbox's processes now.
func processesOf(id string, first firstRecord) ([]stat, error) {
	t, err := readProcesses()
	if err != nil {
		return nil, err
	}
	// A dead first process's pid may be another's by now.
	if !first.alive() {
		return t.of(id, 0), nil
	}
	return t.of(id, first.PID), nil
}

// handle is a file descriptor of a process, which no other can take the place of.
type handle struct {
	file *os.File
	raw  syscall.RawConn
}

// open opens the process that was looked at; os.ErrProcessDone if it is gone.
func (s stat) open() (*handle, error) {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", s.pid, err)
	}
	// Non-blocking, so that Go's poller waits for it and no thread does.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("opening process %d: %w", s.pid, err), unix.Close(fd))
	}
	h := &handle{file: os.NewFile(uintptr(fd), "pidfd")}
	h.raw, err = h.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening process %d: %w", s.pid, err), h.file.Close())
	}
	// The start time is compared after the opening: from here on the
	// descriptor is that process's or nobody's.
	if now, err := readStat(s.pid); err != nil || now.start != s.start {
		return nil, errors.Join(os.ErrProcessDone, h.file.Close())
	}
	return h, nil
}

// signal sends a signal; a process that is gone is no error.
func (h *handle) signal(sig unix.Signal) error {
	var sent error
	err := h.raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// wait returns when the process has ended, or with the context's error.
func (h *handle) wait(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { _ = h.file.SetReadDeadline(time.Unix(1, 0)) })
	defer unhook()
	var failed error
	err := h.raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			failed = err
			return true
		}
		return n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, failed)
}

func (h *handle) close() { _ = h.file.Close() }

// signal sends a signal to the process that was looked at, if it is there.
func (s stat) signal(sig unix.Signal) error {
	h, err := s.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.close()
	return h.signal(sig)
}

// killAll kills the processes that look finds, until it finds none.
func killAll(ctx context.Context, look func() ([]stat, error)) error {
	for {
		found, err := look()
		if err != nil || len(found) == 0 {
			return err
		}
		var opened []*handle
		var errs []error
		for _, s := range found {
			h, err := s.open()
			if err == nil {
				opened = append(opened, h)
				err = h.signal(killSignal)
			} else if errors.Is(err, os.ErrProcessDone) {
				err = nil
			}
			errs = append(errs, err)
		}
		for _, h := range opened {
			if len(errs) == 0 || errors.Join(errs...) == nil {
				errs = append(errs, h.wait(ctx))
			}
			h.close()
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
}
