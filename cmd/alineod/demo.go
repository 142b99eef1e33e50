package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/swarm"
)

func newDemo(a *app) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Kill a daemon under five working agents and see what holds",
		Long: `Run five scripted agents in a state directory of their own, kill the daemon in
mid-turn, start it again, destroy one sandbox, and check after each step that
nothing was lost or doubled. It needs nothing but this program, and deletes what
it made.` + exits("  0    every claim held\n  1    one did not"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, demoLimit)
			defer cancel()
			return runDemo(ctx, a.out, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the state directory")
	return cmd
}

const (
	demoAgents = 5
	demoLimit  = 2 * time.Minute // a hang must end; a run takes seconds
	demoSpec   = `{"name": "demo", "harness": "scripted", "checkpoint": true}`
	demoPause  = 20 * time.Millisecond // between two looks at the daemon
)

// demo is one run of the demonstration.
type demo struct {
	*client.Client
	out    io.Writer
	dir    string
	daemon *exec.Cmd
	ids    []string
	claims int
	broken []string
}

func runDemo(ctx context.Context, out io.Writer, keep bool) (err error) {
	dir, err := os.MkdirTemp("", "alineod-demo-")
	if err != nil {
		return err
	}
	d := &demo{out: out, dir: dir, Client: client.New("unix://"+filepath.Join(dir, "alineod.sock"), "")}
	defer func() {
		err = errors.Join(err, d.cleanUp())
		if keep {
			fmt.Fprintf(out, "The state directory is kept: %s\n", dir)
		} else {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	begin := time.Now()
	for _, step := range []func(context.Context) error{d.work, d.killDaemon, d.destroySandbox, d.verify, d.table} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if len(d.broken) > 0 {
		return fmt.Errorf("%d of %d claims did not hold: %s", len(d.broken), d.claims, strings.Join(d.broken, "; "))
	}
	fmt.Fprintf(out, "\nAll %d claims held, in %.1f s.\n", d.claims, time.Since(begin).Seconds())
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// claim notes whether something that is said to hold does.
func (d *demo) claim(holds bool, format string, args ...any) {
	d.claims++
	text, mark := fmt.Sprintf(format, args...), "  ok      "
	if !holds {
		d.broken, mark = append(d.broken, text), "  BROKEN  "
	}
	d.say("%s%s", mark, text)
}

func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "serve", "--listen", "127.0.0.1:0", "--log-level", "error")
	cmd.Env = append(os.Environ(), "ALINEOD_STATE_DIR="+d.dir, "ALINEOD_RUNTIME=local", "ALINEOD_CONFIG=")
	log, err := os.OpenFile(filepath.Join(d.dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the daemon: %w", err)
	}
	d.daemon = cmd
	return d.until(ctx, "the daemon to be ready", func(ctx context.Context) bool {
		r, err := d.Ready(ctx)
		return err == nil && r.Ready
	})
}

// until looks again and again until something holds.
func (d *demo) until(ctx context.Context, what string, holds func(context.Context) bool) error {
	tick := time.NewTicker(demoPause)
	defer tick.Stop()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// work has every agent through a first turn and into a second one.
func (d *demo) work(ctx context.Context) error {
	d.say("Starting a daemon on %s, and five agents on the local runtime.", d.dir)
	if err := d.start(ctx); err != nil {
		return err
	}
	for i := range demoAgents {
		answer, err := d.StartRun(ctx, client.RunRequest{Spec: []byte(demoSpec), Prompt: fmt.Sprintf("write note.txt agent %d was here\nsay first turn of agent %d", i, i)})
		if err != nil {
			return fmt.Errorf("starting an agent: %w", err)
		}
		d.ids = append(d.ids, answer.RootAgentID)
	}
	for i, id := range d.ids {
		if err := d.resultIs(ctx, id, fmt.Sprintf("first turn of agent %d", i)); err != nil {
			return err
		}
	}
	if err := d.checkpointed(ctx, 1); err != nil {
		return err
	}
	d.say("Each gets a longer turn: a tool call, an answer, a tool call, an answer.")
	for i, id := range d.ids {
		text := fmt.Sprintf("sleep 1\nsay half way, agent %d\nsleep 1.5\nsay second turn of agent %d", i, i)
		if _, err := d.Prompt(ctx, id, client.PromptRequest{Text: text}); err != nil {
			return fmt.Errorf("prompting an agent: %w", err)
		}
	}
	return d.until(ctx, "all agents to be in mid-turn", func(ctx context.Context) bool {
		for _, id := range d.ids {
			if a, err := d.Agent(ctx, id); err != nil || a.SessionStats == nil || a.SessionStats.Harness != "busy" {
				return false
			}
		}
		return true
	})
}

// checkpointed waits for every agent's checkpoint of a turn.
func (d *demo) checkpointed(ctx context.Context, turn int) error {
	return d.until(ctx, "the checkpoints", func(ctx context.Context) bool {
		for _, id := range d.ids {
			if a, err := d.Agent(ctx, id); err != nil || a.Checkpoint == nil || a.Checkpoint.Turn < turn {
				return false
			}
		}
		return true
	})
}

func (d *demo) resultIs(ctx context.Context, id, want string) error {
	var v swarm.ResultView
	if err := d.until(ctx, "a result", func(ctx context.Context) bool {
		var err error
		v, err = d.Result(ctx, id, time.Second)
		return err == nil && v.State == "settled"
	}); err != nil {
		return err
	}
	d.claim(v.Outcome != nil && *v.Outcome == swarm.OutcomeSuccess && v.Result != nil && *v.Result == want, "%s answered %q", id, want)
	return nil
}

// rungs lists how an agent came back, in order.
func (d *demo) rungs(ctx context.Context, id string) ([]string, error) {
	a, err := d.Agent(ctx, id)
	if err != nil {
		return nil, err
	}
	stream := d.Events(ctx, a.RunID, 0)
	stream.Comments = true
	defer stream.Close()
	var rungs []string
	for {
		e, err := stream.Next()
		if err != nil {
			return nil, err
		}
		if e.Comment == client.LiveComment {
			return rungs, nil
		}
		if e.Name == ledger.AgentRecovered {
			var p ledger.AgentRecoveredPayload
			if err := json.Unmarshal(e.Data, &p); err != nil {
				return nil, err
			}
			rungs = append(rungs, p.Rung)
		}
	}
}

// killDaemon kills the daemon in mid-turn and starts it again.
func (d *demo) killDaemon(ctx context.Context) error {
	d.say("Killing the daemon (SIGKILL) while all five are in mid-turn, and starting it again.")
	d.kill()
	if err := d.start(ctx); err != nil {
		return err
	}
	for _, id := range d.ids {
		rungs, err := d.rungs(ctx, id)
		if err != nil {
			return err
		}
		d.claim(strings.Join(rungs, " ") == "reattached", "%s was found at work and taken up again (reattached)", id)
	}
	d.say("Waiting for the turns that went on while no daemon ran.")
	for i, id := range d.ids {
		if err := d.resultIs(ctx, id, fmt.Sprintf("second turn of agent %d", i)); err != nil {
			return err
		}
		view, err := d.Transcript(ctx, id, false)
		if err != nil {
			return err
		}
		said := map[string]int{}
		for _, turn := range view.Turns {
			for _, m := range turn.Messages {
				if m.Role == "assistant" && m.Text != "" {
					said[m.Text]++
				}
			}
		}
		once := len(said) == 3
		for _, n := range said {
			once = once && n == 1
		}
		d.claim(once, "%s: each of its three answers is in the ledger once", id)
	}
	return d.checkpointed(ctx, 2)
}

// destroySandbox deletes one sandbox with everything in it.
func (d *demo) destroySandbox(ctx context.Context) error {
	victim := d.ids[0]
	before, err := d.Agent(ctx, victim)
	if err != nil {
		return err
	}
	d.say("Destroying the sandbox of %s: its processes and its directory.", victim)
	// A process that is being killed may still write into the directory.
	if err := d.until(ctx, "the sandbox to be gone", func(context.Context) bool {
		return destroy(d.dir, *before.SandboxID) == nil
	}); err != nil {
		return err
	}
	var after swarm.AgentView
	if err := d.until(ctx, "the agent to be restored", func(ctx context.Context) bool {
		after, err = d.Agent(ctx, victim)
		return err == nil && *after.SandboxID != *before.SandboxID && after.State == swarm.StateDone
	}); err != nil {
		return err
	}
	rungs, err := d.rungs(ctx, victim)
	if err != nil {
		return err
	}
	d.claim(len(rungs) > 0 && rungs[len(rungs)-1] == "restored", "%s came back in a new sandbox (restored)", victim)
	note, err := d.Exec(ctx, victim, swarm.ExecRequest{Command: []string{"cat", "note.txt"}})
	d.claim(err == nil && strings.TrimSpace(note.Stdout) == "agent 0 was here", "its file of the first turn is there")
	if _, err := d.Prompt(ctx, victim, client.PromptRequest{Text: "count"}); err != nil {
		return err
	}
	// Two prompts, three calls of a tool with their results, three answers.
	return d.resultIs(ctx, victim, "count: 11")
}

// destroy kills every process that names a sandbox on its command line and
// deletes the sandbox's directory.
func destroy(stateDir, sandbox string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), sandbox) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return os.RemoveAll(filepath.Join(stateDir, "sandboxes", sandbox))
}

// verify compares the ledger's projections with a fresh fold of its log.
func (d *demo) verify(ctx context.Context) error {
	report, err := d.VerifyLedger(ctx)
	if err != nil {
		return err
	}
	d.claim(report.OK, "the ledger's %d events and its projections agree", report.Events)
	return nil
}

func (d *demo) table(ctx context.Context) error {
	d.say("")
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSTATE\tTURNS\tCHECKPOINT OF TURN\tCAME BACK")
	for _, id := range d.ids {
		a, err := d.Agent(ctx, id)
		if err != nil {
			return err
		}
		rungs, err := d.rungs(ctx, id)
		if err != nil {
			return err
		}
		taken := "-"
		if a.Checkpoint != nil {
			taken = fmt.Sprint(a.Checkpoint.Turn)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", id, a.State, a.Turn, taken, strings.Join(rungs, ", "))
	}
	return w.Flush()
}

func (d *demo) kill() {
	if d.daemon != nil {
		_ = d.daemon.Process.Kill()
		_ = d.daemon.Wait()
		d.daemon = nil
	}
}

// cleanUp has the daemon delete its sandboxes, then ends it. It has a time of
// its own: the demonstration's may be over.
func (d *demo) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	defer d.kill()
	for _, id := range d.ids {
		if _, err := d.Stop(ctx, id, client.StopRequest{Mode: "abort"}); err != nil {
			return fmt.Errorf("ending %s: %w", id, err)
		}
	}
	return d.until(ctx, "the agents to be gone", func(ctx context.Context) bool {
		for _, id := range d.ids {
			if a, err := d.Agent(ctx, id); err != nil || a.State != swarm.StateAborted {
				return false
			}
		}
		return true
	})
}
