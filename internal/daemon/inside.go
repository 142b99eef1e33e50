package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/bridge"
)

// inside serves the programs of sandboxes, each connection as its agent's.
type inside struct {
	key    []byte
	server *http.Server
	conns  chan net.Conn
	quit   chan struct{}
	ended  chan struct{}
}

// guest is the connection of a program in an agent's sandbox.
type guest struct {
	net.Conn
	agentID string
}

type guestKey struct{}

// newInside makes what serves the programs of sandboxes. The key that their
// tokens come from is the state directory's: agents outlive the daemon.
func newInside(stateDir string) (*inside, error) {
	key, err := keyOf(filepath.Join(stateDir, "agents.key"))
	if err != nil {
		return nil, fmt.Errorf("reading the key of the agents' tokens: %w", err)
	}
	return &inside{key: key, conns: make(chan net.Conn), quit: make(chan struct{}), ended: make(chan struct{})}, nil
}

func keyOf(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err == nil && len(key) == sha256.Size || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	// Missing, or cut short by a crash before any token was made of it.
	key = make([]byte, sha256.Size)
	rand.Read(key)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, key, 0o600); err != nil {
		return nil, err
	}
	return key, os.Rename(tmp, path)
}

// token is the secret of an agent's own programs.
func (i *inside) token(agentID string) string {
	mac := hmac.New(sha256.New, i.key)
	mac.Write([]byte(agentID))
	return hex.EncodeToString(mac.Sum(nil))
}

// start begins to serve.
func (i *inside) start(o api.Options, log *zap.Logger) error {
	handler, err := api.NewInside(o, func(ctx context.Context) string {
		id, _ := ctx.Value(guestKey{}).(string)
		return id
	}, i.token)
	if err != nil {
		return err
	}
	i.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, ErrorLog: zap.NewStdLog(log),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, guestKey{}, c.(*guest).agentID)
		},
	}
	go func() {
		defer close(i.ended)
		_ = i.server.Serve(i)
	}()
	return nil
}

// close ends all connections and waits for the server's end.
func (i *inside) close() {
	close(i.quit)
	if i.server == nil {
		return
	}
	// Their connections are closed already: what is in flight ends by itself.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = i.server.Shutdown(ctx)
	_ = i.server.Close()
	<-i.ended
}

// serve hands one connection to the server and carries it to its end.
func (i *inside) serve(ctx context.Context, agentID string, conn io.ReadWriteCloser) {
	defer conn.Close()
	ours, theirs := net.Pipe()
	defer ours.Close()
	select {
	case i.conns <- &guest{theirs, agentID}:
	case <-i.quit:
		return
	case <-ctx.Done():
		return
	}
	stop := context.AfterFunc(ctx, func() { _, _ = conn.Close(), ours.Close() })
	defer stop()
	bridge.Join(conn, ours)
}

// Accept implements net.Listener.
func (i *inside) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.quit:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (i *inside) Close() error { return nil }

// Addr implements net.Listener.
func (i *inside) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "unix"} }
