package archive_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/archive"
)

// gnuTar runs GNU tar in a locale that leaves names alone.
func gnuTar(t testing.TB, stdin []byte, args ...string) []byte {
	t.Helper()
	out, err := exec.Command("tar", "--version").Output()
	if err != nil || !bytes.Contains(out, []byte("GNU tar")) {
		t.Skip("NOT TESTED: GNU tar is not installed")
	}
	cmd := exec.Command("tar", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		t.Fatalf("tar %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	if stderr.Len() > 0 {
		t.Logf("tar %s says: %s", args[0], stderr.Bytes())
	}
	return stdout
}

// withoutACL takes away what GNU tar stores in a form of its own.
func withoutACL(t *testing.T, home string) string {
	t.Helper()
	for _, x := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		_ = removeXattr(home+"/odd/...", x)
		_ = removeXattr(home+"/odd", x)
	}
	return home
}

func TestGNUTarExtractsWhatPackWrites(t *testing.T) {
	t.Parallel()
	h, out := withoutACL(t, nastyHome(t)), t.TempDir()
	tar, _ := pack(t, archive.PackOptions{Home: h})
	args := []string{"-xpf", "-", "-C", out, "--xattrs", "--xattrs-include=*", "--numeric-owner"}
	gnuTar(t, tar, args...)
	if diff := cmp.Diff(snapshot(t, h), snapshot(t, out+"/home")); diff != "" {
		t.Errorf("GNU tar extracts something else (-packed +extracted):\n%s", diff)
	}
}

func TestUnpackTakesWhatGNUTarWrites(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"pax":             {"--format=pax", "--xattrs", "--xattrs-include=*", "--sparse"},
		"pax, with names": {"--format=pax", "--xattrs", "--xattrs-include=*"},
		"dots":            {"--format=pax", "--xattrs", "--xattrs-include=*", "--transform=flags=r;s,^,./,"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, out := withoutACL(t, nastyHome(t)), t.TempDir()
			must(t, os.Remove(h+"/zz-fifo")) // GNU tar stores two fifos
			tar := gnuTar(t, nil, slices.Concat([]string{"-cf", "-", "-C", filepath.Dir(h)}, args, []string{"home/"})...)
			want := snapshot(t, h)
			if _, err := archive.Verify(t.Context(), bytes.NewReader(tar), archive.Limits{}); err != nil {
				t.Fatal(err)
			}
			unpack(t, tar, archive.UnpackOptions{Home: out})
			got := snapshot(t, out)
			if !slices.Contains(args, "--sparse") {
				for k := range want {
					want[k], got[k] = strings.ReplaceAll(want[k], " sparse", ""), strings.ReplaceAll(got[k], " sparse", "")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-written +unpacked:\n%s", diff)
			}
		})
	}
}

// Formats that cannot carry everything still bring back the content.
func TestUnpackTakesOlderFormats(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	h := base + "/home"
	write(t, h+"/"+strings.Repeat("long/", 60)+strings.Repeat("n", 200), "deep", 0o644)
	must(t, os.Symlink(strings.Repeat("t/", 300), h+"/link"))
	write(t, h+"/a", "a", 0o644)
	must(t, os.Link(h+"/a", h+"/b"))
	want := map[string]string{}
	for k, v := range snapshot(t, h) {
		want[k] = withoutFraction(v)
	}
	tar := gnuTar(t, nil, "-cf", "-", "--format=gnu", "-C", base, "home")
	out := t.TempDir()
	unpack(t, tar, archive.UnpackOptions{Home: out})
	got := map[string]string{}
	for k, v := range snapshot(t, out) {
		got[k] = withoutFraction(v)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-written +unpacked:\n%s", diff)
	}
}

func withoutFraction(s string) string {
	before, after, _ := strings.Cut(s, ".")
	if len(after) < 9 {
		return s
	}
	return before + after[9:]
}
