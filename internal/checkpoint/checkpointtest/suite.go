// Package checkpointtest is the suite that every checkpoint store passes.
package checkpointtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/checkpoint"
)

// Kinds of damage.
const (
	Truncate = "truncate" // the second half is gone
	Empty    = "empty"    // all bytes are gone
	Flip     = "flip"     // one bit in the middle is another
	Delete   = "delete"   // it is not there any more
)

// Fixture is one store under test.
type Fixture struct {
	Store checkpoint.Store
	// Damage breaks what is stored under ref, behind the store's back.
	Damage func(t *testing.T, ref, kind string)
	// Left returns what lies in the store that belongs to no checkpoint that
	// List returns: files, directories, temporary things.
	Left func(t *testing.T) []string
}

// Meta returns valid metadata, the same for the same numbers.
func Meta(agent, sandbox, turn int) checkpoint.Meta {
	return checkpoint.Meta{
		AgentID:   fmt.Sprintf("a_%012x", agent),
		SandboxID: fmt.Sprintf("s_%012x", sandbox),
		TurnID:    fmt.Sprintf("t_%012x", turn),
		Turn:      turn,
	}
}

// Tar returns a valid archive with one file of that content.
func Tar(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	write := func(h *tar.Header, data []byte) {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	write(&tar.Header{Name: "home/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	write(&tar.Header{Name: "home/file", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Run runs the suite. open makes a fresh, empty store for each test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	tests := map[string]func(*testing.T, Fixture){
		"what was put comes back":     testRoundTrip,
		"a refused stream leaves nil": testRefused,
		"a stream that breaks off":    testBroken,
		"a context that ends":         testCancel,
		"metadata is checked":         testMeta,
		"references are checked":      testRefs,
		"removing":                    testRemove,
		"damage":                      testDamage,
		"many at a time":              testConcurrent,
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t))
		})
	}
}

func put(t *testing.T, s checkpoint.Store, m checkpoint.Meta, archive []byte) checkpoint.Stored {
	t.Helper()
	st, err := s.Put(t.Context(), m, bytes.NewReader(archive))
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	return st
}

func list(t *testing.T, s checkpoint.Store) []string {
	t.Helper()
	refs, err := s.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return refs
}

func read(ctx context.Context, s checkpoint.Store, ref string) ([]byte, error) {
	rc, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

func nothing(t *testing.T, f Fixture) {
	t.Helper()
	if refs := list(t, f.Store); len(refs) > 0 {
		t.Errorf("the store lists %q", refs)
	}
	if left := f.Left(t); len(left) > 0 {
		t.Errorf("the store holds %q", left)
	}
}

func testRoundTrip(t *testing.T, f Fixture) {
	first, second := Tar(t, []byte("one")), Tar(t, bytes.Repeat([]byte("two"), 1<<20))
	a := put(t, f.Store, Meta(1, 1, 7), first)
	b := put(t, f.Store, Meta(1, 1, 7), second)
	if a.Ref == b.Ref {
		t.Fatalf("two checkpoints of one turn share the reference %s", a.Ref)
	}
	if a.Files != 1 || a.Bytes <= 0 || b.Bytes <= a.Bytes {
		t.Errorf("Put answers %+v and %+v", a, b)
	}
	for _, c := range []struct {
		st   checkpoint.Stored
		want []byte
	}{{a, first}, {b, second}} {
		got, err := read(t.Context(), f.Store, c.st.Ref)
		if err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: read %d bytes, %v; stored %d", c.st.Ref, len(got), err, len(c.want))
		}
		if err := f.Store.Verify(t.Context(), c.st.Ref, c.st.SHA256); err != nil {
			t.Error(err)
		}
	}
	if err := f.Store.Verify(t.Context(), a.Ref, b.SHA256); !errors.Is(err, checkpoint.ErrDamaged) {
		t.Errorf("Verify with another hash: %v", err)
	}
	want := []string{a.Ref, b.Ref}
	slices.Sort(want)
	if got := list(t, f.Store); !slices.Equal(got, want) {
		t.Errorf("List = %q, want %q", got, want)
	}
	if left := f.Left(t); len(left) > 0 {
		t.Errorf("the store also holds %q", left)
	}
}

