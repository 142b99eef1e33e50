package archive_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/archive"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, name, content string, mode uint32) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(content), 0o600))
	must(t, unix.Chmod(name, mode))
}

func pack(t testing.TB, o archive.PackOptions) ([]byte, archive.Stats) {
	t.Helper()
	var b bytes.Buffer
	st, err := archive.Pack(t.Context(), &b, o)
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	verified, err := archive.Verify(t.Context(), bytes.NewReader(b.Bytes()), archive.Limits{})
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if verified.Files != st.Files || verified.Dirs != st.Dirs || verified.Bytes != st.Bytes {
		t.Errorf("Pack counts %+v, Verify %+v", st, verified)
	}
	return b.Bytes(), st
}

func unpack(t testing.TB, tar []byte, o archive.UnpackOptions) archive.Stats {
	t.Helper()
	st, err := archive.Unpack(t.Context(), bytes.NewReader(tar), o)
	if err != nil {
		t.Fatalf("Unpack: %v", err)
	}
	return st
}

// acl is an access control list of user 1234 with rwx, as the kernel
// stores it: version 2, then tag, permissions and id of each entry.
func acl() []byte {
	b := []byte{2, 0, 0, 0}
	entry := func(tag, perm uint16, id uint32) {
		b = append(b, byte(tag), byte(tag>>8), byte(perm), byte(perm>>8), byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	entry(0x01, 6, 1<<32-1)
	entry(0x02, 7, 1234)
	entry(0x04, 4, 1<<32-1)
	entry(0x10, 7, 1<<32-1)
	entry(0x20, 0, 1<<32-1)
	return b
}

// capNetRaw is security.capability with cap_net_raw, version 2.
var capNetRaw = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// nastyHome makes a home of all that is hard to bring back. As root it has
// owners, capabilities and access control lists too.
func nastyHome(t testing.TB) string {
	t.Helper()
	h := filepath.Join(t.TempDir(), "home")
	root := os.Geteuid() == 0
	write(t, h+"/empty", "", 0o644)
	write(t, h+"/secret", "key", 0o400)
	write(t, h+"/none", "nobody may", 0o000)
	write(t, h+"/setuid", "x", 0o4755)
	write(t, h+"/setgid", "x", 0o2755)
	write(t, h+"/big", strings.Repeat("0123456789abcdef", 64<<10), 0o644)
	write(t, h+"/block", strings.Repeat("b", 512), 0o644)
	write(t, h+"/unicode/ünïcödé ☃/\U0001F600", "smile", 0o644)
	write(t, h+"/unicode/latin1-\xe9\xff", "not UTF-8", 0o644)
	write(t, h+"/odd/new\nline", "x", 0o644)
	write(t, h+"/odd/equals=a b\t'\"\\", "x", 0o644)
	write(t, h+"/odd/-rf *", "x", 0o644)
	write(t, h+"/odd/...", "x", 0o644)
	long := strings.Repeat("n", 255)
	write(t, h+"/"+long+"/"+long, "long", 0o644)
	must(t, os.MkdirAll(h+"/dirs/sticky", 0o755))
	must(t, unix.Chmod(h+"/dirs/sticky", 0o1777))
	must(t, os.MkdirAll(h+"/dirs/empty", 0o700))
	must(t, os.Symlink("/etc/passwd", h+"/links-out"))
	must(t, os.Symlink("../../../..", h+"/climbs"))
	must(t, os.Symlink(strings.Repeat("t/", 1000)+"x", h+"/long-target"))
	must(t, os.Symlink("nowhere-ü", h+"/dangling"))
	must(t, os.Link(h+"/big", h+"/dirs/hard"))
	must(t, os.Link(h+"/big", h+"/zz-hard"))
	must(t, unix.Mkfifo(h+"/fifo", 0o640))
	must(t, os.Link(h+"/fifo", h+"/zz-fifo"))
	sparse(t, h+"/sparse/middle", 8<<20, 1<<20, 5<<20)
	sparse(t, h+"/sparse/begin", 4<<20, 0)
	sparse(t, h+"/sparse/hole", 3<<20+17)
	sparse(t, h+"/sparse/end", 4<<20+100, 4<<20)
	sparse(t, h+"/sparse/"+strings.Repeat("s", 200), 4<<20, 1<<20)
	must(t, unix.Setxattr(h+"/empty", "user.note", []byte("a\x00b=c\nd"), 0))
	must(t, unix.Setxattr(h+"/empty", "user.empty", nil, 0))
	must(t, unix.Setxattr(h+"/dirs", "user.a=b%3D%", []byte("dir"), 0))
	must(t, unix.Setxattr(h+"/sparse/middle", "user.sparse", []byte("yes"), 0))
	if root {
		must(t, os.Lchown(h+"/big", 1234, 5678))
		must(t, os.Lchown(h+"/dangling", 3_000_000, 4_000_000))
		must(t, os.Lchown(h+"/dirs/empty", 4_000_000_000, 65534))
		must(t, os.Lchown(h+"/fifo", 7, 8))
		must(t, os.Lchown(h+"/setuid", 1000, 1000))
		must(t, unix.Chmod(h+"/setuid", 0o6711))
		must(t, unix.Setxattr(h+"/block", "security.capability", capNetRaw, 0))
		must(t, unix.Setxattr(h+"/odd/...", "system.posix_acl_access", acl(), 0))
		must(t, unix.Setxattr(h+"/odd", "system.posix_acl_default", acl(), 0))
	}
	times := map[string]time.Time{
		"empty":       time.Unix(0, 0),
		"secret":      time.Unix(-5, 250_000_000),
		"block":       time.Unix(1<<33, 1),
		"dangling":    time.Unix(1_000_000_000, 123_456_789),
		"fifo":        time.Unix(1_500_000_000, 500_000_000),
		"dirs/sticky": time.Unix(1_234_567_890, 987_654_321),
		"dirs":        time.Unix(1_111_111_111, 111_111_111),
	}
	for name, at := range times {
		ts := []unix.Timespec{{}, unix.NsecToTimespec(at.UnixNano())}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, h+"/"+name, ts, unix.AT_SYMLINK_NOFOLLOW))
	}
	must(t, unix.UtimesNano(h, []unix.Timespec{{}, {Sec: 1_700_000_000, Nsec: 42}}))
	return h
}

