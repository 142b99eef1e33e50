//go:build failpoint

package bridge_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

// A bridge that dies between a turn's acceptance and its end knows the turn
// when it comes back, so that nobody prompts twice.
func TestFailpoints(t *testing.T) {
	for _, point := range []string{"bridge.turn-journaled", "bridge.turn-written"} {
		t.Run(point, func(t *testing.T) {
			args := newArgs(t)
			t.Setenv("ALINEOD_FAILPOINT", point)
			b := start(t, "serve", args)
			c := b.ready(t, nil)
			c.Deliver(testContext(t), bridge.Turn{ID: "t_1", Prompt: harness.Prompt{Text: "say once"}})
			<-c.Done()
			b.cmd.Wait()
			t.Setenv("ALINEOD_FAILPOINT", "")
			b.run("serve")
			c = b.connect(t)
			if h := c.Hello(); h.LastTurnID != "t_1" || h.TurnID != "" || h.Harness.State != harness.StateNone {
				t.Errorf("hello %+v", h)
			}
			if known, err := c.Deliver(testContext(t), bridge.Turn{ID: "t_1"}); err != nil || !known {
				t.Errorf("Deliver = %v, %v", known, err)
			}
		})
	}
	t.Run("bridge.boot", func(t *testing.T) {
		args := newArgs(t)
		data, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			cmd := exec.Command(self(t), roleArg, "serve", string(data))
			cmd.Env = append(os.Environ(), "ALINEOD_FAILPOINT=bridge.boot")
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("bridge ended with %v", err)
			}
		}
		b := start(t, "serve", args)
		if h := b.connect(t).Hello(); h.Head != 3 || h.Oldest != 1 {
			t.Errorf("after three boots: %+v", h)
		}
	})
}
