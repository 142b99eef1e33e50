package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// ErrNobody: no program of the sandbox waits to be heard.
var ErrNobody = errors.New("nobody waits at the door")

const (
	// maxWaiting bounds the programs that wait to be heard at the same time.
	maxWaiting = 64
	// doorPatience is how long one waits: a daemon that is restarted is back by
	// then.
	doorPatience = 5 * time.Minute
	// EnvSocket, EnvToken and EnvAgent are what a program of the sandbox finds
	// the daemon by, and who it is there. The socket's name is abstract: it needs no file, which a fork or a
	// checkpoint would copy.
	EnvSocket = "ALINEO_SOCKET"
	EnvToken  = "ALINEO_TOKEN"
	EnvAgent  = "ALINEO_AGENT_ID"
)

// door is where programs of the sandbox wait to speak with the daemon. The
// daemon is told that somebody waits, and takes them in on streams of its own.
type door struct {
	name     string // of the abstract socket
	listener *net.UnixListener

	mu      sync.Mutex
	waiting []*visitor
	closed  bool
}

type visitor struct {
	conn  *net.UnixConn
	timer interface{ Stop() bool }
}

// openDoor listens for the programs of the sandbox. Without it the bridge is
// whole, but for them.
func (s *server) openDoor() {
	s.door.name = "@alineo/" + s.cfg.SandboxID + "/" + s.epoch
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.door.name, Net: "unix"})
	if err != nil {
		s.log.Warn("programs of the sandbox cannot reach the daemon", zap.Error(err))
		s.door.name = ""
		return
	}
	s.door.listener = l
	s.wg.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				s.log.Warn("accepting at the door", zap.Error(err))
				return
			}
			if err := s.welcome(c); err != nil {
				s.log.Info("turned away at the door", zap.Error(err))
				_ = c.Close()
			}
		}
	})
}

// welcome has a program wait, if it is one of the harness's.
func (s *server) welcome(c *net.UnixConn) error {
	uid, err := peer(c)
	if err != nil {
		return err
	}
	if uid != 0 && int(uid) != os.Geteuid() && int(uid) != s.acct.uid {
		return fmt.Errorf("user %d is not the harness's", uid)
	}
	d := &s.door
	d.mu.Lock()
	if d.closed || len(d.waiting) >= maxWaiting {
		d.mu.Unlock()
		return errors.New("too many wait already")
	}
	v := &visitor{conn: c}
	v.timer = s.cfg.Clock.AfterFunc(doorPatience, func() {
		if d.remove(v) {
			_ = c.Close()
		}
	})
	d.waiting = append(d.waiting, v)
	d.mu.Unlock()
	s.conns.knock()
	return nil
}

func peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(ctlErr, err); err != nil {
		return 0, fmt.Errorf("asking who is at the door: %w", err)
	}
	return cred.Uid, nil
}

func (d *door) remove(v *visitor) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, o := range d.waiting {
		if o == v {
			d.waiting = append(d.waiting[:i], d.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// next takes the one that has waited longest; nil where nobody does.
func (d *door) next() *net.UnixConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		return nil
	}
	v := d.waiting[0]
	d.waiting = d.waiting[1:]
	v.timer.Stop()
	return v.conn
}

func (d *door) anybody() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) > 0
}

func (d *door) close() {
	if d.listener != nil {
		_ = d.listener.Close()
	}
	d.mu.Lock()
	d.closed = true
	all := d.waiting
	d.waiting = nil
	d.mu.Unlock()
	for _, v := range all {
		v.timer.Stop()
		_ = v.conn.Close()
	}
}

// knock tells the subscriber that somebody waits.
func (t *connTable) knock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sub == nil {
		return // it is told when it subscribes
	}
	select {
	case t.sub.knocks <- struct{}{}:
	default:
	}
}

// tellKnocks passes knocks on to the client.
func (c *conn) tellKnocks(ctx context.Context) {
	for {
		select {
		case <-c.knocks:
			if c.send(response{Knock: true}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// visit joins the stream to a program that waits at the door.
func (c *conn) visit(ctx context.Context) {
	v := c.s.door.next()
	if v == nil {
		c.bye(ErrNobody)
		return
	}
	defer v.Close()
	if c.send(response{Known: true}) != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _, _ = v.Close(), c.c.Close() })
	defer stop()
	Join(v, readWriteCloser{c.r, c.c, c.c})
}

type readWriteCloser struct {
	io.Reader
	io.Writer
	io.Closer
}

// Join carries bytes both ways until either side ends, and closes both.
func Join(a, b io.ReadWriteCloser) {
	var wg sync.WaitGroup
	carry := func(to, from io.ReadWriteCloser) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		_ = from.Close()
	}
	wg.Go(func() { carry(a, b) })
	carry(b, a)
	wg.Wait()
}

// Visit takes in, over a stream to the bridge of a sandbox, a program that
// waits there to speak with the daemon: ErrNobody where none does. It owns rwc,
// as Connect does. The caller closes the visitor.
func Visit(ctx context.Context, rwc io.ReadWriteCloser, sandboxID string, opts ...Option) (io.ReadWriteCloser, error) {
	c := newClient(rwc, opts)
	err := c.greet(ctx, sandboxID, helloRequest{Mode: modeVisit})
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = rwc.Close() })
		err = c.readVisit()
		if !stop() && err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		_ = rwc.Close()
		return nil, fmt.Errorf("taking in a program of %s: %w", sandboxID, err)
	}
	return readWriteCloser{c.r, rwc, rwc}, nil
}

func (c *Client) readVisit() error {
	frame, err := readFrame(c.r, maxHello)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	var r response
	if err := json.Unmarshal(frame, &r); err != nil {
		return fmt.Errorf("reading a frame: %w: %w", ErrProtocol, err)
	}
	switch {
	case r.Bye != nil:
		return r.Bye.err()
	case !r.Known:
		return fmt.Errorf("neither a visitor nor none: %w", ErrProtocol)
	}
	return nil
}