func sparse(t testing.TB, name string, size int64, data ...int64) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(size))
	for _, off := range data {
		_, err := f.WriteAt([]byte("data at "+fmt.Sprint(off)), off)
		must(t, err)
	}
}

// snapshot describes all that lies at and below dir, in a way that has nothing
// to do with the package under test.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	names := map[uint64]string{} // inode to its first name
	must(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		d := fmt.Sprintf("mode %o owner %d:%d mtime %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if _, ok := names[st.Ino]; !ok {
				names[st.Ino] = rel
			}
			d += " links with " + names[st.Ino]
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			must(t, err)
			d += " to " + target
		case unix.S_IFREG:
			d += fmt.Sprintf(" size %d hash %x", st.Size, hash(t, p))
			if st.Blocks*512 < st.Size {
				d += " sparse"
			}
			fallthrough
		case unix.S_IFDIR:
			d += xattrs(t, p)
		}
		out[rel] = d
		return nil
	}))
	return out
}

func hash(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return h.Sum(nil)[:8]
}

func xattrs(t testing.TB, name string) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Listxattr(name, buf)
	must(t, err)
	list := strings.Split(string(buf[:n]), "\x00")
	slices.Sort(list)
	var out strings.Builder
	for _, x := range list[1:] {
		v := make([]byte, 64<<10)
		n, err := unix.Getxattr(name, x, v)
		must(t, err)
		fmt.Fprintf(&out, " %s=%q", x, v[:n])
	}
	return out.String()
}
