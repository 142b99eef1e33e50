package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/archive"
)

func removeXattr(name, attr string) error { return unix.Removexattr(name, attr) }

func dir(name string) *tar.Header {
	return &tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}
}
func file(name string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}
}
func link(name, to string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}
func symlink(name, to string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func build(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		must(t, w.WriteHeader(h))
		_, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

// edit changes bytes of the first header and corrects its checksum.
func edit(t testing.TB, b []byte, at int, s string) []byte {
	t.Helper()
	b = bytes.Clone(b)
	copy(b[at:], s)
	fixChecksum(b)
	return b
}

// fixChecksum corrects the checksum of the header that b begins with.
func fixChecksum(b []byte) {
	sum := 8 * int(' ')
	for i, c := range b[:512] {
		if i < 148 || i >= 156 {
			sum += int(c)
		}
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// paxRaw is a pax header with those raw records, followed by a file.
func paxRaw(t testing.TB, records string, typ byte, size int64) []byte {
	t.Helper()
	head := edit(t, build(t, &tar.Header{Name: "p", Typeflag: tar.TypeReg, Size: int64(len(records))}), 156, "x")
	pad := make([]byte, -len(records)&511)
	h := build(t, &tar.Header{Name: "home/sparse", Typeflag: tar.TypeReg, Size: size})
	return bytes.Join([][]byte{head[:512], []byte(records), pad, edit(t, h, 156, string(typ))}, nil)
}

func record(k, v string) string {
	for n := len(k) + len(v); ; n++ {
		if s := fmt.Sprintf("%d %s=%s\n", n, k, v); len(s) == n {
			return s
		}
	}
}

func sparseTar(t testing.TB, real, sparseMap string, data int) []byte {
	t.Helper()
	rec := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
		record("GNU.sparse.name", "home/sparse") + record("GNU.sparse.realsize", real)
	body := []byte(sparseMap)
	body = append(body, make([]byte, -len(body)&511)...)
	body = append(body, bytes.Repeat([]byte("d"), data)...)
	b := paxRaw(t, rec, '0', int64(len(body)))
	copy(b[3*512:], body) // after the pax header, its records and the file's header
	return b
}

func hostile(t testing.TB) map[string]struct {
	tar  []byte
	want error
} {
	type c = struct {
		tar  []byte
		want error
	}
	h := dir("home")
	good := build(t, h, file("home/f"))
	long := strings.Repeat("a/", 20<<10)
	u, m, big := archive.ErrUnsafe, archive.ErrMalformed, archive.ErrTooBig
	return map[string]c{
		"climbs":                    {build(t, h, file("home/../x")), u},
		"climbs at the end":         {build(t, h, dir("home/..")), u},
		"climbs first":              {build(t, file("../x")), u},
		"absolute":                  {build(t, h, file("/etc/x")), u},
		"absolute home":             {build(t, file("/home/x")), u},
		"dot inside":                {build(t, h, file("home/./x")), u},
		"two slashes":               {build(t, h, file("home//x")), u},
		"elsewhere":                 {build(t, h, file("etc/x")), u},
		"looks like home":           {build(t, h, file("homer/x")), u},
		"home is a link":            {build(t, symlink("home", "/etc")), u},
		"home is a file":            {build(t, file("home")), u},
		"root is a link":            {build(t, h, symlink("root", "/")), u},
		"through a link":            {build(t, h, symlink("home/l", "/etc"), file("home/l/x")), u},
		"through a link to itself":  {build(t, h, symlink("home/l", "."), file("home/l/x")), u},
		"link then directory":       {build(t, h, symlink("home/l", "/etc"), dir("home/l")), u},
		"link then file":            {build(t, h, symlink("home/l", "/etc/x"), file("home/l")), u},
		"file as a directory":       {build(t, h, file("home/f"), file("home/f/x")), u},
		"fifo as a directory":       {build(t, h, &tar.Header{Name: "home/p", Typeflag: tar.TypeFifo}, file("home/p/x")), u},
		"directory then file":       {build(t, h, dir("home/d"), file("home/d")), u},
		"implied then file":         {build(t, h, file("home/d/x"), file("home/d")), u},
		"twice":                     {build(t, h, file("home/f"), file("home/f")), u},
		"directory twice":           {build(t, h, dir("home/d"), dir("home/d")), u},
		"hard link out":             {build(t, h, link("home/l", "/etc/passwd")), u},
		"hard link climbs":          {build(t, h, link("home/l", "home/../../etc/passwd")), u},
		"hard link to none":         {build(t, h, link("home/l", "home/f")), u},
		"hard link to itself":       {build(t, h, link("home/l", "home/l")), u},
		"hard link to a directory":  {build(t, h, dir("home/d"), link("home/l", "home/d")), u},
		"hard link through a link":  {build(t, h, symlink("home/s", "/etc"), link("home/l", "home/s/passwd")), u},
		"block device":              {build(t, h, &tar.Header{Name: "home/sda", Typeflag: tar.TypeBlock, Devmajor: 8}), u},
		"character device":          {build(t, h, &tar.Header{Name: "home/mem", Typeflag: tar.TypeChar, Devmajor: 1}), u},
		"unknown type":              {edit(t, good, 156, "Z"), m},
		"old sparse":                {edit(t, build(t, file("home/f")), 156, "S"), m},
		"empty stream":              {nil, m},
		"empty archive":             {make([]byte, 1024), m},
		"no home":                   {build(t, dir("root")), m},
		"one zero block":            {good[:len(good)-512], m},
		"no end":                    {good[:len(good)-1024], m},
		"cut in the content":        {good[:512*3-100], m},
		"cut in a header":           {good[:512*2-100], m},
		"data after the end":        {append(bytes.Clone(good), 'x'), m},
		"bad checksum":              {append([]byte("X"), good[1:]...), m},
		"garbage":                   {bytes.Repeat([]byte("\x7fgarbage"), 1000), m},
		"negative size":             {edit(t, build(t, file("home/f")), 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), m},
		"overflowing size":          {edit(t, build(t, file("home/f")), 124, "\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), m},
		"size beyond the limit":     {edit(t, build(t, file("home/f")), 124, "\x80\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00"), big},
		"directory with content":    {edit(t, build(t, dir("home")), 124, "00000001000"), m},
		"name too long":             {build(t, h, file("home/"+long+"x")), big},
		"one name too long":         {build(t, h, file("home/"+strings.Repeat("n", 256))), big},
		"link target too long":      {build(t, h, symlink("home/l", strings.Repeat("t", 20<<10))), big},
		"link without target":       {edit(t, build(t, symlink("home/l", "x")), 157, "\x00"), m},
		"owner of all ones":         {edit(t, build(t, file("home/f")), 108, "\x80\x00\x00\x00\xff\xff\xff\xff"), m},
		"pax record too short":      {paxRaw(t, "3 a\n", '0', 0), m},
		"pax record too long":       {paxRaw(t, "99 a=b\n", '0', 0), m},
		"pax record without end":    {paxRaw(t, "6 a=bb", '0', 0), m},
		"pax header beyond limit":   {edit(t, edit(t, build(t, file("p")), 156, "x"), 124, "00077777777"), big},
		"pax name with a zero":      {paxRaw(t, record("path", "home/a\x00b"), '0', 0), u},
		"pax name climbs":           {paxRaw(t, record("path", "home/../../x"), '0', 0), u},
		"pax size is no number":     {paxRaw(t, record("size", "-1"), '0', 0), m},
		"pax time is no number":     {paxRaw(t, record("mtime", "1.x"), '0', 0), m},
		"sparse 0.1":                {paxRaw(t, record("GNU.sparse.map", "0,1"), '0', 0), m},
		"sparse directory":          {paxRaw(t, record("GNU.sparse.major", "1")+record("GNU.sparse.minor", "0")+record("GNU.sparse.name", "home/d")+record("GNU.sparse.realsize", "9"), '5', 0), m},
		"sparse climbs":             {bytes.ReplaceAll(sparseTar(t, "512", "1\n0\n512\n", 512), []byte("=home/sparse"), []byte("=home/../xyz")), u},
		"sparse map overlaps":       {sparseTar(t, "2048", "2\n0\n512\n256\n512\n", 1024), m},
		"sparse map goes back":      {sparseTar(t, "2048", "2\n1024\n512\n0\n512\n", 1024), m},
		"sparse map beyond file":    {sparseTar(t, "512", "1\n512\n512\n", 512), m},
		"sparse map overflows":      {sparseTar(t, "9000000000000000000", "1\n8999999999999999999\n8999999999999999999\n", 512), big},
		"sparse map claims more":    {sparseTar(t, "2048", "1\n0\n2048\n", 512), m},
		"sparse map claims less":    {sparseTar(t, "2048", "1\n0\n512\n", 1024), m},
		"sparse map too long":       {sparseTar(t, "2048", "9999999\n0\n512\n", 512), big},
		"sparse map without number": {sparseTar(t, "2048", "\n0\n512\n", 512), m},
		"sparse map never ends":     {sparseTar(t, "2048", strings.Repeat("1", 512), 0), m},
		"sparse file beyond limit":  {sparseTar(t, "99999999999999999", "1\n0\n512\n", 512), big},
	}
}

// Every hostile archive is refused with one kind of error, by both readers,
// and nothing outside the home is touched.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	write(t, base+"/outside/f", "untouched", 0o600)
	before := snapshot(t, base+"/outside")
	for name, c := range hostile(t) {
		if _, err := archive.Verify(t.Context(), bytes.NewReader(c.tar), archive.Limits{}); !errors.Is(err, c.want) {
			t.Errorf("%s: Verify: %v, want %v", name, err, c.want)
		}
		h := base + "/" + strings.ReplaceAll(name, " ", "-")
		must(t, os.Mkdir(h, 0o755))
		if _, err := archive.Unpack(t.Context(), bytes.NewReader(c.tar), archive.UnpackOptions{Home: h, Paths: []string{base + "/path"}}); !errors.Is(err, c.want) {
			t.Errorf("%s: Unpack: %v, want %v", name, err, c.want)
		}
		must(t, os.RemoveAll(h))
	}
	must(t, os.RemoveAll(base+"/path"))
	entries, err := os.ReadDir(base)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("the archives left %v outside the homes", entries)
	}
	if diff := cmp.Diff(before, snapshot(t, base+"/outside")); diff != "" {
		t.Errorf("outside changed:\n%s", diff)
	}
}

// An archive that is refused at its first entry leaves the home as it was.
func TestChecksComeBeforeEffects(t *testing.T) {
	t.Parallel()
	for name, tar := range map[string][]byte{
		"garbage": bytes.Repeat([]byte("garbage!"), 1000), "empty": make([]byte, 10240), "no home": build(t, dir("root")), "climbs": build(t, file("home/../x")),
		"elsewhere": build(t, file("root/etc/x")),
	} {
		h := nastyHome(t)
		before := snapshot(t, h)
		if _, err := archive.Unpack(t.Context(), bytes.NewReader(tar), archive.UnpackOptions{Home: h}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if diff := cmp.Diff(before, snapshot(t, h)); diff != "" {
			t.Errorf("%s: the home changed:\n%s", name, diff)
		}
	}
}

// endless repeats a piece for ever.
type endless struct {
	piece []byte
	at    int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.piece[e.at:])
	e.at = (e.at + n) % len(e.piece)
	return n, nil
}

// many makes entries without end.
type many struct {
	t    testing.TB
	n    int
	left []byte
}

func (m *many) Read(p []byte) (int, error) {
	if len(m.left) == 0 {
		m.n++
		m.left = build(m.t, dir(fmt.Sprint("home/", m.n)))[:512]
	}
	n := copy(p, m.left)
	m.left = m.left[n:]
	return n, nil
}

func TestEndlessStreams(t *testing.T) {
	t.Parallel()
	zeros := &endless{piece: make([]byte, 1<<16)}
	huge := edit(t, build(t, file("home/f")), 124, "77777777777")[:512]
	pax := paxRaw(t, record("comment", "x"), '0', 0)[:1024]
	for name, r := range map[string]io.Reader{
		"entries":             &many{t: t},
		"a bomb":              io.MultiReader(bytes.NewReader(huge), zeros),
		"zeros at the end":    io.MultiReader(bytes.NewReader(build(t, dir("home"))), zeros),
		"global headers":      &endless{piece: edit(t, pax, 156, "g")},
		"implied entries":     bytes.NewReader(build(t, file("home/"+strings.Repeat("d/", 2000)+"f"))),
		"a file over its max": bytes.NewReader(build(t, &tar.Header{Name: "home/f", Typeflag: tar.TypeReg, Size: 2 << 20})),
	} {
		lim := archive.Limits{MaxEntries: 1000, MaxBytes: 8 << 20, MaxFile: 1 << 20}
		if name == "a bomb" {
			lim.MaxFile = 0
		}
		if _, err := archive.Verify(t.Context(), r, lim); !errors.Is(err, archive.ErrTooBig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReaderErrors(t *testing.T) {
	t.Parallel()
	good := build(t, dir("home"), file("home/f"))
	broken := errors.New("connection lost")
	_, err := archive.Verify(t.Context(), io.MultiReader(bytes.NewReader(good[:700]), failingReader{broken}), archive.Limits{})
	if !errors.Is(err, broken) || errors.Is(err, archive.ErrMalformed) {
		t.Errorf("a reader that fails: %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := archive.Verify(ctx, bytes.NewReader(good), archive.Limits{}); !errors.Is(err, cause) {
		t.Errorf("a context that ended: %v", err)
	}
	// A stream of exactly the limit is not over it.
	if _, err := archive.Verify(t.Context(), bytes.NewReader(good), archive.Limits{MaxBytes: int64(len(good))}); err != nil {
		t.Errorf("a stream at the limit: %v", err)
	}
	if _, err := archive.Verify(t.Context(), bytes.NewReader(good), archive.Limits{MaxBytes: int64(len(good)) - 1}); !errors.Is(err, archive.ErrTooBig) {
		t.Errorf("a stream beyond the limit: %v", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// A directory may come after what is in it, and need not be writable.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	closed := dir("home/a")
	closed.Mode = 0o500
	out := t.TempDir()
	unpack(t, build(t, file("home/a/b/f"), closed, dir("home"), file("home/x"), file("home/a/g")), archive.UnpackOptions{Home: out})
	if info, err := os.Stat(out + "/a"); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("a: %v, %v", info, err)
	}
	for _, f := range []string{"a/b/f", "x", "a/g"} {
		if _, err := os.Stat(out + "/" + f); err != nil {
			t.Error(err)
		}
	}
}
