package local_test

import (
	"context"
	"testing"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

// TestPauseOfSpawning: a sandbox whose processes start others all the time can
// be frozen at any moment. A shell that waits between a vfork and the child's
// exec cannot stop before the child has gone on.
func TestPauseOfSpawning(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newLocal(t, runtimetest.Config{Instance: runtimetest.TestInstance(), StateDir: t.TempDir(), Binary: runtimetest.Standin(t)})
	t.Cleanup(func() { runtimetest.Clear(context.Background(), t, l); l.Close() })
	id := ids.New(ids.Sandbox)
	if _, err := l.Create(ctx, runtime.CreateRequest{Labels: runtime.Labels{SandboxID: id, RunID: ids.New(ids.Run), AgentID: ids.New(ids.Agent), Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	spawning := "for i in 1 2 3 4; do (while :; do /bin/true; done) >/dev/null 2>&1 & done"
	if code, err := l.Exec(ctx, id, runtime.ExecRequest{Args: []string{"sh", "-c", spawning}}); err != nil || code != 0 {
		t.Fatal(code, err)
	}
	for range 100 {
		if err := l.Pause(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := l.Unpause(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
}
