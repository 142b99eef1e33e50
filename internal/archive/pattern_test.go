package archive_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/archive"
)

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

func TestValidatePattern(t *testing.T) {
	t.Parallel()
	for _, p := range append(archive.DefaultExcludes(), "a", "/a", "a/", "a/b", "**/a", "a/**", "a/**/b", "*.o", "a?", "[a-c]x", `\!a`, "ü*") {
		if err := archive.ValidatePattern(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{"", "/", "//", "a//b", ".", "..", "a/../b", "./a", "!a", "a**", "**.o", "[a", `a\`, "a\x00b", strings.Repeat("a", 5000)} {
		if err := archive.ValidatePattern(p); !errors.Is(err, archive.ErrOptions) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, file string
		excluded      bool
	}{
		{"x", "x", true},
		{"x", "a/b/x", true},
		{"x", "x/below", true},
		{"x", "xx", false},
		{"/x", "x", true},
		{"/x", "a/x", false},
		{"x/", "x/below", true},
		{"x/", "x", false},
		{"a/x", "a/x", true},
		{"a/x", "b/a/x", false},
		{"*.o", "a/b.o", true},
		{"*.o", "a/.o", true},
		{"a/*", "a/b/c", true},
		{"a/*/c", "a/b/c", true},
		{"a/*/c", "a/b/b/c", false},
		{"?", "ü", true},
		{"?", "ab", false},
		{"**/x", "x", true},
		{"**/x", "a/b/x", true},
		{"a/**/x", "a/x", true},
		{"a/**/x", "a/b/c/x", true},
		{"a/**/x", "b/a/x", false},
		{"a/**", "a/x", true},
		{"a/**", "b/x", false},
		{"a/**/b/**/c", "a/1/b/2/b/3/c", true},
		{"a/**/b/**/c", "a/1/c/2/b", false},
		{"**", "a", true},
		{`\*`, "*", true},
		{`\*`, "a", false},
		{"[ab]x", "bx", true},
	} {
		h := t.TempDir()
		write(t, filepath.Join(h, c.file), "x", 0o644)
		tar, _ := pack(t, archive.PackOptions{Home: h, Exclude: []string{c.pattern}})
		out := t.TempDir()
		_, err := archive.Unpack(t.Context(), bytes.NewReader(tar), archive.UnpackOptions{Home: out})
		must(t, err)
		_, err = os.Lstat(filepath.Join(out, c.file))
		if got := errors.Is(err, os.ErrNotExist); got != c.excluded {
			t.Errorf("pattern %q excludes %q: %v, want %v", c.pattern, c.file, got, c.excluded)
		}
	}
	// "a/**" is what lies in a.
	h, out := t.TempDir(), t.TempDir()
	write(t, h+"/a/x", "x", 0o644)
	tar, _ := pack(t, archive.PackOptions{Home: h, Exclude: []string{"a/**"}})
	unpack(t, tar, archive.UnpackOptions{Home: out})
	if entries, err := os.ReadDir(out + "/a"); err != nil || len(entries) != 0 {
		t.Errorf("a holds %v, %v", entries, err)
	}
}
