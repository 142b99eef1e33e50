// Package images gives tests the Docker images that build.sh makes.
package images

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// RequireEnv names the variable that, set to "require", turns the skipping of Docker tests, where
// no engine answers, into a failure.
const RequireEnv = "ALINEOD_TEST_DOCKER"

// Pi returns the tag of the image that has Pi and node, and builds it first
// where the engine does not have it. Without an engine the test is skipped.
func Pi(tb testing.TB) string {
	tb.Helper()
	if out, err := exec.CommandContext(tb.Context(), "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		if os.Getenv(RequireEnv) == "require" {
			tb.Fatalf("%s=require and no Docker engine answers: %v\n%s", RequireEnv, err, out)
		}
		tb.Skipf("no Docker engine answers: %v", err)
	}
	_, self, _, _ := runtime.Caller(0)
	cmd := exec.CommandContext(tb.Context(), filepath.Join(filepath.Dir(self), "build.sh"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("building the image: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}
