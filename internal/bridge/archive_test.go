package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

func TestArchive(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, b *box) {
		ctx := testContext(t)
		id := b.args.SandboxID
		want := bytes.Repeat([]byte("0123456789"), 100_000)
		stats, err := bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{}, bytes.NewReader(want))
		if err != nil || stats != (bridge.ArchiveStats{Files: 1, Bytes: int64(len(want))}) {
			t.Fatalf("Unpack = %+v, %v", stats, err)
		}
		r, err := bridge.Pack(ctx, b.dial(t, b.args.Dir), id, bridge.PackRequest{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("packed %d bytes, %v; want %d", len(got), err, len(want))
		}
		if s := r.(*bridge.PackStream).Stats(); s.Bytes != int64(len(want)) {
			t.Errorf("stats %+v", s)
		}
		// A large one, in little memory.
		const large = 100 << 20
		before := rss(t, b.cmd.Process.Pid)
		big, err := bridge.Pack(ctx, b.dial(t, b.args.Dir), id, bridge.PackRequest{Paths: []string{"bytes:104857600"}})
		if err != nil {
			t.Fatal(err)
		}
		stats, err = bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{Paths: []string{"count"}}, big)
		if err != nil || stats.Bytes != large {
			t.Errorf("piped %+v, %v", stats, err)
		}
		big.Close()
		if grown := rss(t, b.cmd.Process.Pid) - before; grown > 30<<20 {
			t.Errorf("bridge grew by %d MiB", grown>>20)
		}
		// The far side fails before, and in the middle.
		for _, path := range []string{"fail:0", "fail:1000000"} {
			r, err := bridge.Pack(ctx, b.dial(t, b.args.Dir), id, bridge.PackRequest{Paths: []string{path}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, r)
			wantErr(t, err, bridge.ErrArchive)
			if err == nil || !strings.Contains(err.Error(), "disk on fire") {
				t.Errorf("failure without its words: %v", err)
			}
			r.Close()
		}
		_, err = bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{Paths: []string{"refuse"}}, io.LimitReader(pattern{}, 50<<20))
		wantErr(t, err, bridge.ErrArchive)
		if err == nil || !strings.Contains(err.Error(), "leads out of the home") {
			t.Errorf("refusal without its words: %v", err)
		}
		// The near side's source fails: what was there stays.
		broken := io.MultiReader(bytes.NewReader(want[:1000]), brokenReader{})
		_, err = bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{}, broken)
		wantErr(t, err, bridge.ErrArchive)
		wantErr(t, err, errBroken)
		checkContent(t, b, want)

		// No restore under a running harness; another one's bridge is refused.
		c := b.ready(t, nil)
		_, err = bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{}, bytes.NewReader(want))
		wantErr(t, err, harness.ErrBusy)
		_, err = bridge.Pack(ctx, b.dial(t, b.args.Dir), "s_other", bridge.PackRequest{})
		wantErr(t, err, bridge.ErrProtocol)
		if _, err := c.Status(ctx); err != nil {
			t.Errorf("control stream beside archives: %v", err)
		}
	})
}

var errBroken = errors.New("source is broken")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

func checkContent(t *testing.T, b *box, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(b.args.Home, "content"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("home holds %d bytes, %v; want %d", len(got), err, len(want))
	}
}

// cutStream ends after so many bytes in either direction, as a lost connection.
type cutStream struct {
	io.ReadWriteCloser
	reads, writes int
}

func (c *cutStream) Read(b []byte) (int, error) {
	if c.reads == 0 {
		c.Close()
		return 0, io.EOF
	}
	n, err := c.ReadWriteCloser.Read(b[:min(len(b), c.reads)])
	c.reads -= n
	return n, err
}

func (c *cutStream) Write(b []byte) (int, error) {
	if len(b) > c.writes {
		n, _ := c.ReadWriteCloser.Write(b[:c.writes])
		c.writes = 0
		c.Close()
		return n, io.ErrClosedPipe
	}
	n, err := c.ReadWriteCloser.Write(b)
	c.writes -= n
	return n, err
}

// Wherever a stream is cut, neither side takes it for a whole archive.
func TestArchiveCut(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	ctx := testContext(t)
	id := b.args.SandboxID
	old := []byte("what was there before")
	if _, err := bridge.Unpack(ctx, b.dial(t, b.args.Dir), id, bridge.UnpackRequest{}, bytes.NewReader(old)); err != nil {
		t.Fatal(err)
	}
	const big = 1 << 30
	cuts := 0
	for cut := 1; ; cut++ {
		r, err := bridge.Pack(ctx, &cutStream{b.dial(t, b.args.Dir), cut, big}, id, bridge.PackRequest{})
		if err != nil {
			wantErr(t, err, bridge.ErrNoAnswer)
			continue
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			if !bytes.Equal(got, old) {
				t.Fatalf("cut after %d: took %q for the archive", cut, got)
			}
			break
		}
		wantErr(t, err, bridge.ErrArchive)
		if cuts++; cut > 2000 {
			t.Fatal("no length is long enough")
		}
	}
	// Two heads, the content, the result.
	if least := len(old) + 8 + 30; cuts < least {
		t.Errorf("%d lengths were too short, want at least %d", cuts, least)
	}
	for cut := 100; ; cut++ {
		_, err := bridge.Unpack(ctx, &cutStream{b.dial(t, b.args.Dir), big, cut}, id, bridge.UnpackRequest{}, strings.NewReader("new"))
		if err == nil {
			break
		}
		if !errors.Is(err, bridge.ErrArchive) && !errors.Is(err, bridge.ErrNoAnswer) {
			t.Errorf("cut after %d: %v", cut, err)
		}
		checkContent(t, b, old)
		if t.Failed() || cut > 2000 {
			t.Fatalf("cut after %d", cut)
		}
	}
	checkContent(t, b, []byte("new"))
}

func TestPackGivenUp(t *testing.T) {
	t.Parallel()
	b := start(t, "serve", newArgs(t))
	ctx, cancel := context.WithCancel(testContext(t))
	r, err := bridge.Pack(ctx, b.dial(t, b.args.Dir), b.args.SandboxID, bridge.PackRequest{Paths: []string{"bytes:9000000000000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.Copy(io.Discard, r)
	wantErr(t, err, bridge.ErrArchive)
	b.log.await(t, "archive failed", 1) // the bridge stopped packing
}
