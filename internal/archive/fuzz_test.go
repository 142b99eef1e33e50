package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/archive"
)

// fuzzLimits keep a fuzzed archive from filling the disk.
var fuzzLimits = archive.Limits{MaxEntries: 200, MaxBytes: 1 << 20, MaxFile: 1 << 20, MaxPath: 512}

// FuzzUnpack gives any bytes to both readers. They must agree, answer with one
// of their kinds of errors, and leave the world outside the home alone; what
// they take, a pack of the result must bring back to the same home.
func FuzzUnpack(f *testing.F) {
	for _, c := range hostile(f) {
		if len(c.tar) < 16<<10 {
			f.Add(c.tar)
		}
	}
	f.Add(build(f, dir("home"), file("home/f"), link("home/l", "home/f"), symlink("home/s", "/etc"),
		&tar.Header{Name: "home/p", Typeflag: tar.TypeFifo}, dir("root"), file("root/f")))
	f.Add(sparseTar(f, "8192", "2\n1024\n512\n8192\n0\n", 512))
	f.Add(paxRaw(f, record("SCHILY.xattr.user.a%3D", "v")+record("mtime", "-1.5")+record("path", "home/ü"), '0', 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = withChecksums(b)
		verified, err := archive.Verify(t.Context(), bytes.NewReader(b), fuzzLimits)
		known := errors.Is(err, archive.ErrMalformed) || errors.Is(err, archive.ErrTooBig) || errors.Is(err, archive.ErrUnsafe)
		if err != nil && !known {
			t.Fatalf("Verify: an error of no kind: %v", err)
		}
		base := t.TempDir()
		h, p := filepath.Join(base, "home"), filepath.Join(base, "path")
		must(t, os.Mkdir(h, 0o755))
		unpacked, unpackErr := archive.Unpack(t.Context(), bytes.NewReader(b), archive.UnpackOptions{Home: h, Paths: []string{p}, Limits: fuzzLimits})
		entries, readErr := os.ReadDir(base)
		must(t, readErr)
		for _, e := range entries {
			if e.Name() != "home" && e.Name() != "path" {
				t.Fatalf("%s appeared outside", e.Name())
			}
		}
		if err != nil {
			if unpackErr == nil {
				t.Fatalf("Unpack takes what Verify refuses: %v", err)
			}
			return
		}
		if unpackErr != nil {
			return // the file system, or a path that was not asked for
		}
		if verified.Files != unpacked.Files || verified.Bytes != unpacked.Bytes || verified.Dirs != unpacked.Dirs {
			t.Fatalf("Verify counts %+v, Unpack %+v", verified, unpacked)
		}
		before := snapshot(t, h)
		var again bytes.Buffer
		_, err = archive.Pack(t.Context(), &again, archive.PackOptions{Home: h})
		must(t, err)
		_, err = archive.Unpack(t.Context(), &again, archive.UnpackOptions{Home: h})
		must(t, err)
		for name := range before {
			if excluded(name) {
				return
			}
		}
		if diff := cmp.Diff(before, snapshot(t, h)); diff != "" {
			t.Fatalf("packed and unpacked:\n%s", diff)
		}
	})
}

// excluded says whether a name may fall to the default excludes.
func excluded(name string) bool {
	for _, p := range archive.DefaultExcludes() {
		if bytes.Contains([]byte(name), []byte(filepath.Base(p))) {
			return true
		}
	}
	return false
}

// FuzzReader compares the reader with the standard library's, on archives that
// both take.
func FuzzReader(f *testing.F) {
	f.Add(build(f, dir("home"), file("home/f"), link("home/l", "home/f")))
	f.Add(sparseTar(f, "8192", "2\n1024\n512\n8192\n0\n", 512))
	f.Add(paxRaw(f, record("path", "home/ü")+record("mtime", "1.5"), '0', 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = withChecksums(b)
		st, err := archive.Verify(t.Context(), bytes.NewReader(b), fuzzLimits)
		if err != nil {
			return
		}
		var files, dirs int64
		r := tar.NewReader(bytes.NewReader(b))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return // stricter than ours in what does not matter here
			}
			switch {
			case h.Typeflag == tar.TypeXGlobalHeader, filepath.Clean(h.Name) == ".":
			case h.Typeflag == tar.TypeDir:
				dirs++
			default:
				files++
			}
		}
		if files != st.Files || dirs != st.Dirs {
			t.Fatalf("this reader counts %d files and %d directories, the library's %d and %d", st.Files, st.Dirs, files, dirs)
		}
	})
}

// withChecksums corrects the checksum of all that looks like a header: no
// mutation would ever get past it otherwise.
func withChecksums(b []byte) []byte {
	b = bytes.Clone(b)
	for i := 0; i+512 <= len(b); i += 512 {
		if string(b[i+257:i+262]) == "ustar" {
			fixChecksum(b[i:])
		}
	}
	return b
}
