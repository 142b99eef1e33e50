package runtime_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/runtime"
)

func TestInitCommand(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		command runtime.InitCommand
		want    string
	}{
		{runtime.InitCommand{SandboxID: "s_1", Dir: "/d"}, "bridge init --sandbox s_1 --dir /d"},
		{
			runtime.InitCommand{SandboxID: "s_1", Dir: "/d", Home: "/h", User: "u", Workdir: "w"},
			"bridge init --sandbox s_1 --dir /d --home /h --user u --workdir w",
		},
	} {
		if diff := cmp.Diff(strings.Fields(test.want), test.command.Args()); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.command, diff)
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	var l runtime.Locks
	inside, most := 0, 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			unlock, err := l.Lock(context.Background(), "one")
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			defer unlock()
			inside++ // a race, if the lock is none
			most = max(most, inside)
			inside--
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d at once", most)
	}

	unlock, err := l.Lock(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "two")
	if err != nil {
		t.Fatalf("another name: %v", err)
	}
	other()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ended, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with an ended context: %v", err)
	}
	unlock()
	again, err := l.Lock(t.Context(), "one")
	if err != nil {
		t.Fatalf("after one gave up waiting: %v", err)
	}
	again()
}

func TestInstallBinary(t *testing.T) {
	t.Parallel()
	state, binary := t.TempDir(), filepath.Join(t.TempDir(), "alineod")
	install := func(content string) string {
		t.Helper()
		if err := os.WriteFile(binary, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		path, err := runtime.InstallBinary(state, binary)
		if err != nil {
			t.Fatalf("InstallBinary: %v", err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("installed %q, %v; want %q", got, err, content)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v; want 0755", st.Mode(), err)
		}
		return path
	}
	one := install("one")
	if again := install("one"); again != one {
		t.Errorf("the same twice: %q, %q", one, again)
	}
	two := install("two")
	if two == one {
		t.Error("another executable in the same place")
	}
	// The earlier one stays: a bridge may be running from it.
	if _, err := os.Stat(one); err != nil {
		t.Errorf("the earlier one: %v", err)
	}
	// One that was cut short is made anew.
	if err := os.Truncate(two, 1); err != nil {
		t.Fatal(err)
	}
	install("two")
	entries, err := os.ReadDir(filepath.Join(state, "bin"))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v; want the two alone", entries, err)
	}
	if _, err := runtime.InstallBinary(state, "/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no executable: %v", err)
	}
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"a": true, "setup-0a1b": true, "": false, "-a": false, "a-": false, "a--b": false, "A": false, "a/b": false,
		"a.b": false, "..": false, strings.Repeat("a", 101): false,
	} {
		if err := runtime.CheckName(name); (err == nil) != want || (err != nil && !errors.Is(err, runtime.ErrInvalid)) {
			t.Errorf("%q: %v, want allowed: %t", name, err, want)
		}
	}
}
