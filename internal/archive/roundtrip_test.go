package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/archive"
)

func TestNastyHomeComesBack(t *testing.T) {
	t.Parallel()
	h := nastyHome(t)
	tar, _ := pack(t, archive.PackOptions{Home: h})
	out := filepath.Join(t.TempDir(), "new", "home")
	st := unpack(t, tar, archive.UnpackOptions{Home: out})
	if st.Skipped != (archive.Skipped{}) {
		t.Errorf("skipped: %+v", st.Skipped)
	}
	if diff := cmp.Diff(snapshot(t, h), snapshot(t, out)); diff != "" {
		t.Errorf("the home came back differently (-want +got):\n%s", diff)
	}
	again, _ := pack(t, archive.PackOptions{Home: out})
	if !bytes.Equal(tar, again) {
		t.Error("packing what was unpacked gives another archive")
	}
}

func TestUnpackReplacesExactly(t *testing.T) {
	t.Parallel()
	h := nastyHome(t)
	tar, _ := pack(t, archive.PackOptions{Home: h})
	out := nastyHome(t) // what was there before, as hard to remove
	write(t, out+"/deleted/by/the/agent", "must not reappear", 0o644)
	write(t, out+"/.cache/old", "nor this", 0o644)
	must(t, os.Remove(out+"/fifo"))
	write(t, out+"/fifo/is-a-directory", "x", 0o644)
	must(t, os.RemoveAll(out+"/dirs"))
	write(t, out+"/dirs", "is a file", 0o644)
	must(t, unix.Setxattr(out, "user.old", []byte("x"), 0))
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside+"/kept", "x", 0o644)
	must(t, os.Symlink(outside, out+"/into-outside"))
	unpack(t, tar, archive.UnpackOptions{Home: out})
	if diff := cmp.Diff(snapshot(t, h), snapshot(t, out)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Errorf("emptying the home followed a link: %v", err)
	}
}

func TestExtraPaths(t *testing.T) {
	t.Parallel()
	h, base := nastyHome(t), t.TempDir()
	paths := []string{base + "/srv/data", base + "/srv/file", base + "/srv/link", base + "/missing/here", base + "/srv/data/below"}
	write(t, base+"/srv/data/below/x", "x", 0o640)
	write(t, base+"/srv/data/__pycache__/x", "excludes are the home's", 0o640)
	write(t, base+"/srv/file", "f", 0o604)
	write(t, base+"/srv/other", "not asked for", 0o600)
	must(t, os.Symlink("file", base+"/srv/link"))
	must(t, os.Link(h+"/big", base+"/srv/data/zz-hard"))
	before := snapshot(t, base)
	tar, _ := pack(t, archive.PackOptions{Home: h, Paths: paths})

	write(t, base+"/srv/data/new", "goes", 0o640)
	must(t, os.Remove(base+"/srv/file"))
	write(t, base+"/srv/file/x", "a directory now", 0o604)
	write(t, base+"/missing/here/x", "goes too", 0o604)
	srv := snapshot(t, base)["srv"]
	unpack(t, tar, archive.UnpackOptions{Home: h, Paths: paths})
	after := snapshot(t, base)
	// The directories above the paths are the sandbox's own.
	before["srv"], after["srv"] = srv[:20], srv[:20]
	delete(after, "missing")
	before["."], after["."] = "", ""
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var a, b unix.Stat_t
	must(t, unix.Stat(h+"/big", &a))
	must(t, unix.Stat(base+"/srv/data/zz-hard", &b))
	if a.Ino != b.Ino {
		t.Error("the hard link between home and path is gone")
	}
	// Without the paths the archive asks for more than is allowed.
	if _, err := archive.Unpack(t.Context(), bytes.NewReader(tar), archive.UnpackOptions{Home: h}); !errors.Is(err, archive.ErrUnsafe) {
		t.Errorf("Unpack without the paths: %v", err)
	}
}

