package scripted_test

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/harnesstest"
	"github.com/alineod/alineod/internal/harness/scripted"
)

// TestMain is also the harness: the tests start their own executable, as the
// bridge starts alineod's.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == scripted.Subcommand {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := scripted.Main(ctx, os.Args[2:], os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

func newEnv(t *testing.T) *harnesstest.Env {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return &harnesstest.Env{
		Harness: scripted.Harness{},
		Launch:  harness.Launch{Self: self},
		Exec: func(ctx context.Context, args []string, env map[string]string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Dir = home
			cmd.Env = append(os.Environ(), "HOME="+home)
			for k, v := range env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			return cmd
		},
		Dialect: harnesstest.Dialect{
			Ask:          "ask May I?",
			Answered:     func(decision string) string { return "answer: " + decision },
			Fail:         "fail boom",
			Quota:        "quota fake 3600",
			Unauthorized: "unauthorized",
			Exit:         "exit 3",
			SessionFile:  filepath.Join(home, ".scripted", "sessions", "*.jsonl"),
		},
	}
}

func TestSuite(t *testing.T) {
	t.Parallel()
	harnesstest.Run(t, newEnv)
}
