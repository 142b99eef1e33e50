package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ids"
)

// patience bounds what a test waits for; it is never waited out in a pass.
const patience = 60 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// box is a sandbox of a test: a process of the bridge, or of its init.
type box struct {
	t    *testing.T
	args serveArgs
	cmd  *exec.Cmd
	log  *logs
	dial func(t *testing.T, dir string) io.ReadWriteCloser
	// program is the bridge's, where it is not the test's own.
	program string
}

// logs collects what a process writes to its standard error.
type logs struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	grew chan struct{}
	done bool
}

func (l *logs) follow(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		l.mu.Lock()
		l.buf.WriteString(line)
		l.done = err != nil
		close(l.grew)
		l.grew = make(chan struct{})
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits until text was logged n times.
func (l *logs) await(t *testing.T, text string, n int) {
	t.Helper()
	if !l.within(patience, text, n) {
		t.Fatalf("%q was not logged %d times:\n%s", text, n, l)
	}
}

// within says whether text is logged n times before d is over or the process
// ends.
func (l *logs) within(d time.Duration, text string, n int) bool {
	deadline := time.After(d)
	for {
		l.mu.Lock()
		count, grew, done := strings.Count(l.buf.String(), text), l.grew, l.done
		l.mu.Unlock()
		if count >= n || done {
			return count >= n
		}
		select {
		case <-grew:
		case <-deadline:
			return false
		}
	}
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newArgs(t *testing.T) serveArgs {
	t.Helper()
	// Deeper than a socket's path may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 30))
	home := filepath.Join(t.TempDir(), "home")
	for _, d := range []string{dir, home} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return serveArgs{Dir: dir, Home: home, SandboxID: ids.New(ids.Sandbox)}
}

// start runs role ("serve" or "init") for args until the test ends.
func start(t *testing.T, role string, args serveArgs) *box {
	t.Helper()
	b := &box{t: t, args: args, dial: dialSocket}
	b.run(role)
	return b
}

func (b *box) run(role string) {
	b.t.Helper()
	data, err := json.Marshal(b.args)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.program == "" {
		b.program = self(b.t)
	}
	cmd := exec.Command(b.program, roleArg, role, string(data))
	cmd.Env = append(os.Environ(), "FAKE_HOME="+b.args.Home)
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	w.Close()
	log := &logs{grew: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { log.follow(r) })
	b.cmd, b.log = cmd, log
	b.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			b.t.Errorf("%s did not end after SIGTERM", role)
			cmd.Process.Kill()
			<-ended
		}
		// A process that outlived the bridge may hold its standard error.
		r.SetReadDeadline(time.Now().Add(5 * time.Second))
		reading.Wait()
		r.Close()
		if b.t.Failed() {
			b.t.Logf("log of %s:\n%s", role, log)
		}
	})
	log.await(b.t, "bridge serves", 1)
}

// kill9 kills the bridge itself and starts another one in its place.
func (b *box) kill9() {
	b.t.Helper()
	b.cmd.Process.Kill()
	b.cmd.Wait()
	b.run("serve")
}

func dialSocket(t *testing.T, dir string) io.ReadWriteCloser {
	t.Helper()
	c, err := bridge.Dial(testContext(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// execStream is a stream over a command's standard input and output.
type execStream struct {
	io.WriteCloser
	out  io.ReadCloser
	cmd  *exec.Cmd
	once sync.Once
}

func (e *execStream) Read(b []byte) (int, error) { return e.out.Read(b) }
func (e *execStream) Close() error {
	e.once.Do(func() {
		// As a container engine's client: its end closes the far input.
		e.WriteCloser.Close()
		e.out.Close()
		go e.cmd.Wait()
	})
	return nil
}

func dialExec(t *testing.T, dir string) io.ReadWriteCloser {
	t.Helper()
	cmd := exec.Command(self(t), roleArg, "dial", dir)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = inR, outW
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	return &execStream{WriteCloser: inW, out: outR, cmd: cmd}
}

// eachTransport runs a test over the socket and over an exec stream.
func eachTransport(t *testing.T, test func(t *testing.T, b *box)) {
	for name, dial := range map[string]func(*testing.T, string) io.ReadWriteCloser{"socket": dialSocket, "exec": dialExec} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "serve", newArgs(t))
			b.dial = dial
			test(t, b)
		})
	}
}

func (b *box) connect(t *testing.T) *bridge.Client {
	t.Helper()
	c, err := bridge.Connect(testContext(t), b.dial(t, b.args.Dir), b.args.SandboxID)
	if err != nil {
		t.Fatalf("Connect: %v\n%s", err, b.log)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func startRequest(env map[string]string) bridge.StartRequest {
	return bridge.StartRequest{Harness: "fake", Env: env}
}

// ready is a client whose harness is idle and whose records are followed from
// where the journal ended.
func (b *box) ready(t *testing.T, env map[string]string) *bridge.Client {
	t.Helper()
	c := b.connect(t)
	after := c.Hello().Head
	if after == 1 {
		after = 0 // the boot's own record
	}
	if err := c.Subscribe(testContext(t), after); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartHarness(testContext(t), startRequest(env)); err != nil {
		t.Fatal(err)
	}
	return c
}

func deliver(t *testing.T, c *bridge.Client, id, text string) {
	t.Helper()
	known, err := c.Deliver(testContext(t), bridge.Turn{ID: id, Prompt: harness.Prompt{Text: text}})
	if err != nil || known {
		t.Fatalf("Deliver(%s) = %v, %v", id, known, err)
	}
}

// until reads records until one has an event of that name, and returns all.
func until(t *testing.T, c *bridge.Client, event string) []bridge.Record {
	t.Helper()
	return untilRecord(t, c, func(r bridge.Record) bool { return has(r, event) })
}

func has(r bridge.Record, event string) bool {
	for _, e := range r.Events {
		if e.Name == event {
			return true
		}
	}
	return false
}

func untilRecord(t *testing.T, c *bridge.Client, stop func(bridge.Record) bool) []bridge.Record {
	t.Helper()
	var all []bridge.Record
	deadline := time.After(patience)
	for {
		select {
		case batch, open := <-c.Records():
			if !open {
				t.Fatalf("connection ended: %v", c.Err())
			}
			all = append(all, batch...)
			for _, r := range batch {
				if stop(r) {
					return all
				}
			}
		case <-deadline:
			t.Fatalf("not among %d records", len(all))
		}
	}
}

// said returns the texts of all messages in records.
func said(records []bridge.Record) []string {
	var texts []string
	for _, r := range records {
		for _, e := range r.Events {
			if e.Name == "message.ended" {
				var m msg
				json.Unmarshal(e.Body, &m)
				texts = append(texts, m.Text)
			}
		}
	}
	return texts
}

func checkPositions(t *testing.T, after int64, records []bridge.Record) {
	t.Helper()
	for _, r := range records {
		if r.Pos != after+1 {
			t.Fatalf("record %d follows %d", r.Pos, after)
		}
		after = r.Pos
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want kind %q", err, want)
	}
}
