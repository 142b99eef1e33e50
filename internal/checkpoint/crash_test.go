//go:build failpoint

package checkpoint_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/checkpoint/checkpointtest"
	"github.com/alineod/alineod/internal/failpoint"
)

const crashEnv = "CHECKPOINT_TEST_CRASH"

// TestCrash kills a process at the two points of a Put. What it leaves has no
// event, so the boot's sweep removes it; what stands under a final reference
// is whole.
func TestCrash(t *testing.T) {
	content := checkpointtest.Tar(t, bytes.Repeat([]byte("x"), 1<<20))
	if dir := os.Getenv(crashEnv); dir != "" {
		_, err := openStore(t, dir).Put(t.Context(), checkpointtest.Meta(1, 1, 1), bytes.NewReader(content))
		t.Fatalf("Put came back: %v", err)
	}
	for _, point := range []string{"checkpoint.written", "checkpoint.renamed"} {
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), crashEnv+"="+dir, failpoint.Env+"="+point)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: the process was not killed: %v\n%s", point, err, out)
		}
		s := openStore(t, dir)
		refs, err := s.List(t.Context())
		if err != nil || len(refs) != 1 {
			t.Fatalf("%s: the store lists %q, %v", point, refs, err)
		}
		rc, err := s.Open(t.Context(), refs[0])
		switch point {
		case "checkpoint.written":
			if !errors.Is(err, checkpoint.ErrInvalid) {
				t.Errorf("%s: an unfinished archive can be opened: %v", point, err)
			}
		default:
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			rc.Close()
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s: what has its final name is not whole: %d bytes, %v", point, len(got), err)
			}
		}
		if removed, err := checkpoint.Sweep(t.Context(), s, nil); err != nil || len(removed) != 1 {
			t.Errorf("%s: Sweep removed %q, %v", point, removed, err)
		}
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("%s: left behind: %q", point, left)
		}
	}
}
