package pi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/harnesstest"
	"github.com/alineod/alineod/internal/harness/pi"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/modelserver"
	"github.com/alineod/alineod/internal/modelserver/modelservertest"
	"github.com/alineod/alineod/test/images"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const serverAddr = "127.0.0.1:8080"

// guard is an extension that asks before a dangerous command, as extensions
// that hold Pi back do.
const guard = `export default function (pi) {
	pi.on("tool_call", async (event, ctx) => {
		if (event.toolName !== "bash" || !event.input.command.includes("danger")) return;
		const ok = await ctx.ui.confirm("Dangerous command", event.input.command);
		if (!ok) return { block: true, reason: "not allowed" };
	});
	pi.registerCommand("hello", { description: "says hello", handler: async (_args, ctx) => ctx.ui.notify("hello", "info") });
}
`

// startContainer runs the model server in a container of the test image
// without a network and returns the container's name.
func startContainer(t *testing.T) string {
	t.Helper()
	image := images.Pi(t)
	server := modelservertest.Build(t)
	name := "alineo-test-pi-" + strings.TrimPrefix(ids.New(ids.Sandbox), "s_")
	cmd := exec.Command("docker", "run", "--rm", "--init", "--name", name, "--label", "alineo.test=pi", "--network", "none",
		"--volume", server+":/usr/local/bin/modelserver:ro", image, "modelserver", "-listen", serverAddr)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("docker run: %v", err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("docker", "rm", "--force", name).CombinedOutput(); err != nil {
			t.Errorf("docker rm: %v\n%s", err, out)
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait() // it was killed just now
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(line, "listening on ") {
		t.Fatalf("model server said %q: %v", line, err)
	}
	return name
}

// newEnv makes a home directory of its own in the container, with Pi's
// configuration for the model server.
func newEnv(t *testing.T, container string) *harnesstest.Env {
	t.Helper()
	home := fmt.Sprintf("/home/agent/%d", homes.Add(1))
	e := &harnesstest.Env{
		Harness: pi.Harness{},
		Launch:  harness.Launch{Provider: "fake", Model: "fake-1"},
		Exec: func(ctx context.Context, args []string, env map[string]string) *exec.Cmd {
			docker := []string{"exec", "--interactive", "--workdir", home, "--env", "HOME=" + home,
				"--env", "FAKE_KEY=secret", "--env", "PI_OFFLINE=1"}
			for k, v := range env {
				docker = append(docker, "--env", k+"="+v)
			}
			return exec.CommandContext(ctx, "docker", append(append(docker, container), args...)...)
		},
		Dialect: harnesstest.Dialect{
			Ask: "run echo danger\nresult",
			Answered: func(decision string) string {
				if decision == harness.DecisionReject {
					return "result: not allowed"
				}
				return "result: danger"
			},
			Fail:         `fail 400 {"error":{"message":"boom"}}`,
			Quota:        "quota",
			Unauthorized: "unauthorized",
			Exit:         "run kill -9 $PPID",
			SessionFile:  home + "/.pi/agent/sessions/*/*.jsonl",
		},
	}
	if out, err := exec.Command("docker", "exec", container, "mkdir", "-p", home+"/.pi/agent/extensions").CombinedOutput(); err != nil {
		t.Fatalf("making the home: %v\n%s", err, out)
	}
	for file, content := range map[string]string{
		"models.json":         string(modelserver.PiModels("http://"+serverAddr+"/v1", "$FAKE_KEY")),
		"settings.json":       `{"retry":{"baseDelayMs":20}}`,
		"extensions/guard.js": guard,
	} {
		e.Sh(t, "cat >"+home+"/.pi/agent/"+file+" <<'END'\n"+content+"\nEND\n")
	}
	return e
}

var homes atomic.Int64

// TestPi needs Docker. One container and one model server serve all its tests;
// each has a home directory, and a process of Pi, of its own.
func TestPi(t *testing.T) {
	t.Parallel()
	container := startContainer(t)
	harnesstest.Run(t, func(t *testing.T) *harnesstest.Env { return newEnv(t, container) })
	for name, run := range realTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newEnv(t, container))
		})
	}
}
