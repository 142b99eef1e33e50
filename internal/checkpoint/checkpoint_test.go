package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/checkpoint/checkpointtest"
	"github.com/alineod/alineod/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTake(t *testing.T) {
	t.Parallel()
	s := openStore(t, t.TempDir())
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "note"), []byte("remember"), 0o640); err != nil {
		t.Fatal(err)
	}
	st, took, err := checkpoint.Take(t.Context(), s, packing(home), checkpointtest.Meta(1, 1, 4))
	if err != nil {
		t.Fatal(err)
	}
	if took <= 0 || st.Files != 1 {
		t.Errorf("Take answers %+v after %v", st, took)
	}
	rc, err := s.Open(t.Context(), st.Ref)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	out := t.TempDir()
	if _, err := archive.Unpack(t.Context(), rc, archive.UnpackOptions{Home: out}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "note")); string(b) != "remember" {
		t.Errorf("the note says %q, %v", b, err)
	}
}

// silent is a sandbox that never answers: Read returns when it is closed.
type silent struct {
	reading chan struct{}
	closed  chan struct{}
}

func (s silent) Read([]byte) (int, error) {
	close(s.reading)
	<-s.closed
	return 0, os.ErrClosed
}

func (s silent) Close() error {
	close(s.closed)
	return nil
}

func TestTakeLeavesASilentSandbox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir)
	cause := errors.New("taking too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	src := silent{make(chan struct{}), make(chan struct{})}
	go func() {
		<-src.reading
		cancel(cause)
	}()
	_, _, err := checkpoint.Take(ctx, s, func(context.Context) (io.ReadCloser, error) { return src, nil }, checkpointtest.Meta(1, 1, 1))
	if !errors.Is(err, cause) {
		t.Errorf("Take: %v, want %v", err, cause)
	}
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("left behind: %q", got)
	}
}

func TestTakeSourceFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("no bridge")
	_, _, err := checkpoint.Take(t.Context(), openStore(t, t.TempDir()), func(context.Context) (io.ReadCloser, error) { return nil, broken }, checkpointtest.Meta(1, 1, 1))
	if !errors.Is(err, broken) {
		t.Errorf("Take: %v", err)
	}
}

// rows fills in what a row has by default: it is kept, under its own reference.
func rows(list ...ledger.Checkpoint) []ledger.Checkpoint {
	for i := range list {
		c := &list[i]
		if c.State == "" {
			c.State = "kept"
		}
		if c.SnapshotRef == "" {
			c.SnapshotRef = fmt.Sprintf("ref-%d", c.Turn)
		}
	}
	return list
}

func turns(list []ledger.Checkpoint) []int {
	out := []int{}
	for _, c := range list {
		out = append(out, c.Turn)
	}
	return out
}

func c(sandbox string, turn int) ledger.Checkpoint {
	return ledger.Checkpoint{SandboxID: sandbox, Turn: turn}
}

func damaged(sandbox string, turn int) ledger.Checkpoint {
	return ledger.Checkpoint{SandboxID: sandbox, Turn: turn, Damaged: "short"}
}

func pruned(sandbox string, turn int) ledger.Checkpoint {
	return ledger.Checkpoint{SandboxID: sandbox, Turn: turn, State: "pruned"}
}

func TestPrunable(t *testing.T) {
	t.Parallel()
	again := c("s2", 4)
	again.SnapshotRef = "ref-4"
	for name, tc := range map[string]struct {
		list   []ledger.Checkpoint
		retain int
		want   []int
	}{
		"none":                          {nil, 3, []int{}},
		"fewer than retained":           {rows(c("s1", 2), c("s1", 1)), 3, []int{}},
		"the fourth goes":               {rows(c("s1", 4), c("s1", 3), c("s1", 2), c("s1", 1)), 3, []int{1}},
		"pruned ones do not come again": {rows(c("s1", 5), c("s1", 4), c("s1", 3), c("s1", 2), pruned("s1", 1)), 3, []int{2}},
		"zero is the default":           {rows(c("s1", 4), c("s1", 3), c("s1", 2), c("s1", 1)), 0, []int{1}},
		"ledger order, not turn order":  {rows(c("s1", 1), c("s1", 9), c("s1", 8)), 2, []int{8}},
		"restored, no own one yet":      {rows(c("s1", 7), c("s1", 6), c("s1", 5)), 3, []int{}},
		"restored, first own one":       {rows(c("s2", 8), c("s1", 7), c("s1", 6), c("s1", 5)), 3, []int{5}},
		"restored twice, bounded":       {rows(c("s3", 9), c("s2", 8), c("s1", 7), c("s1", 6)), 3, []int{6}},
		"restored, retain one":          {rows(c("s2", 8), c("s1", 7)), 1, []int{7}},
		"a damaged one does not count":  {rows(damaged("s1", 8), c("s1", 7), c("s1", 6), c("s1", 5)), 3, []int{8}},
		"the only own one is damaged":   {rows(damaged("s2", 8), c("s1", 7), c("s1", 6), c("s1", 5)), 3, []int{8}},
		"all damaged":                   {rows(damaged("s1", 4), damaged("s1", 3), damaged("s1", 2), damaged("s1", 1)), 3, []int{1}},
		"rolled back": {rows(again, c("s1", 7), c("s1", 6), c("s1", 5), c("s1", 4)), 3,
			[]int{5}}, // 4 shares its archive with the newest
	} {
		if diff := cmp.Diff(tc.want, turns(checkpoint.Prunable(tc.list, tc.retain))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A second loss before the next turn finds the same checkpoints as the first.
func TestSecondLossLosesNothing(t *testing.T) {
	t.Parallel()
	var list []ledger.Checkpoint
	turn := 0
	for sandbox := range 6 {
		// Each sandbox lives for fewer turns than the one before; the last
		// ones die before their first.
		for range max(0, 4-sandbox) {
			turn++
			list = append(rows(c(fmt.Sprint("s", sandbox), turn)), list...)
			for _, p := range checkpoint.Prunable(list, 3) {
				i := slices.IndexFunc(list, func(c ledger.Checkpoint) bool { return c.SnapshotRef == p.SnapshotRef })
				list[i].State = "pruned"
			}
		}
		want := []int{}
		for n := turn; n > 0 && n > turn-3; n-- {
			want = append(want, n)
		}
		if diff := cmp.Diff(want, turns(checkpoint.Candidates(list))); diff != "" {
			t.Errorf("after the loss of sandbox %d (-want +got):\n%s", sandbox, diff)
		}
	}
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	again := c("s2", 4)
	list := rows(again, damaged("s1", 7), c("s1", 6), pruned("s1", 5), c("s1", 4))
	if diff := cmp.Diff([]int{4, 6, 7}, turns(checkpoint.Candidates(list))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir)
	var refs []string
	for turn := range 3 {
		st, err := s.Put(t.Context(), checkpointtest.Meta(1, turn, turn), bytes.NewReader(checkpointtest.Tar(t, nil)))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, st.Ref)
	}
	// What a daemon that was killed in the middle of a Put leaves.
	unfinished := refs[2] + ".tmp"
	if err := os.WriteFile(filepath.Join(dir, unfinished), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := checkpoint.Sweep(t.Context(), s, map[string]bool{refs[0]: true, refs[2]: true, "gone": true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{refs[1], unfinished}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{refs[0], refs[2]}, files(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
