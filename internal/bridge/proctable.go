package bridge

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The marks that a harness and everything it starts bear in their environment.
const (
	markSandbox = "ALINEO_SANDBOX"
	markHarness = "ALINEO_HARNESS"
	// envInit tells the bridge that its parent is its own first process.
	envInit = "ALINEO_INIT"
)

// proc is one line of the process table.
type proc struct {
	pid, ppid int
	state     byte
	start     uint64 // clock ticks since the kernel's start
	ticks     int64  // of the processor
	rssPages  int64
	name      string
}

// readProc reads one process; false where it is gone.
func readProc(pid int) (proc, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	// pid (name) state ppid …: the name may hold anything, parentheses too.
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return proc{}, false
	}
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 22 {
		return proc{}, false
	}
	num := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	return proc{
		pid: pid, ppid: int(num(1)), state: f[0][0], start: uint64(num(19)),
		ticks: num(11) + num(12), rssPages: num(21), name: string(data[open+1 : end]),
	}, true
}

// processTable reads all processes this one can see.
func processTable() (map[int]proc, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := make(map[int]proc)
	for _, name := range names {
		if pid, ok := parseID(name); ok {
			if p, alive := readProc(pid); alive {
				table[pid] = p
			}
		}
	}
	return table, nil
}

// descends says whether pid has root among its ancestors.
func descends(table map[int]proc, pid, root int) bool {
	for range len(table) { // a table read in pieces may hold a circle
		p, ok := table[pid]
		if !ok || p.ppid == 0 {
			return false
		}
		if p.ppid == root {
			return true
		}
		pid = p.ppid
	}
	return false
}

// marked says whether pid bears the marks of a harness of the sandbox. hidden
// says that it could not be told: even root may not read the environment of
// another user's process in a container.
func marked(pid int, sandboxID string) (yes, hidden bool) {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false, errors.Is(err, os.ErrPermission)
	}
	var sandbox, harness bool
	for _, v := range bytes.Split(env, []byte{0}) {
		switch string(v) {
		case markSandbox + "=" + sandboxID:
			sandbox = true
		case markHarness + "=1":
			harness = true
		}
	}
	return sandbox && harness, false
}

// signalProc signals exactly the process that p was read from: one that got
// its number since then is left alone.
func signalProc(p proc, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ENOSYS) {
		return syscall.Kill(p.pid, sig)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, alive := readProc(p.pid); !alive || now.start != p.start {
		return syscall.ESRCH
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}
