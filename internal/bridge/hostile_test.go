package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

// peer is a stream to a bridge that a test plays itself.
func peer(t *testing.T, play func(c net.Conn, r *bufio.Reader)) io.ReadWriteCloser {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		play(far, bufio.NewReader(far))
	}()
	t.Cleanup(func() { near.Close(); <-done })
	return near
}

func answering(lines ...string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		r.ReadString('\n')
		for _, l := range lines {
			fmt.Fprintln(c, l)
		}
		io.Copy(io.Discard, r)
	}
}

func TestConnectErrors(t *testing.T) {
	t.Parallel()
	const id = "s_0123456789ab"
	for name, tc := range map[string]struct {
		play func(net.Conn, *bufio.Reader)
		want error
	}{
		"other sandbox": {answering(`{"hello":{"version":1,"sandboxId":"s_other"}}`), bridge.ErrProtocol},
		"other version": {answering(`{"hello":{"version":2,"sandboxId":"` + id + `"}}`), bridge.ErrVersion},
		"no hello":      {answering(`{"id":4}`), bridge.ErrProtocol},
		"no JSON":       {answering(`HTTP/1.1 400 Bad Request`), bridge.ErrProtocol},
		"endless":       {answering(strings.Repeat("x", 2<<20)), bridge.ErrProtocol},
		"bye":           {answering(`{"bye":{"kind":"superseded","text":"x"}}`), bridge.ErrSuperseded},
		"hangs up":      {func(c net.Conn, r *bufio.Reader) { r.ReadString('\n') }, bridge.ErrNoAnswer},
		"closed":        {func(c net.Conn, r *bufio.Reader) {}, bridge.ErrNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := bridge.Connect(testContext(t), peer(t, tc.play), id)
			wantErr(t, err, tc.want)
			_, err = bridge.Pack(testContext(t), peer(t, tc.play), id, bridge.PackRequest{})
			wantErr(t, err, tc.want)
			_, err = bridge.Unpack(testContext(t), peer(t, tc.play), id, bridge.UnpackRequest{}, bytes.NewReader(nil))
			wantErr(t, err, tc.want)
		})
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	silent := func(c net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) }
	clock := clockwork.NewFakeClock()
	result := make(chan error, 1)
	stream := peer(t, silent)
	go func() {
		_, err := bridge.Connect(context.Background(), stream, "s_x", bridge.WithClock(clock))
		result <- err
	}()
	if err := clock.BlockUntilContext(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(bridge.HelloTimeout - 1)
	select {
	case err := <-result:
		t.Fatalf("gave up early: %v", err)
	default:
	}
	clock.Advance(1)
	wantErr(t, <-result, bridge.ErrNoAnswer)

	// A caller that gives up has learnt nothing about the bridge.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := bridge.Connect(ctx, peer(t, silent), "s_x")
	wantErr(t, err, context.Canceled)
	if errors.Is(err, bridge.ErrNoAnswer) {
		t.Error("called it no answer")
	}
}

