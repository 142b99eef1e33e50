package local_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLocal(t *testing.T, cfg runtimetest.Config) runtime.Runtime {
	t.Helper()
	l, err := local.New(local.Options{
		Instance: cfg.Instance, StateDir: cfg.StateDir, Binary: cfg.Binary, Log: zaptest.NewLogger(t),
	})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return l
}

func homeOf(info runtime.Info) string { return filepath.Join(info.Handle, "home") }

func TestConformance(t *testing.T) {
	t.Parallel()
	runtimetest.Run(t, newLocal, runtimetest.Options{
		Binary: runtimetest.Standin(t), Dir: homeOf, Parallel: true,
	})
}
