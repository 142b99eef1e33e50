package local_test

import (
	"context"
	"testing"

	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

// BenchmarkTakeUp is what a daemon's start costs here with a hundred sandboxes
// that run: find, watch and dial them.
func BenchmarkTakeUp(b *testing.B) {
	const many = 100
	opts := local.Options{Instance: runtimetest.TestInstance(), StateDir: b.TempDir(), Binary: runtimetest.Standin(b)}
	open := func() *local.Local {
		l, err := local.New(opts)
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	l := open()
	for range many {
		if _, err := l.Create(b.Context(), runtime.CreateRequest{Labels: labels()}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		again := open()
		infos, err := again.List(b.Context())
		if err != nil || len(infos) != many {
			b.Fatalf("List: %d sandboxes, %v", len(infos), err)
		}
		for _, info := range infos {
			if conn, err := again.Dial(b.Context(), info.SandboxID); err == nil {
				conn.Close()
			}
		}
		if err := again.Close(); err != nil {
			b.Fatal(err)
		}
	}
	runtimetest.Clear(context.Background(), b, l)
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
