package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/checkpoint/checkpointtest"
)

func openStore(t testing.TB, dir string) *checkpoint.FileStore {
	t.Helper()
	s, err := checkpoint.NewFileStore(dir, checkpoint.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// files returns all that lies below dir, except for directories above another
// entry.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		if d.IsDir() {
			if entries, err := os.ReadDir(p); err != nil || len(entries) > 0 {
				return err
			}
		}
		rel, _ := filepath.Rel(dir, p)
		out = append(out, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFileStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, func(t *testing.T) checkpointtest.Fixture {
		dir := filepath.Join(t.TempDir(), "checkpoints")
		s := openStore(t, dir)
		return checkpointtest.Fixture{
			Store: s,
			Damage: func(t *testing.T, ref, kind string) {
				damage(t, filepath.Join(dir, ref), kind)
			},
			Left: func(t *testing.T) []string {
				refs, err := s.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return slices.DeleteFunc(files(t, dir), func(f string) bool { return slices.Contains(refs, f) })
			},
		}
	})
}

func damage(t *testing.T, file, kind string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	switch kind {
	case checkpointtest.Truncate:
		b = b[:len(b)/2]
	case checkpointtest.Empty:
		b = nil
	case checkpointtest.Flip:
		b[len(b)/2] ^= 1
	case checkpointtest.Delete:
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		return
	default:
		t.Fatalf("unknown damage %q", kind)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Every single flipped byte and every cut of a small checkpoint is found.
func TestEveryDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir)
	st, err := s.Put(t.Context(), checkpointtest.Meta(1, 1, 1), bytes.NewReader(checkpointtest.Tar(t, []byte("content"))))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, st.Ref)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, at int, b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(t.Context(), st.Ref, st.SHA256); !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("%s at %d of %d: Verify: %v", what, at, len(whole), err)
		}
		rc, err := s.Open(t.Context(), st.Ref)
		if err != nil {
			if !errors.Is(err, checkpoint.ErrDamaged) {
				t.Errorf("%s at %d: Open: %v", what, at, err)
			}
			return
		}
		defer rc.Close()
		got, err := io.ReadAll(rc)
		if err == nil && !bytes.Equal(got, checkpointtest.Tar(t, []byte("content"))) {
			t.Errorf("%s at %d of %d: read %d other bytes without an error", what, at, len(whole), len(got))
		}
		if err != nil && !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("%s at %d: reading: %v", what, at, err)
		}
	}
	check("comment", 0, []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"))
	for i := range whole {
		check("cut", i, whole[:i])
		flipped := slices.Clone(whole)
		flipped[i] ^= 0x10
		check("flip", i, flipped)
	}
}

func TestFileStorePermissions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	s := openStore(t, dir)
	if _, err := s.Put(t.Context(), checkpointtest.Meta(1, 1, 1), bytes.NewReader(checkpointtest.Tar(t, nil))); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Any tar and zstd open a checkpoint.
func TestPlainToolsOpenIt(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Skip("zstd is not installed")
	}
	dir := t.TempDir()
	s := openStore(t, dir)
	st, err := s.Put(t.Context(), checkpointtest.Meta(1, 1, 1), bytes.NewReader(checkpointtest.Tar(t, []byte("content"))))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tar", "--use-compress-program=zstd", "-xOf", filepath.Join(dir, st.Ref), "home/file").Output()
	if err != nil || string(out) != "content" {
		t.Fatalf("tar extracts %q, %v", out, err)
	}
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("NOT TESTED: a full disk. Mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := openStore(t, dir)
	small := checkpointtest.Tar(t, []byte("small"))
	kept, err := s.Put(t.Context(), checkpointtest.Meta(1, 1, 1), bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte{})
	rng.Read(noise)
	_, err = s.Put(t.Context(), checkpointtest.Meta(1, 2, 2), bytes.NewReader(checkpointtest.Tar(t, noise)))
	if !errors.Is(err, checkpoint.ErrFull) {
		t.Fatalf("Put on a full disk: %v, want %v", err, checkpoint.ErrFull)
	}
	if got := files(t, dir); !slices.Equal(got, []string{kept.Ref}) {
		t.Errorf("the store holds %q, want only %q", got, kept.Ref)
	}
	if err := s.Verify(t.Context(), kept.Ref, kept.SHA256); err != nil {
		t.Errorf("the checkpoint that was there: %v", err)
	}
	if _, err := s.Put(t.Context(), checkpointtest.Meta(1, 2, 3), bytes.NewReader(small)); err != nil {
		t.Errorf("Put after the failed one: %v", err)
	}
}

// The memory of storing and of reading does not grow with the home.
func TestMemoryBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 300 MB")
	}
	const size = 300 << 20
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(home, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(dir, "store"))

	allocated := func(what string, most uint64, f func()) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s of a home of %d MiB allocates %.1f MiB in all", what, size>>20, float64(got)/(1<<20))
		if got > most {
			t.Errorf("%s allocates %d bytes, more than %d", what, got, most)
		}
	}
	var st checkpoint.Stored
	allocated("pack and store", 64<<20, func() {
		st, _, err = checkpoint.Take(t.Context(), s, packing(home), checkpointtest.Meta(1, 1, 1))
		if err != nil {
			t.Fatal(err)
		}
	})
	allocated("verify", 8<<20, func() {
		if err := s.Verify(t.Context(), st.Ref, st.SHA256); err != nil {
			t.Fatal(err)
		}
	})
	allocated("open and unpack", 64<<20, func() {
		rc, err := s.Open(t.Context(), st.Ref)
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		if _, err := archive.Unpack(t.Context(), rc, archive.UnpackOptions{Home: filepath.Join(dir, "out")}); err != nil {
			t.Fatal(err)
		}
	})
}

// packing is a source that packs a home in this process.
func packing(home string) checkpoint.Source {
	return func(ctx context.Context) (io.ReadCloser, error) {
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := archive.Pack(ctx, w, archive.PackOptions{Home: home})
			w.CloseWithError(err)
		}()
		return waiting{r, done}, nil
	}
}

// waiting waits at its close for the goroutine that writes.
type waiting struct {
	*io.PipeReader
	done chan struct{}
}

func (w waiting) Close() error {
	err := w.PipeReader.Close()
	<-w.done
	return err
}

func TestListLeavesForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir)
	for _, f := range []string{"README", "a_000000000001/s_000000000001/notes.txt"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := checkpoint.Sweep(t.Context(), s, nil); err != nil || len(removed) > 0 {
		t.Errorf("Sweep removed %q, %v", removed, err)
	}
	if got := strings.Join(files(t, dir), " "); got != "README a_000000000001/s_000000000001/notes.txt" {
		t.Errorf("left: %s", got)
	}
}