func TestHardLinkAcrossFileSystems(t *testing.T) {
	t.Parallel()
	other, err := os.MkdirTemp("/dev/shm", "archive")
	if err != nil {
		t.Skipf("NOT TESTED: /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	base := t.TempDir()
	write(t, base+"/home/a", "shared", 0o640)
	must(t, os.MkdirAll(base+"/p", 0o755))
	must(t, os.Link(base+"/home/a", base+"/p/b"))
	tar, _ := pack(t, archive.PackOptions{Home: base + "/home", Paths: []string{base + "/p"}})
	unpack(t, tar, archive.UnpackOptions{Home: other, Paths: []string{base + "/p"}})
	if b, err := os.ReadFile(base + "/p/b"); string(b) != "shared" {
		t.Errorf("the copy holds %q, %v", b, err)
	}
}

func TestExcludes(t *testing.T) {
	t.Parallel()
	h := t.TempDir()
	for _, f := range []string{
		".npm/x", ".cache/x", ".cargo/registry/cache/x", ".cargo/registry/src/x", ".cargo/registry/index/x", ".cargo/git/db/x",
		".cargo/git/checkouts/x", "go/pkg/mod/x", "__pycache__/x", "a/b/__pycache__/x", "tmp/x", "a/node_modules/x", "work/build/x", "a/x.o",
		// These stay.
		".cargo/config.toml", ".cargo/registry/keep", ".cargo/bin/x", "go/bin/x", "go/pkg/sum", "a/.npm/x", "a/.cache/x", "a/tmp/x", "a/work/build/x",
	} {
		write(t, h+"/"+f, "x", 0o644)
	}
	tar, st := pack(t, archive.PackOptions{Home: h, Exclude: []string{"/tmp/", "node_modules", "work/build", "*.o"}})
	out := t.TempDir()
	unpack(t, tar, archive.UnpackOptions{Home: out})
	var got []string
	for name := range snapshot(t, out) {
		if filepath.Base(name) == "x" || filepath.Ext(name) == ".o" || filepath.Base(name) == "keep" {
			got = append(got, name)
		}
	}
	want := []string{".cargo/bin/x", ".cargo/registry/keep", "a/.cache/x", "a/.npm/x", "a/tmp/x", "a/work/build/x", "go/bin/x"}
	if diff := cmp.Diff(want, sorted(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if st.Skipped.Excluded != 14 {
		t.Errorf("excluded %d, want 14", st.Skipped.Excluded)
	}
}

func TestSocketsAndDevicesAreLeftOut(t *testing.T) {
	t.Parallel()
	h := t.TempDir()
	dir, err := os.Open(h)
	must(t, err)
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd()))
	must(t, err)
	defer l.Close()
	want := archive.Skipped{Sockets: 1}
	if err := unix.Mknod(h+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err == nil {
		want.Devices = 1
	}
	_, st := pack(t, archive.PackOptions{Home: h})
	if st.Files != 0 || st.Skipped != want {
		t.Errorf("packed %+v, want %+v skipped", st, want)
	}
}

func TestHugeHoleIsFast(t *testing.T) {
	t.Parallel()
	h, out := t.TempDir(), t.TempDir()
	sparse(t, h+"/huge", 1<<40, 1<<39)
	start := time.Now()
	tar, _ := pack(t, archive.PackOptions{Home: h})
	unpack(t, tar, archive.UnpackOptions{Home: out})
	t.Logf("a file of 1 TiB went there and back in %v, %d bytes", time.Since(start), len(tar))
	if len(tar) > 64<<10 {
		t.Errorf("the archive has %d bytes", len(tar))
	}
	var st unix.Stat_t
	must(t, unix.Stat(out+"/huge", &st))
	if st.Size != 1<<40 || st.Blocks*512 > 1<<20 {
		t.Errorf("unpacked: size %d in %d blocks", st.Size, st.Blocks)
	}
}

// A tree deeper than the kernel takes in one path, and than the directories
// that are held open.
func TestDeepTree(t *testing.T) {
	t.Parallel()
	h, out := t.TempDir(), t.TempDir()
	const depth, name = 1000, "level-x"
	fd, err := unix.Open(h, unix.O_DIRECTORY, 0)
	must(t, err)
	for i := range depth {
		must(t, unix.Mkdirat(fd, name, 0o750))
		if i%100 == 0 {
			must(t, unix.Mkdirat(fd, "side", 0o700))
		}
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	must(t, unix.Symlinkat("bottom", fd, "end"))
	unix.Close(fd)
	tar, st := pack(t, archive.PackOptions{Home: h})
	if st.Dirs != depth+10+1 || st.Files != 1 {
		t.Errorf("packed %+v", st)
	}
	for range 2 { // the second time the deep tree has to be removed first
		unpack(t, tar, archive.UnpackOptions{Home: out})
		again, _ := pack(t, archive.PackOptions{Home: out})
		if !bytes.Equal(tar, again) {
			t.Error("packing what was unpacked gives another archive")
		}
	}
}

func TestManyFiles(t *testing.T) {
	t.Parallel()
	h, out := t.TempDir(), t.TempDir()
	for i := range 1500 {
		write(t, fmt.Sprintf("%s/d%d/f%d", h, i%50, i), fmt.Sprint(i), 0o644)
	}
	tar, st := pack(t, archive.PackOptions{Home: h})
	if st.Files != 1500 || st.Dirs != 51 {
		t.Errorf("packed %+v", st)
	}
	unpack(t, tar, archive.UnpackOptions{Home: out})
	if diff := cmp.Diff(snapshot(t, h), snapshot(t, out)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// meddler changes the home at the first write of the archive.
type meddler struct {
	bytes.Buffer
	meddle func()
}

func (m *meddler) Write(p []byte) (int, error) {
	if m.meddle != nil {
		m.meddle()
		m.meddle = nil
	}
	return m.Buffer.Write(p)
}

func TestHomeInMotion(t *testing.T) {
	t.Parallel()
	big := string(bytes.Repeat([]byte("x"), 2<<20))
	for name, c := range map[string]struct {
		meddle func(h string)
		want   archive.Skipped
		size   int64 // of "a" afterwards
	}{
		"shrinks":        {func(h string) { must(t, os.Truncate(h+"/a", 100)) }, archive.Skipped{Changed: 1}, 2 << 20},
		"grows":          {func(h string) { must(t, os.Truncate(h+"/a", 3<<20)) }, archive.Skipped{Changed: 1}, 2 << 20},
		"vanishes":       {func(h string) { must(t, os.RemoveAll(h+"/b")) }, archive.Skipped{Vanished: 1}, 2 << 20},
		"becomes a link": {func(h string) { must(t, os.Remove(h+"/b/f")); must(t, os.Symlink("/etc/passwd", h+"/b/f")) }, archive.Skipped{}, 2 << 20},
		"becomes a fifo": {func(h string) { must(t, os.RemoveAll(h+"/b")); must(t, unix.Mkfifo(h+"/b", 0o600)) }, archive.Skipped{}, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			h, out := t.TempDir(), t.TempDir()
			write(t, h+"/a", big, 0o644)
			write(t, h+"/b/f", "f", 0o644)
			write(t, h+"/c", "after it", 0o644)
			w := &meddler{meddle: func() { c.meddle(h) }}
			var told int64
			st, err := archive.Pack(t.Context(), w, archive.PackOptions{Home: h, OnSkip: func(string, error) { told++ }})
			must(t, err)
			if st.Skipped != c.want || told != st.Skipped.Lost() {
				t.Errorf("skipped %+v and told of %d, want %+v", st.Skipped, told, c.want)
			}
			unpack(t, w.Bytes(), archive.UnpackOptions{Home: out})
			info, err := os.Stat(out + "/a")
			must(t, err)
			if info.Size() != c.size {
				t.Errorf("a has %d bytes, want %d", info.Size(), c.size)
			}
			if b, err := os.ReadFile(out + "/c"); string(b) != "after it" {
				t.Errorf("what follows holds %q, %v", b, err)
			}
		})
	}
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

func TestPackErrors(t *testing.T) {
	t.Parallel()
	h := nastyHome(t)
	broken := errors.New("broken pipe")
	if _, err := archive.Pack(t.Context(), failingWriter{broken}, archive.PackOptions{Home: h}); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := archive.Pack(ctx, io.Discard, archive.PackOptions{Home: h}); !errors.Is(err, cause) {
		t.Errorf("a context that ended: %v", err)
	}
	if _, err := archive.Pack(t.Context(), io.Discard, archive.PackOptions{Home: h + "/none-such"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no home: %v", err)
	}
	for name, o := range map[string]archive.PackOptions{
		"relative home":    {Home: "home"},
		"relative path":    {Home: h, Paths: []string{"srv"}},
		"path in the home": {Home: h, Paths: []string{h + "/x/../empty"}},
		"path above":       {Home: h, Paths: []string{filepath.Dir(h)}},
		"everything":       {Home: h, Paths: []string{"/"}},
		"bad pattern":      {Home: h, Exclude: []string{"a//b"}},
	} {
		if _, err := archive.Pack(t.Context(), io.Discard, o); !errors.Is(err, archive.ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
