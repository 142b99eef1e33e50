package sdnotify_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/sdnotify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is a service manager's end of the socket.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func listen(t *testing.T, name string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn}
}

func (m *manager) next() string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		m.t.Fatalf("waiting for a notification: %v", err)
	}
	return string(buf[:n])
}

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@alineod-test-" + ids.New("x")} {
		m := listen(t, name)
		n, err := sdnotify.New(lookup(map[string]string{"NOTIFY_SOCKET": name}), 1, clockwork.NewRealClock())
		if err != nil {
			t.Fatal(err)
		}
		for want, send := range map[string]func() error{
			"READY=1\nSTATUS=up\n":            func() error { return n.Ready("up") },
			"STATUS=recovering 3/7 READY=1\n": func() error { return n.Status("recovering 3/7\nREADY=1") },
			"STOPPING=1\n":                    n.Stopping,
		} {
			if err := send(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := m.next(); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if n.Watchdog() != 0 {
			t.Error("a watchdog nobody asked for")
		}
	}
}

func TestWithoutManager(t *testing.T) {
	t.Parallel()
	for _, vars := range []map[string]string{nil, {"NOTIFY_SOCKET": ""}} {
		n, err := sdnotify.New(lookup(vars), 1, clockwork.NewRealClock())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(n.Ready("x"), n.Status("x"), n.Stopping()); err != nil {
			t.Errorf("%v: %v", vars, err)
		}
		n.RunWatchdog(t.Context(), nil, nil) // returns at once
	}
	gone := filepath.Join(t.TempDir(), "gone")
	n, err := sdnotify.New(lookup(map[string]string{"NOTIFY_SOCKET": gone}), 1, clockwork.NewRealClock())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Ready("x"); !errors.Is(err, sdnotify.ErrSocket) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket that is gone: %v", err)
	}
}

func TestBadVariables(t *testing.T) {
	t.Parallel()
	for _, vars := range []map[string]string{
		{"NOTIFY_SOCKET": "vsock:2:1"},
		{"NOTIFY_SOCKET": "relative"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
		{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
	} {
		if _, err := sdnotify.New(lookup(vars), 1, clockwork.NewRealClock()); !errors.Is(err, sdnotify.ErrSocket) {
			t.Errorf("%v: %v, want ErrSocket", vars, err)
		}
	}
	n, err := sdnotify.New(lookup(map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "2"}), 1, clockwork.NewRealClock())
	if err != nil || n.Watchdog() != 0 {
		t.Errorf("another process's watchdog: %v, %v", n.Watchdog(), err)
	}
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "notify")
	m := listen(t, name)
	clock := clockwork.NewFakeClock()
	n, err := sdnotify.New(lookup(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())}), os.Getpid(), clock)
	if err != nil {
		t.Fatal(err)
	}
	if n.Watchdog() != 20*time.Second {
		t.Fatalf("watchdog every %v, want 20s", n.Watchdog())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var healthy atomic.Bool
	healthy.Store(true)
	asked := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.RunWatchdog(ctx, func() bool { asked <- struct{}{}; return healthy.Load() }, func(err error) { t.Error(err) })
	}()
	<-asked
	if got := m.next(); got != "WATCHDOG=1\n" {
		t.Errorf("got %q", got)
	}
	tick := func() {
		if err := clock.BlockUntilContext(ctx, 1); err != nil {
			t.Error(err)
		}
		clock.Advance(10 * time.Second)
		<-asked
	}
	tick()
	if got := m.next(); got != "WATCHDOG=1\n" {
		t.Errorf("got %q", got)
	}
	// What hangs is not called alive: nothing is sent until it answers again.
	healthy.Store(false)
	tick()
	tick()
	if err := n.Status("marker"); err != nil {
		t.Fatal(err)
	}
	if got := m.next(); got != "STATUS=marker\n" {
		t.Errorf("while it hung: %q", got)
	}
	cancel()
	<-done
}

func TestFromEnvClearsTheEnvironment(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	m := listen(t, name)
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "1000000")
	n, err := sdnotify.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if _, set := os.LookupEnv("NOTIFY_SOCKET"); set || os.Getenv("WATCHDOG_USEC") != "" {
		t.Error("children would still inherit the variables")
	}
	if err := n.Ready("up"); err != nil {
		t.Fatal(err)
	}
	if got := m.next(); got != "READY=1\nSTATUS=up\n" || n.Watchdog() != time.Second {
		t.Errorf("got %q, watchdog %v", got, n.Watchdog())
	}
}