// A bridge that was taken over harms the client no further than its own
// connection.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	const id, hello = "s_0123456789ab", `{"hello":{"version":1,"sandboxId":"s_0123456789ab"}}`
	for name, frame := range map[string]string{
		"gap":         `{"records":[{"pos":3,"kind":"line"}]}`,
		"double":      `{"records":[{"pos":1,"kind":"line"},{"pos":1,"kind":"line"}]}`,
		"far dropped": `{"records":[{"pos":9,"kind":"dropped","dropped":3}]}`,
		"long run":    `{"records":[{"pos":99999999,"run":99999999,"kind":"line"}]}`,
		"events":      `{"records":[{"pos":1,"kind":"line","events":[` + strings.Repeat(`{},`, 5000) + `{}]}]}`,
		"records":     `{"records":[` + strings.Repeat(`{},`, 5000) + `{}]}`,
		"no JSON":     `}{`,
		"endless":     strings.Repeat("x", bridge.MaxFrame+2),
		"no credit": strings.Join([]string{
			`{"records":[{"pos":1,"kind":"line"}]}`, `{"records":[{"pos":2,"kind":"line"}]}`, `{"records":[{"pos":3,"kind":"line"}]}`,
			`{"records":[{"pos":4,"kind":"line"}]}`, `{"records":[{"pos":5,"kind":"line"}]}`, `{"records":[{"pos":6,"kind":"line"}]}`,
		}, "\n"),
		"shown": `{"ephemerals":[` + strings.Repeat(`{},`, 5000) + `{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := bridge.Connect(testContext(t), peer(t, func(c net.Conn, r *bufio.Reader) {
				r.ReadString('\n')
				fmt.Fprintln(c, hello)
				r.ReadString('\n')
				fmt.Fprintln(c, `{"id":1}`)
				fmt.Fprintln(c, frame)
				io.Copy(io.Discard, r)
			}), id)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Subscribe(testContext(t), 0); err != nil && !errors.Is(err, bridge.ErrClosed) {
				t.Fatal(err)
			}
			<-c.Done()
			wantErr(t, c.Err(), bridge.ErrProtocol)
			wantErr(t, c.Err(), bridge.ErrClosed)
			for range c.Records() {
			}
		})
	}
}

// A context that ends frees its caller even when the stream takes nothing.
func TestStuckStream(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	c, err := bridge.Connect(testContext(t), peer(t, func(c net.Conn, r *bufio.Reader) {
		r.ReadString('\n')
		fmt.Fprintln(c, `{"hello":{"version":1,"sandboxId":"s_x"}}`)
		<-stuck
	}), "s_x")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := c.Status(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		cancel()
	}
	close(stuck)
	c.Close()
	if err := c.Steer(testContext(t), "", "x"); !errors.Is(err, bridge.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Whatever is thrown at the socket, the bridge serves the next client.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "say a\nwait")
	until(t, c, "message.ended")
	hello := fmt.Sprintf(`{"version":1,"sandboxId":%q,"mode":"control"}`+"\n", b.args.SandboxID)
	for _, attack := range []string{
		"", "\n", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("x", 2<<20),
		`{"version":1,"sandboxId":"s_other"}` + "\n",
		`{"version":1,"sandboxId":"` + b.args.SandboxID + `","mode":"pack"}` + "\n",
		`{"version":1,"sandboxId":"` + b.args.SandboxID + `","mode":"dance"}` + "\n",
		hello + "nonsense\n", hello + `{"id":1,"op":"dance"}` + "\n", hello + `{"id":1,"op":"deliver"}` + "\n",
		hello + `{"id":1,"op":"order"}` + "\n", hello + `{"id":1,"op":"start"}` + "\n",
		hello + `{"id":1,"op":"order","order":{"op":"dance"}}` + "\n",
		hello + `{"id":1,"op":"deliver","turn":{"id":"a b"}}` + "\n",
		hello + `{"id":1,"op":"signal","pid":1,"signal":9}` + "\n",
		hello + `{"id":1,"op":"ack","pos":-5}` + "\n" + `{"id":1,"op":"ack","pos":9223372036854775807}` + "\n",
		hello + strings.Repeat("y", bridge.MaxFrame+10) + "\n",
		hello + strings.Repeat(`{"op":"credit"}`+"\n", 1000),
		hello + `{"id":1,"op":"subscribe","pos":-1}` + "\n",
		hello + `{"id":1,"op":"subscribe","pos":9223372036854775807}` + "\n",
	} {
		conn, err := bridge.Dial(testContext(t), b.args.Dir)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, attack)
		conn.CloseWrite()
		io.Copy(io.Discard, conn)
		conn.Close()
	}
	// More connections than the bridge keeps, none of which says anything: the
	// idle ones have not said hello and count for nothing.
	var idle []net.Conn
	for range 3 * bridge.MaxConns {
		conn, err := bridge.Dial(testContext(t), b.args.Dir)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	if h, err := c.Status(testContext(t)); err != nil || h.TurnID != "t_1" {
		t.Errorf("%+v, %v", h, err)
	}
	// As many that do: the oldest gives way, and it is this test's own.
	for range bridge.MaxConns {
		b.connect(t)
	}
	<-c.Done()
	wantErr(t, c.Err(), bridge.ErrSuperseded)
	for _, conn := range idle {
		conn.Close()
	}
	if err := b.connect(t).Abort(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestGap(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	c := b.connect(t)
	wantErr(t, c.Subscribe(testContext(t), 2), bridge.ErrGap)
	c = b.connect(t)
	if err := c.Subscribe(testContext(t), 1); err != nil {
		t.Error(err)
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	// A dead bridge's socket is in the way.
	if err := os.WriteFile(filepath.Join(args.Dir, "bridge.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := start(t, "serve", args)
	for _, name := range []string{"bridge.sock", "journal", "turns", "bridge.lock"} {
		st, err := os.Lstat(filepath.Join(args.Dir, name))
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	// Only one bridge serves a directory.
	err := bridge.Serve(testContext(t), bridge.ServerConfig{
		SandboxID: args.SandboxID, Dir: args.Dir, InProcess: true,
		Harnesses: func(string) (harness.Harness, error) { return fake{}, nil },
	})
	if err == nil {
		t.Error("a second bridge served the directory")
	}
	b.connect(t)
	if err := bridge.Serve(testContext(t), bridge.ServerConfig{Dir: args.Dir}); err == nil {
		t.Error("a bridge without a sandbox served")
	}
}

// A server that shares its process leaves the others' children alone.
func TestInProcess(t *testing.T) {
	t.Parallel()
	args := newArgs(t)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	r, w := io.Pipe()
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(w), zapcore.InfoLevel))
	lines := &logs{grew: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { lines.follow(r) })
	defer reading.Wait()
	defer w.Close()
	go func() {
		served <- bridge.Serve(ctx, bridge.ServerConfig{
			SandboxID: args.SandboxID, Dir: args.Dir, Home: args.Home, Self: self(t), InProcess: true, Harnesses: findFake, Log: log,
		})
	}()
	lines.await(t, "bridge serves", 1)
	c, err := bridge.Connect(testContext(t), dialSocket(t, args.Dir), args.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Subscribe(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartHarness(testContext(t), startRequest(nil)); err != nil {
		t.Fatal(err)
	}
	deliver(t, c, "t_1", "say a")
	until(t, c, "turn.ended")
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	<-c.Done()
}
