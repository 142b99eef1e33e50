package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/modelserver"
	"github.com/alineod/alineod/internal/modelserver/modelservertest"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/alineod/alineod/test/images"
)

// docker runs the engine's own client, as another person would.
func docker(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// newDockerDaemon starts a daemon whose sandboxes are containers without a
// network.
func newDockerDaemon(t testing.TB, env ...string) *daemon {
	t.Helper()
	if raceDetector {
		t.Skip("containers take a static program, and the race detector makes none")
	}
	return newDaemon(t, append([]string{"ALINEOD_RUNTIME=docker", "ALINEOD_DOCKER_NETWORK=none"}, env...)...)
}

func container(sandbox string) string { return "alineo-" + sandbox }

// in runs a shell command in an agent's container.
func (d *daemon) in(agent, command string) string {
	d.t.Helper()
	v, err := d.Agent(context.Background(), agent)
	if err != nil {
		d.t.Fatal(err)
	}
	return docker(d.t, "exec", container(*v.SandboxID), "sh", "-c", command)
}

// oneContainer checks that an agent has one container, the one it claims.
func (d *daemon) oneContainer(agent string) {
	d.t.Helper()
	d.eventually("one container to be left", func(ctx context.Context) (bool, error) {
		v, err := d.Agent(ctx, agent)
		if err != nil {
			return false, err
		}
		return docker(d.t, "ps", "-a", "--filter", "label=alineo.agent="+agent, "--format", "{{.Names}}") == container(*v.SandboxID), nil
	})
}

// harnessPID is the harness's process, as its sandbox numbers it.
func (d *daemon) harnessPID(agent string) int {
	d.t.Helper()
	v, err := d.Agent(context.Background(), agent)
	if err != nil || v.SessionStats == nil {
		d.t.Fatalf("%s has no harness (%v)", agent, err)
	}
	return v.SessionStats.PID
}

// dockerLadder climbs every rung with one agent. words are the prompts in the
// language of its harness or model.
type words struct {
	hold string // waits for /tmp/gate and then says "through"
}

func (d *daemon) dockerLadder(a string, w words) {
	t := d.t
	t.Helper()
	ctx := context.Background()
	if r := d.result(a); *r.Outcome != "success" {
		t.Fatalf("first turn: %s", result(r))
	}

	turn := d.prompt(a, w.hold)
	d.inTurn(a, turn)
	d.kill()
	d.t.Log("the daemon is dead")
	d.start()
	d.in(a, "touch /tmp/gate")
	want(t, "turn over the daemon's death", result(d.result(a)), "success through")
	want(t, "rung", d.awaitRung(a, 1), "reattached")
	d.in(a, "rm /tmp/gate")

	turn = d.prompt(a, w.hold)
	d.inTurn(a, turn)
	d.in(a, "pkill -9 -f '[b]ridge serve'")
	want(t, "rung", d.awaitRung(a, 2), "resumed")
	want(t, "turn over the bridge's death", *d.result(a).Outcome, "interrupted")

	turn = d.prompt(a, w.hold)
	d.inTurn(a, turn)
	d.in(a, fmt.Sprintf("kill -9 %d", d.harnessPID(a)))
	want(t, "rung", d.awaitRung(a, 3), "resumed")
	want(t, "turn over the harness's death", *d.result(a).Outcome, "interrupted")
	want(t, "next turn", result(d.ask(a, "say still here")), "success still here")

	v, err := d.Agent(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	docker(t, "kill", container(*v.SandboxID))
	want(t, "rung", d.awaitRung(a, 4), "restarted")
	d.await(a, swarm.StateDone)
	want(t, "file", d.in(a, "cat ~/note.txt"), "kept")
	want(t, "next turn", result(d.ask(a, "say again")), "success again")

	for n := range 2 {
		v, err := d.Agent(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		docker(t, "rm", "-f", container(*v.SandboxID))
		want(t, "rung", d.awaitRung(a, 5+n), "restored")
		d.await(a, swarm.StateDone)
		want(t, "file", d.in(a, "cat ~/note.txt"), "kept")
		d.oneContainer(a)
	}
}

func TestDockerScripted(t *testing.T) {
	t.Parallel()
	image := images.Pi(t)
	for _, transport := range []string{"socket", "exec"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			d := newDockerDaemon(t, "ALINEOD_DOCKER_TRANSPORT="+transport)
			a := d.run(fmt.Sprintf(`{"harness": "scripted", "image": %q, "checkpoint": true, "env": {"TOKEN": "${ALINEOD_TEST_SECRET}"}}`, image),
				"write note.txt kept\nsay one")
			d.dockerLadder(a, words{hold: "run while [ ! -e /tmp/gate ]; do sleep 0.02; done\nsay through"})
			v := d.ask(a, "count")
			if r := result(v); !strings.HasPrefix(r, "success count: ") || r == "success count: 0" {
				t.Errorf("conversation after the restore: %s", r)
			}
			d.secretIsNotInspectable(a)
			d.settle()
		})
	}
}

// secretIsNotInspectable: resolved values reach the bridge over its socket, not
// the container's environment.
func (d *daemon) secretIsNotInspectable(agent string) {
	d.t.Helper()
	v, err := d.Agent(context.Background(), agent)
	if err != nil {
		d.t.Fatal(err)
	}
	if strings.Contains(docker(d.t, "inspect", container(*v.SandboxID)), secret) {
		d.t.Error("the container's inspection shows a secret")
	}
}

// TestDockerPause: a paused container is reattached without being thawed; one
// that is gone is restored and left paused.
func TestDockerPause(t *testing.T) {
	t.Parallel()
	image := images.Pi(t)
	d := newDockerDaemon(t)
	ctx := context.Background()
	a := d.run(fmt.Sprintf(`{"harness": "scripted", "image": %q, "checkpoint": true}`, image), "write note.txt kept\nsay one")
	d.result(a)
	turn := d.prompt(a, "run while [ ! -e /tmp/gate ]; do sleep 0.02; done\nsay through")
	d.inTurn(a, turn)
	d.in(a, "touch /tmp/ready")
	if _, err := d.Pause(ctx, a); err != nil {
		t.Fatal(err)
	}
	v := d.await(a, swarm.StatePaused)
	d.restart()
	want(t, "rung", d.awaitRung(a, 1), "reattached")
	want(t, "state", docker(t, "inspect", "-f", "{{.State.Status}}", container(*v.SandboxID)), "paused")
	if _, err := d.Unpause(ctx, a); err != nil {
		t.Fatal(err)
	}
	d.in(a, "touch /tmp/gate")
	want(t, "same turn", result(d.result(a)), "success through")
	// The turn's checkpoint may still be taken: busy is an answer to ask again.
	d.eventually("the pause to be taken", func(ctx context.Context) (bool, error) {
		_, err := d.Pause(ctx, a)
		return err == nil, nil
	})
	docker(t, "rm", "-f", container(*v.SandboxID))
	// While the engine removes it, it may still be seen as paused.
	d.eventually("the agent to be restored", func(context.Context) (bool, error) {
		return slices.Contains(d.recoveries(a), "restored"), nil
	})
	after := d.await(a, swarm.StatePaused)
	want(t, "state", docker(t, "inspect", "-f", "{{.State.Status}}", container(*after.SandboxID)), "paused")
	if _, err := d.Unpause(ctx, a); err != nil {
		t.Fatal(err)
	}
	want(t, "file", result(d.ask(a, "run cat note.txt\nsay two")), "success two")
	d.settle()
}

const modelAddress = "127.0.0.1:8099"

// piImage is the image with Pi and, inside it, the scripted model server: the
// sandbox has no network. It is cached by what goes into it.
func piImage(t *testing.T) string {
	t.Helper()
	base := images.Pi(t)
	server, err := os.ReadFile(modelservertest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"modelserver": server,
		"models.json": modelserver.PiModels("http://"+modelAddress+"/v1", "$MODEL_KEY"),
		"pi": []byte(`#!/bin/sh
# Starts the model server beside Pi and waits until it listens.
case "$*" in *rpc*)
  : > /tmp/modelserver.out
  modelserver -listen ` + modelAddress + ` -log /var/log/requests.jsonl >> /tmp/modelserver.out 2>&1 < /dev/null &
  until grep -q . /tmp/modelserver.out; do sleep 0.02; done ;;
esac
exec /usr/local/bin/pi "$@"
`),
		"Dockerfile": []byte("FROM " + base + "\nCOPY modelserver /usr/local/bin/\nCOPY pi /usr/local/sbin/pi\nCOPY models.json /root/.pi/agent/models.json\n"),
	}
	sum := sha256.New()
	dir := t.TempDir()
	for _, name := range []string{"Dockerfile", "models.json", "modelserver", "pi"} {
		sum.Write(files[name])
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tag := fmt.Sprintf("alineo-test/pi-model:%x", sum.Sum(nil)[:6])
	if exec.Command("docker", "image", "inspect", tag).Run() == nil {
		return tag
	}
	cmd := exec.Command("docker", "build", "--network", "none", "-t", tag, dir)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", tag, err, out)
	}
	return tag
}

// TestDockerPi is the ladder with the real Pi.
func TestDockerPi(t *testing.T) {
	t.Parallel()
	image := piImage(t)
	d := newDockerDaemon(t)
	ctx := context.Background()
	answer, err := d.StartRun(ctx, client.RunRequest{Spec: json.RawMessage(fmt.Sprintf(
		`{"harness": "pi", "provider": "fake", "model": "fake-1", "image": %q, "checkpoint": true,
		  "env": {"MODEL_KEY": "${ALINEOD_TEST_SECRET}", "PI_OFFLINE": "1"}}`, image)), Prompt: "run echo kept > ~/note.txt\nsay one"})
	if err != nil {
		t.Fatal(err)
	}
	a := answer.RootAgentID
	want(t, "first turn", result(d.result(a)), "success one")
	tools := 0
	for _, e := range d.allEvents(answer.RunID) {
		if e.Name == ledger.ToolStarted || e.Name == ledger.ToolEnded {
			tools++
		}
	}
	want(t, "events of the tool call", tools, 2)
	d.dockerLadder(a, words{hold: "hold /tmp/gate\nsay through"})
	want(t, "turn after two restores", result(d.ask(a, "say finally")), "success finally")
	// The model got what was said before the sandboxes were lost.
	requests := strings.Split(d.in(a, "cat /var/log/requests.jsonl"), "\n")
	last := requests[len(requests)-1]
	for _, said := range []string{"echo kept", "say again", "say finally"} {
		if !strings.Contains(last, said) {
			t.Errorf("the last request to the model does not hold %q: %.500s", said, last)
		}
	}
	d.secretIsNotInspectable(a)
	d.settle()
}
