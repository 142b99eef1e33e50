package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/ledger"
)

// raw runs statements on the file, as nobody should.
func raw(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func closed(t *testing.T, path string) {
	t.Helper()
	l := open(t, path, ledger.Options{})
	begin(t, l)
	provision(t, l, "s_00000001", 1)
	mustAppend(t, l, request("t_1", 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestNewerVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	closed(t, path)
	raw(t, path, "INSERT INTO schema_version VALUES (99, 0)")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open(t.Context(), path, ledger.Options{}); !errors.Is(err, ledger.ErrNewer) {
		t.Fatalf("Open: %v", err)
	}
	if _, err := ledger.VerifyFile(t.Context(), path); !errors.Is(err, ledger.ErrNewer) {
		t.Fatalf("VerifyFile: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Fatalf("the file was changed (%v)", err)
	}
}

// The newer version stands in the write-ahead log only, as after a crash.
func TestNewerVersionInTheWALIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	closed(t, path)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("INSERT INTO schema_version VALUES (99, 0)"); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "ledger.db")
	want := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} {
		if want[suffix], err = os.ReadFile(path + suffix); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied+suffix, want[suffix], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ledger.Open(t.Context(), copied, ledger.Options{}); !errors.Is(err, ledger.ErrNewer) {
		t.Fatalf("Open: %v", err)
	}
	for suffix, b := range want {
		if after, err := os.ReadFile(copied + suffix); err != nil || !bytes.Equal(b, after) {
			t.Errorf("%q was changed (%v)", suffix, err)
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, path string){
		"no database": func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"cut off": func(t *testing.T, path string) {
			if err := os.Truncate(path, 3*4096); err != nil {
				t.Fatal(err)
			}
		},
		"another program's": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			raw(t, path, "CREATE TABLE x (y)")
		},
		"without a log":     func(t *testing.T, path string) { raw(t, path, "DROP TABLE ledger") },
		"without a version": func(t *testing.T, path string) { raw(t, path, "DROP TABLE schema_version") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ledger.db")
			closed(t, path)
			damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			l, err := ledger.Open(t.Context(), path, ledger.Options{})
			if err == nil {
				l.Close()
			}
			if !errors.Is(err, ledger.ErrDamaged) {
				t.Fatalf("Open: %v", err)
			}
			if !strings.Contains(err.Error(), "alineod ledger verify") {
				t.Errorf("no hint in %q", err)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

// What a crash leaves at the end of the write-ahead log: a page that was not
// written whole, or a transaction without its end. All that was acknowledged
// before is there.
func TestTornWAL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path, ledger.Options{})
	begin(t, l)
	for i := range 20 {
		mustAppend(t, l, request(fmt.Sprintf("t_%d", i), i+1))
	}
	read := func(suffix string) []byte {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	db, acked := read(""), read("-wal")
	last := l.LastSeq()
	mustAppend(t, l, request("t_more", 21))
	more := read("-wal")[len(acked):]
	if len(more) == 0 {
		t.Fatal("the write-ahead log did not grow")
	}
	flipped := bytes.Clone(more)
	flipped[len(flipped)-100] ^= 0x40
	for name, tail := range map[string][]byte{
		"nothing":      nil,
		"half a page":  more[:2000],
		"no last page": more[:len(more)-4096],
		"zeros":        make([]byte, 5000),
		"garbage":      bytes.Repeat([]byte("garbage!"), 3000),
		"flipped":      flipped,
	} {
		t.Run(name, func(t *testing.T) {
			copied := filepath.Join(t.TempDir(), "ledger.db")
			if err := errors.Join(os.WriteFile(copied, db, 0o600),
				os.WriteFile(copied+"-wal", append(bytes.Clone(acked), tail...), 0o600)); err != nil {
				t.Fatal(err)
			}
			if r, err := ledger.VerifyFile(t.Context(), copied); err != nil || !r.OK || r.Events != last {
				t.Errorf("VerifyFile before it was opened: %+v, %v", r, err)
			}
			l := open(t, copied, ledger.Options{})
			if l.LastSeq() != last {
				t.Errorf("LastSeq %d, acknowledged was %d", l.LastSeq(), last)
			}
			mustAppend(t, l, request("t_again", 21))
			wantSound(t, l)
		})
	}
}

func TestTwoLocks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	first, err := ledger.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ledger.Lock(dir)
	var held *ledger.LockedError
	if !errors.Is(err, ledger.ErrLocked) || !errors.As(err, &held) || held.PID != os.Getpid() {
		t.Fatalf("second lock: %v", err)
	}
	if !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("no pid in %q", err)
	}
	if err := errors.Join(first.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := ledger.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		t.Errorf("the lock's file: %v", err)
	}
}

// TestLockOutlivesItsHolder: a process that a killed daemon was just starting
// holds the lock until its exec. The next daemon is not refused for that.
func TestLockOutlivesItsHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(f, dead.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	heir := exec.Command("cat") // ends with its standard input
	heir.ExtraFiles = []*os.File{f}
	end, err := heir.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	taken := make(chan error, 1)
	go func() {
		lock, err := ledger.Lock(dir)
		if err == nil {
			err = lock.Close()
		}
		taken <- err
	}()
	end.Close()
	if err := heir.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a full disk needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ledger.db")
	l, err := ledger.Open(t.Context(), path, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // before the unmount
	begin(t, l)
	stored := l.LastSeq()
	fill := func() error {
		for {
			_, err := l.Append(context.Background(), ledger.Batch{Entries: []ledger.Entry{{AgentID: agentID, Event: ledger.MessageEnded,
				Body: map[string]string{"text": strings.Repeat("x", 20_000)}}}})
			if err != nil {
				return err
			}
			stored++
		}
	}
	for round := range 2 {
		if err := fill(); !errors.Is(err, ledger.ErrFull) {
			t.Fatalf("round %d: %v", round, err)
		}
		if l.LastSeq() != stored {
			t.Fatalf("round %d: LastSeq %d, acknowledged %d", round, l.LastSeq(), stored)
		}
		if a := agent(t, l); a.AgentID != agentID {
			t.Fatal("a read failed on a full disk")
		}
		if round == 0 {
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
		}
	}
	if stored < 10 {
		t.Fatalf("only %d events were stored", stored)
	}
	wantSound(t, l)
	if err := l.Close(); err != nil {
		t.Logf("Close on a full disk: %v", err)
	}
	r, err := ledger.VerifyFile(t.Context(), path)
	if err != nil || !r.OK || r.Events != stored {
		t.Errorf("after closing: %+v, %v; acknowledged %d", r, err, stored)
	}
}
