package bridge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/alineod/alineod/internal/harness"
	"golang.org/x/sys/unix"
)

const (
	stderrKept = 64 << 10
	// stderrTold is how much of it an exit's record carries.
	stderrTold = 4 << 10
	// maxStdin bounds what waits for a harness that does not read.
	maxStdin = 4 * MaxFrame
)

// command is a process to be started.
type command struct {
	args []string
	env  map[string]string
	dir  string
	acct account
}

// child is a running process of a harness: its pipes and its end.
type child struct {
	pid    int
	stderr *tail
	in     *inbox
	// done is closed when the process is dead, its output read, its exit set.
	done chan struct{}
	exit harness.Exit

	mu       sync.Mutex
	reaped   bool
	stopping bool // what is left of its group dies with it
}

// startChild starts c. deliver is called with every line of its output, one
// after another, until it returns false.
func startChild(c command, maxLine int, deliver func(output) bool) (*child, error) {
	path, err := lookPath(c.args[0], c.env["PATH"], c.dir)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, err
		}
		files = append(files, r, w)
	}
	theirs := []uintptr{files[0].Fd(), files[3].Fd(), files[5].Fd()}
	pid, err := syscall.ForkExec(path, c.args, &syscall.ProcAttr{
		Dir: c.dir, Env: environ(c.env), Files: theirs,
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: c.acct.cred},
	})
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("executing %s: %w", path, err)
	}
	for _, i := range []int{0, 3, 5} {
		_ = files[i].Close()
	}
	ch := &child{
		pid: pid, stderr: &tail{max: stderrKept}, done: make(chan struct{}),
		in: &inbox{f: files[1], wake: make(chan struct{}, 1), quit: make(chan struct{})},
	}
	go ch.run(&pipe{f: files[2]}, &pipe{f: files[4]}, maxLine, deliver)
	return ch, nil
}

// run owns the process until it is gone.
func (c *child) run(stdout, stderr *pipe, maxLine int, deliver func(output) bool) {
	defer close(c.done)
	var readers sync.WaitGroup
	readers.Go(func() {
		scanLines(bufio.NewReaderSize(stdout, 64<<10), maxLine, func(line []byte, cut bool) bool {
			return deliver(output{from: c, line: line, cut: cut})
		})
		// Whoever still writes is not the harness: let the pipe tell it so.
		_ = stdout.f.Close()
	})
	readers.Go(func() {
		_, _ = io.Copy(c.stderr, stderr)
		_ = stderr.f.Close()
	})
	readers.Go(c.in.run)

	awaitExit(c.pid)
	stdout.finish()
	stderr.finish()
	close(c.in.quit)
	_ = c.in.f.Close()
	readers.Wait()

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		// The dead leader is not collected yet, so the group's number is ours.
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(c.pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	c.reaped = true
	c.exit = exitOf(status)
	c.exit.Stderr = string(bytes.ToValidUTF8(c.stderr.last(stderrTold), []byte("\uFFFD")))
}

// awaitExit returns when the process is dead, and leaves it to be collected.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func exitOf(status syscall.WaitStatus) harness.Exit {
	if status.Signaled() {
		return harness.Exit{Code: -1, Signal: unix.SignalName(status.Signal())}
	}
	return harness.Exit{Code: status.ExitStatus()}
}

// signal signals the whole group; a process that is gone is left alone.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	if !c.reaped {
		_ = syscall.Kill(-c.pid, sig)
	}
}

// inbox is what is to be written to a process's standard input. It never makes
// its caller wait.
type inbox struct {
	f    *os.File
	wake chan struct{}
	quit chan struct{}

	mu   sync.Mutex
	todo []inboxItem
	size int
}

type inboxItem struct {
	data []byte
	then func()
}

// full says whether the process has stopped reading.
func (b *inbox) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size > maxStdin
}

// push has line written, and then called behind it. It returns false where so
// much is waiting that the process must be given up.
func (b *inbox) push(line []byte, then func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size > 2*maxStdin {
		return false
	}
	data := append(append(make([]byte, 0, len(line)+1), line...), '\n')
	b.todo = append(b.todo, inboxItem{data: data, then: then})
	b.size += len(data)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return true
}

func (b *inbox) run() {
	for {
		b.mu.Lock()
		todo := b.todo
		b.todo = nil
		b.mu.Unlock()
		for _, item := range todo {
			if _, err := b.f.Write(item.data); err != nil {
				return // it closed its input, or died: its exit says more
			}
			b.mu.Lock()
			b.size -= len(item.data)
			b.mu.Unlock()
			if item.then != nil {
				item.then()
			}
		}
		if len(todo) > 0 {
			continue
		}
		select {
		case <-b.wake:
		case <-b.quit:
			return
		}
	}
}

// lookPath finds the program in the harness's own PATH.
func lookPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		full := filepath.Join(d, name)
		if st, err := os.Stat(full); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("looking for %s in %q: %w", name, path, os.ErrNotExist)
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		if k != "" && !strings.ContainsAny(k, "=\x00") && !strings.Contains(v, "\x00") {
			list = append(list, k+"="+v)
		}
	}
	sort.Strings(list)
	return list
}