func testRefused(t *testing.T, f Fixture) {
	whole := Tar(t, []byte("x"))
	var climb bytes.Buffer
	w := tar.NewWriter(&climb)
	if err := w.WriteHeader(&tar.Header{Name: "home/../../etc/x", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for name, c := range map[string]struct {
		stream []byte
		want   error
	}{
		"empty":   {nil, archive.ErrMalformed},
		"garbage": {bytes.Repeat([]byte("garbage "), 4096), archive.ErrMalformed},
		"short":   {whole[:len(whole)-1024], archive.ErrMalformed},
		"longer":  {append(slices.Clone(whole), "more"...), archive.ErrMalformed},
		"climbs":  {climb.Bytes(), archive.ErrUnsafe},
	} {
		if _, err := f.Store.Put(t.Context(), Meta(1, 1, 1), bytes.NewReader(c.stream)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	nothing(t, f)
}

func testBroken(t *testing.T, f Fixture) {
	broken := errors.New("the sandbox went away")
	whole := Tar(t, bytes.Repeat([]byte("x"), 3<<20))
	r := io.MultiReader(bytes.NewReader(whole[:2<<20]), failing{broken})
	if _, err := f.Store.Put(t.Context(), Meta(1, 1, 1), r); !errors.Is(err, broken) {
		t.Errorf("Put: %v, want %v", err, broken)
	}
	nothing(t, f)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func testCancel(t *testing.T, f Fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	whole := Tar(t, bytes.Repeat([]byte("x"), 3<<20))
	r := io.MultiReader(bytes.NewReader(whole[:2<<20]), cancelling{cancel}, bytes.NewReader(whole[2<<20:]))
	if _, err := f.Store.Put(ctx, Meta(1, 1, 1), r); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v", err)
	}
	nothing(t, f)
}

// cancelling ends a context when the stream has come to it.
type cancelling struct{ cancel func() }

func (c cancelling) Read([]byte) (int, error) {
	c.cancel()
	return 0, io.EOF
}

func testMeta(t *testing.T, f Fixture) {
	for _, change := range []func(*checkpoint.Meta){
		func(m *checkpoint.Meta) { m.AgentID = "" },
		func(m *checkpoint.Meta) { m.AgentID = "a_../../etc/12345678" },
		func(m *checkpoint.Meta) { m.SandboxID = "s_short" },
		func(m *checkpoint.Meta) { m.TurnID = "7" },
		func(m *checkpoint.Meta) { m.Turn = -1 },
	} {
		m := Meta(1, 1, 1)
		change(&m)
		if _, err := f.Store.Put(t.Context(), m, bytes.NewReader(Tar(t, nil))); !errors.Is(err, checkpoint.ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	nothing(t, f)
	m := Meta(1, 1, 0)
	m.TurnID = ""
	put(t, f.Store, m, Tar(t, nil))
}

func testRefs(t *testing.T, f Fixture) {
	for _, ref := range []string{"", ".", "..", "/etc/passwd", "../x", "a_000000000001", "a_000000000001/s_000000000001/../../../x"} {
		if _, err := f.Store.Open(t.Context(), ref); err == nil {
			t.Errorf("Open(%q) succeeds", ref)
		}
		if err := f.Store.Verify(t.Context(), ref, ""); err == nil {
			t.Errorf("Verify(%q) succeeds", ref)
		}
		if err := f.Store.Remove(t.Context(), ref); !errors.Is(err, checkpoint.ErrInvalid) {
			t.Errorf("Remove(%q): %v", ref, err)
		}
	}
}

func testRemove(t *testing.T, f Fixture) {
	a := put(t, f.Store, Meta(1, 1, 1), Tar(t, []byte("a")))
	b := put(t, f.Store, Meta(1, 1, 2), Tar(t, []byte("b")))
	for range 2 {
		if err := f.Store.Remove(t.Context(), a.Ref); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Store.Open(t.Context(), a.Ref); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("Open of a removed one: %v", err)
	}
	if err := f.Store.Verify(t.Context(), b.Ref, b.SHA256); err != nil {
		t.Errorf("the other one: %v", err)
	}
	if err := f.Store.Remove(t.Context(), b.Ref); err != nil {
		t.Fatal(err)
	}
	nothing(t, f)
}

func testDamage(t *testing.T, f Fixture) {
	// Content that no compression makes small, so that the middle of what is
	// stored is content.
	noise := make([]byte, 1<<20)
	x := uint32(1)
	for i := range noise {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		noise[i] = byte(x)
	}
	for kind, want := range map[string]error{
		Truncate: checkpoint.ErrDamaged, Empty: checkpoint.ErrDamaged,
		Flip: checkpoint.ErrDamaged, Delete: checkpoint.ErrNotFound,
	} {
		st := put(t, f.Store, Meta(1, 1, 1), Tar(t, noise))
		f.Damage(t, st.Ref, kind)
		if err := f.Store.Verify(t.Context(), st.Ref, st.SHA256); !errors.Is(err, want) {
			t.Errorf("%s: Verify: %v, want %v", kind, err, want)
		}
		if _, err := read(t.Context(), f.Store, st.Ref); !errors.Is(err, want) {
			t.Errorf("%s: reading: %v, want %v", kind, err, want)
		}
	}
}

func testConcurrent(t *testing.T, f Fixture) {
	const agents, turns = 4, 8
	var wg sync.WaitGroup
	for a := range agents {
		wg.Go(func() {
			for turn := range turns {
				st, err := f.Store.Put(t.Context(), Meta(a, 1, turn), bytes.NewReader(Tar(t, []byte{byte(turn)})))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := f.Store.List(t.Context()); err != nil {
					t.Error(err)
				}
				// Each removal may leave the directory empty that the next Put
				// writes to.
				if err := f.Store.Remove(t.Context(), st.Ref); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	nothing(t, f)
}
