package docker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/docker/docker/client"
)

// The engine's client takes a connection over for the streams of a command.
// While it does, it heeds no context: an engine that accepts a connection and
// says nothing would hold the caller for ever. So the connection is noted as
// it is made, and closed when the context ends before the engine has answered.

type hijackKey struct{}

// hijackConn is the connection that is being taken over.
type hijackConn struct {
	mu    sync.Mutex
	conn  net.Conn
	ended bool
}

// watched returns a context whose connection is closed at its end, unless
// release is called before.
func watched(ctx context.Context) (_ context.Context, release func()) {
	h := &hijackConn{}
	unhook := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ended = true
		if h.conn != nil {
			_ = h.conn.Close()
		}
	})
	return context.WithValue(ctx, hijackKey{}, h), func() { unhook() }
}

func (h *hijackConn) note(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = conn
	if h.ended {
		_ = conn.Close()
	}
}

// withDialer has the client dial by itself as before, and note connections
// that are going to be taken over. With TLS the client dials those another
// way, which only the system's own timeouts bound.
func withDialer(c *client.Client) error {
	u, err := client.ParseHostURL(c.DaemonHost())
	if err != nil {
		return err
	}
	if u.Scheme != "unix" && u.Scheme != "tcp" {
		return nil
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return client.WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if u.Scheme == "unix" {
			network, addr = u.Scheme, u.Host
		}
		conn, err := dialer.DialContext(ctx, network, addr)
		if h, ok := ctx.Value(hijackKey{}).(*hijackConn); ok && err == nil {
			h.note(conn)
		}
		return conn, err
	})(c)
}
