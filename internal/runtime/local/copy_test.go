package local_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/runtime"
)

// TestCommitKeeps: a copy of a home directory is what the original was.
func TestCommitKeeps(t *testing.T) {
	t.Parallel()
	l := open(t, testConfig(t))
	source := create(t, l)
	home := homeOf(source)
	at := time.Date(2020, 5, 6, 7, 8, 9, 123456789, time.UTC)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(home, name) }
	must(os.Mkdir(in("locked"), 0o755))
	must(os.WriteFile(in("locked/file"), []byte("content"), 0o640))
	must(os.Chmod(in("locked/file"), 0o750|os.ModeSetuid))
	must(os.Link(in("locked/file"), in("second")))
	must(os.Symlink("locked/file", in("link")))
	must(os.Symlink("/nowhere", in("dangling")))
	must(unix.Mkfifo(in("pipe"), 0o600))
	attributes := unix.Setxattr(in("second"), "user.note", []byte("kept"), 0) == nil
	sparse, err := os.Create(in("sparse"))
	must(err)
	_, err = sparse.WriteAt([]byte("end"), 64<<20)
	must(err)
	must(sparse.Close())
	must(os.Chtimes(in("second"), at, at))
	must(os.Chtimes(in("locked"), at, at))
	must(os.Chmod(in("locked"), 0o555))

	img, err := l.Commit(t.Context(), source.SandboxID, "keeps", map[string]string{"a": "b"})
	must(err)
	info, err := l.Create(t.Context(), runtime.CreateRequest{Labels: labels(), Image: img.Ref})
	must(err)
	got := func(name string) (os.FileInfo, *syscall.Stat_t) {
		t.Helper()
		st, err := os.Lstat(filepath.Join(homeOf(info), name))
		must(err)
		return st, st.Sys().(*syscall.Stat_t)
	}
	file, fileStat := got("locked/file")
	if file.Mode() != 0o750|os.ModeSetuid || !file.ModTime().Equal(at) {
		t.Errorf("file: %v, %v", file.Mode(), file.ModTime())
	}
	if _, second := got("second"); second.Ino != fileStat.Ino {
		t.Error("two names of one file became two files")
	}
	if dir, _ := got("locked"); dir.Mode().Perm() != 0o555 || !dir.ModTime().Equal(at) {
		t.Errorf("directory: %v, %v", dir.Mode(), dir.ModTime())
	}
	for name, want := range map[string]string{"link": "locked/file", "dangling": "/nowhere"} {
		if target, err := os.Readlink(filepath.Join(homeOf(info), name)); err != nil || target != want {
			t.Errorf("%s: %q, %v", name, target, err)
		}
	}
	if pipe, _ := got("pipe"); pipe.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("pipe: %v", pipe.Mode())
	}
	if st, raw := got("sparse"); st.Size() != 64<<20+3 || raw.Blocks*512 > 1<<20 {
		t.Errorf("sparse file: %d bytes in %d blocks", st.Size(), raw.Blocks)
	}
	data, err := os.ReadFile(filepath.Join(homeOf(info), "sparse"))
	must(err)
	if !bytes.HasSuffix(data, []byte("\x00\x00end")) {
		t.Error("the end of the sparse file is not what it was")
	}
	if attributes {
		value := make([]byte, 16)
		n, err := unix.Getxattr(filepath.Join(homeOf(info), "second"), "user.note", value)
		if err != nil || string(value[:n]) != "kept" {
			t.Errorf("extended attribute: %q, %v", value[:max(n, 0)], err)
		}
	}
}

// TestHostileArchive: no archive writes outside the directory it is for.
func TestHostileArchive(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	l := open(t, cfg)
	info := create(t, l)
	outside := filepath.Join(cfg.StateDir, "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 4, Mode: 0o600}
	}
	link := func(typ byte, name, target string) *tar.Header {
		return &tar.Header{Typeflag: typ, Name: name, Linkname: target}
	}
	for name, headers := range map[string][]*tar.Header{
		"upwards":                {file("../../outside")},
		"absolute":               {file(outside)},
		"within and out":         {file("a/../../../outside")},
		"through a link":         {link(tar.TypeSymlink, "out", cfg.StateDir), file("out/outside")},
		"hard link out":          {link(tar.TypeLink, "hard", "../../../outside"), file("hard")},
		"absolute hard link":     {link(tar.TypeLink, "hard", outside), file("hard")},
		"hard link through link": {link(tar.TypeSymlink, "up", "../../.."), link(tar.TypeLink, "hard", "up/outside"), file("hard")},
		"device":                 {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
	} {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range headers {
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				io.WriteString(tw, "evil")
			}
		}
		tw.Close()
		if err := l.CopyIn(t.Context(), info.SandboxID, homeOf(info), &b); err == nil {
			t.Errorf("%s: unpacked", name)
		}
		if data, err := os.ReadFile(outside); err != nil || string(data) != "untouched" {
			t.Fatalf("%s: outside: %q, %v", name, data, err)
		}
	}
	// Nor does a link in the home lead a copy out of it.
	if err := os.Symlink(cfg.StateDir, filepath.Join(homeOf(info), "exit")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"exit/outside", outside, "../sandbox.json", "/etc"} {
		if r, err := l.CopyOut(t.Context(), info.SandboxID, path); !errors.Is(err, runtime.ErrInvalid) {
			if err == nil {
				r.Close()
			}
			t.Errorf("CopyOut of %s: %v, want ErrInvalid", path, err)
		}
	}
}
