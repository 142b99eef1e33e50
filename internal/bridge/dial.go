package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Dial connects to the socket of the bridge that serves dir. The path may be
// of any length.
func Dial(ctx context.Context, dir string) (*net.UnixConn, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("dialling the bridge: %w", err)
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName))
	if err != nil {
		return nil, fmt.Errorf("dialling the bridge: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// DialStdio connects in and out to the socket of the bridge that serves dir,
// until either side ends: it is the far end of a stream that runs over a
// command's standard input and output. A read of in that waits at the end is
// interrupted; only a file that has no deadlines, as a terminal, keeps it.
func DialStdio(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	conn, err := Dial(ctx, dir)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()

	var toBridge sync.WaitGroup
	toBridge.Go(func() {
		_, _ = io.Copy(onlyWriter{conn}, in)
		_ = conn.CloseWrite()
	})
	_, err = io.Copy(out, conn)
	_ = conn.Close()
	if interrupt(in) {
		toBridge.Wait()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("carrying the bridge's stream: %w", err)
	}
	return nil
}

// interrupt ends a read of r that waits, where that can be done. A standard
// input that cannot be interrupted ends with its process.
func interrupt(r io.Reader) bool {
	switch in := r.(type) {
	case *os.File:
		return in.SetReadDeadline(time.Unix(1, 0)) == nil
	case io.Closer:
		return in.Close() == nil
	}
	return false
}

// onlyWriter hides a connection's ReadFrom, which would splice and so hold on
// to the standard input.
type onlyWriter struct{ io.Writer }
