package archive_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/archive"
)

const unprivilegedEnv = "ARCHIVE_TEST_UNPRIVILEGED"

// TestUnprivileged unpacks as nobody what root packed, twice, and packs it.
func TestUnprivileged(t *testing.T) {
	if dir := os.Getenv(unprivilegedEnv); dir != "" {
		unprivileged(t, dir)
		return
	}
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: becoming another user needs root")
	}
	base, err := os.MkdirTemp("", "unprivileged")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	must(t, os.Chmod(base, 0o777))
	h := nastyHome(t)
	write(t, h+"/closed/f", "x", 0o400)
	must(t, unix.Chmod(h+"/closed", 0o555))
	write(t, h+"/shut/inner/f", "x", 0o400)
	must(t, unix.Chmod(h+"/shut", 0o000))
	tar, _ := pack(t, archive.PackOptions{Home: h})
	must(t, os.WriteFile(base+"/tar", tar, 0o644))
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(base+"/test", self, 0o755))
	cmd := exec.Command(base+"/test", "-test.run=^TestUnprivileged$", "-test.v")
	cmd.Dir = base
	cmd.Env = append(os.Environ(), unprivilegedEnv+"="+base, "TMPDIR="+base, "GOCOVERDIR="+base)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
	// Root sees what nobody made.
	var st unix.Stat_t
	must(t, unix.Stat(base+"/out/setuid", &st))
	if st.Uid != 65534 || st.Mode&unix.S_ISUID != 0 {
		t.Errorf("setuid: owner %d, mode %o; a setuid bit was given for another owner", st.Uid, st.Mode)
	}
	must(t, unix.Stat(base+"/out/shut", &st))
	if st.Mode&0o7777 != 0 {
		t.Errorf("shut has mode %o", st.Mode)
	}
}

func unprivileged(t *testing.T, base string) {
	tar, err := os.ReadFile(filepath.Join(base, "tar"))
	must(t, err)
	out := base + "/out"
	for range 2 {
		st, err := archive.Unpack(t.Context(), bytes.NewReader(tar), archive.UnpackOptions{Home: out})
		must(t, err)
		if st.Skipped.Owners == 0 {
			t.Errorf("no owner was refused: %+v", st)
		}
	}
	var st unix.Stat_t
	must(t, unix.Lstat(out+"/dangling", &st))
	if st.Mtim.Nsec != 123_456_789 {
		t.Errorf("dangling has the time %v", st.Mtim)
	}
	must(t, unix.Stat(out+"/closed", &st))
	if st.Mode&0o7777 != 0o555 {
		t.Errorf("closed has mode %o", st.Mode)
	}
	var names []string
	packed, err := archive.Pack(t.Context(), io.Discard, archive.PackOptions{Home: out, OnSkip: func(n string, _ error) { names = append(names, n) }})
	must(t, err)
	if packed.Skipped.Unreadable != 2 { // "none" and "shut"
		t.Errorf("packing: %+v, skipped %q", packed, names)
	}
}
