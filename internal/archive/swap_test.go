package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/archive"
)

// then is a reader that is empty and does something when it is reached.
type then struct{ do func() }

func (r then) Read([]byte) (int, error) {
	r.do()
	return 0, io.EOF
}

// Somebody in the sandbox swaps a directory for a link that leads out, after
// the directory was unpacked and before it is used again.
func TestSwappedDirectories(t *testing.T) {
	t.Parallel()
	first := []*tar.Header{dir("home"), dir("home/d"), file("home/d/1"), dir("home/e"), file("home/e/1")}
	const firstBytes = 5*512 + 2*512 // five headers, two contents
	for name, second := range map[string][]*tar.Header{
		"a file in it":       {file("home/d/2")},
		"a directory in it":  {dir("home/d/sub"), file("home/d/sub/f")},
		"an implied one":     {file("home/d/sub/f")},
		"a link to its file": {link("home/l", "home/d/1")},
		"a symbolic link":    {symlink("home/d/s", "x")},
		"a fifo":             {{Name: "home/d/p", Typeflag: tar.TypeFifo}},
		"its mode and time":  {},
	} {
		base := t.TempDir()
		h, outside := base+"/home", base+"/outside"
		write(t, outside+"/1", "untouched", 0o600)
		must(t, unix.Chmod(outside, 0o711))
		before := snapshot(t, outside)
		b := build(t, append(first[:len(first):len(first)], second...)...)
		swap := func() {
			must(t, os.Rename(h+"/d", h+"/was-d"))
			must(t, os.Symlink(outside, h+"/d"))
		}
		r := io.MultiReader(bytes.NewReader(b[:firstBytes]), then{swap}, bytes.NewReader(b[firstBytes:]))
		_, err := archive.Unpack(t.Context(), r, archive.UnpackOptions{Home: h})
		if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: Unpack through a link: %v", name, err)
		}
		if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
			t.Errorf("%s: what lies outside changed:\n%s", name, diff)
		}
	}
}

// The same while the old home is emptied cannot be timed from outside; a home
// that is full of links that lead out is the next best.
func TestPackStaysInside(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	write(t, base+"/outside/f", "secret", 0o600)
	write(t, base+"/home/a", "big "+string(make([]byte, 1<<20)), 0o600)
	write(t, base+"/home/b/f", "x", 0o600)
	must(t, os.Symlink("../outside", base+"/home/c"))
	w := &meddler{meddle: func() {
		must(t, os.RemoveAll(base+"/home/b"))
		must(t, os.Symlink("../outside", base+"/home/b"))
	}}
	st, err := archive.Pack(t.Context(), w, archive.PackOptions{Home: base + "/home"})
	must(t, err)
	if st.Files != 3 || bytes.Contains(w.Bytes(), []byte("secret")) {
		t.Errorf("packed %+v", st)
	}
}
