// Package modelservertest builds the model server for tests that run it inside
// a sandbox.
package modelservertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build compiles the command modelserver as a static executable into a
// directory of the test and returns its path.
func Build(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "modelserver")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-o", path, "github.com/alineod/alineod/internal/modelserver/cmd/modelserver")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("building the model server: %v\n%s", err, out)
	}
	return path
}
