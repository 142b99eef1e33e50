// Package sdnotify tells the service manager how the daemon is: ready, busy
// recovering, stopping, still alive. It speaks systemd's notification
// protocol, datagrams of NAME=VALUE lines to the socket NOTIFY_SOCKET names.
// Without that variable nothing is sent and nothing fails.
package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"
)

// ErrSocket: NOTIFY_SOCKET names something that cannot be sent to.
var ErrSocket = errors.New("notification socket")

// variables are the protocol's; see New.
const (
	envSocket       = "NOTIFY_SOCKET"
	envWatchdog     = "WATCHDOG_USEC"
	envWatchdogProc = "WATCHDOG_PID"
)

// writeTimeout bounds a send: a service manager that does not read must not
// hold up the daemon.
const writeTimeout = time.Second

// Notifier sends to one service manager. Its methods are safe for concurrent
// use; a nil Notifier sends nothing.
type Notifier struct {
	addr     *net.UnixAddr
	watchdog time.Duration
	clock    clockwork.Clock
}

// FromEnv reads the protocol's variables and takes them out of the process's
// environment: a sandbox's processes inherit that, and are none of the service
// manager's business.
func FromEnv() (*Notifier, error) {
	n, err := New(os.LookupEnv, os.Getpid(), clockwork.NewRealClock())
	for _, name := range []string{envSocket, envWatchdog, envWatchdogProc} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("clearing %s: %w", name, err)
		}
	}
	return n, err
}

// New reads the protocol's variables through lookup. pid is this process's;
// a watchdog meant for another process is not kept. It returns nil where no
// socket is named.
func New(lookup func(string) (string, bool), pid int, clock clockwork.Clock) (*Notifier, error) {
	name, ok := lookup(envSocket)
	if !ok || name == "" {
		return nil, nil
	}
	// A leading @ is a socket of the abstract namespace; package net knows.
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("%w: %s=%q is neither a path nor an abstract socket", ErrSocket, envSocket, name)
	}
	n := &Notifier{addr: &net.UnixAddr{Name: name, Net: "unixgram"}, clock: clock}
	if usec, ok := lookup(envWatchdog); ok {
		if forPID, ok := lookup(envWatchdogProc); !ok || forPID == strconv.Itoa(pid) {
			v, err := strconv.ParseInt(usec, 10, 64)
			if err != nil || v <= 0 {
				return nil, fmt.Errorf("%w: %s=%q is not a number of microseconds", ErrSocket, envWatchdog, usec)
			}
			n.watchdog = time.Duration(v) * time.Microsecond
		}
	}
	return n, nil
}

// Ready says that the start is over, with a first status.
func (n *Notifier) Ready(status string) error { return n.send("READY=1", "STATUS="+oneLine(status)) }

// Status sets the line that `systemctl status` shows.
func (n *Notifier) Status(status string) error { return n.send("STATUS=" + oneLine(status)) }

// Stopping says that the daemon is about to end.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watchdog is how often the manager wants a sign of life at least; 0: never.
func (n *Notifier) Watchdog() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// RunWatchdog sends signs of life until ctx ends, twice as often as asked for,
// as long as alive says so. alive must answer from the parts that could hang:
// a loop that only proves that it itself runs keeps a dead daemon from being
// restarted. A send that fails is given to report and tried again.
func (n *Notifier) RunWatchdog(ctx context.Context, alive func() bool, report func(error)) {
	if n.Watchdog() == 0 {
		return
	}
	tick := n.clock.NewTicker(n.watchdog / 2)
	defer tick.Stop()
	for {
		if alive() {
			if err := n.send("WATCHDOG=1"); err != nil && report != nil {
				report(err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.Chan():
		}
	}
}

func (n *Notifier) send(lines ...string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.addr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	if _, err := conn.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
		return fmt.Errorf("%w: sending %s: %w", ErrSocket, lines[0], err)
	}
	return nil
}

// oneLine keeps a status from being read as more assignments.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
