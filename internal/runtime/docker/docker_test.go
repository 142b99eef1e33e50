package docker_test

import (
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/docker"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDocker(change func(*docker.Options)) runtimetest.New {
	return func(t *testing.T, cfg runtimetest.Config) runtime.Runtime {
		t.Helper()
		opts := docker.Options{
			Instance: cfg.Instance, StateDir: cfg.StateDir, Binary: cfg.Binary,
			Network: "none", Log: zaptest.NewLogger(t),
		}
		if change != nil {
			change(&opts)
		}
		d, err := docker.New(opts)
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		return d
	}
}

func rootDir(runtime.Info) string { return "/root" }

// TestConformance runs over the mounted socket, which auto must have chosen.
func TestConformance(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	runtimetest.Run(t, newDocker(nil), runtimetest.Options{
		Binary: runtimetest.Standin(t), Image: image, Dir: rootDir, Parallel: true,
	})
}

// TestConformanceExec runs over exec, with nothing shared with the host.
func TestConformanceExec(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	exec := func(o *docker.Options) { o.Transport = docker.TransportExec }
	runtimetest.Run(t, newDocker(exec), runtimetest.Options{
		Binary: runtimetest.Standin(t), Image: image, Dir: rootDir, Parallel: true, Many: 6,
	})
}
