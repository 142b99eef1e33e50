package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/spf13/cobra"
)

const exitsTurn = `  0    accepted; with --wait or --follow: the turn ended with success
  1    the turn ended otherwise
  124  the turn had not ended within --timeout`

func runCommand(a *app) *cobra.Command {
	var prompt, name, key string
	var follow, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run SPEC",
		Short: "Start a run with one agent",
		Long: `Start a run whose root agent is described by SPEC, a JSON file or - for stdin,
and print the agent's id. With --wait its result is printed too; with --follow
the run's events, until the agent's turn has ended.` + exits(exitsTurn),
		Example: `  alineod run agent.json -p "say hello"
  alineod run agent.json -p "fix the tests" --follow
  echo '{"harness":"scripted"}' | alineod run - -p "run ls" --wait`,
		Args: cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVarP(&prompt, "prompt", "p", "", "the first prompt; - reads it from stdin")
	flags.StringVar(&name, "name", "", "name of the agent, instead of the spec's")
	flags.BoolVarP(&follow, "follow", "f", false, "print events until the turn has ended")
	flags.BoolVarP(&wait, "wait", "w", false, "print the turn's result when it has ended")
	flags.StringVar(&key, "idempotency-key", "", idempotencyHelp)
	flags.DurationVar(&timeout, "timeout", 0, "with --wait or --follow: wait no longer (0: for ever)")
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		if follow && wait {
			return usage("give --follow or --wait, not both")
		}
		if args[0] == "-" && prompt == "-" {
			return usage("the spec and the prompt cannot both come from stdin")
		}
		spec, err := a.readSpec(args[0], name)
		if err != nil {
			return err
		}
		if prompt, err = a.textOf(prompt); err != nil {
			return err
		}
		if (follow || wait) && prompt == "" {
			return usage("--wait and --follow need a prompt: without one there is no turn")
		}
		started, err := c.StartRun(ctx, client.RunRequest{Spec: spec, Prompt: prompt, IdempotencyKey: key})
		if err != nil {
			return err
		}
		// The run goes on whatever happens to this client from here on.
		for _, w := range started.Warnings {
			a.say("warning: %s", line(w.String()))
		}
		switch {
		case follow:
			return a.followRun(ctx, c, started, timeout)
		case wait:
			return a.waitRun(ctx, c, started, timeout)
		}
		return a.print(started, func(w io.Writer) { fmt.Fprintln(w, started.RootAgentID) })
	})
	return cmd
}

const idempotencyHelp = "the same key and request again get the first answer and do nothing more"

// startedAndEnded is the --json output of run --wait.
type startedAndEnded struct {
	swarm.StartRunAnswer
	Result swarm.ResultView `json:"result"`
}

func (a *app) waitRun(ctx context.Context, c *client.Client, started swarm.StartRunAnswer, timeout time.Duration) error {
	// With --json there is one document at the end, id and result together.
	if !a.json {
		// At once: whoever interrupts the wait needs the id.
		if _, err := fmt.Fprintln(a.out, started.RootAgentID); err != nil {
			return fmt.Errorf("writing the answer: %w", err)
		}
	}
	result, err := a.await(ctx, c, started.RootAgentID, "", timeout)
	if err != nil {
		return err
	}
	if err := a.print(startedAndEnded{started, result}, func(w io.Writer) { a.writeResult(w, result) }); err != nil {
		return err
	}
	return outcome(deref(result.Outcome))
}

func (a *app) followRun(ctx context.Context, c *client.Client, started swarm.StartRunAnswer, timeout time.Duration) error {
	var err error
	if a.json {
		err = a.printLine(started)
	} else {
		_, err = fmt.Fprintln(a.out, started.RootAgentID)
	}
	if err != nil {
		return err
	}
	return a.followTurn(ctx, c, started.RunID, started.RootAgentID, timeout)
}

// maxSpec bounds a spec in bytes. The daemon has a limit of its own.
const maxSpec = 4 << 20

// read reads a file, or stdin for "-".
func (a *app) read(name string, limit int64) ([]byte, error) {
	in := a.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage("%w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, usage("reading %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, usage("%s is larger than %d bytes", name, limit)
	}
	return data, nil
}

// readSpec reads a spec, giving it another name where one is given. What else
// is wrong with it, the daemon says: it may know fields that this client does
// not.
func (a *app) readSpec(file, name string) (json.RawMessage, error) {
	data, err := a.read(file, maxSpec)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at := data[:min(int(syntax.Offset), len(data))]
			return nil, usage("%s, line %d: %w", file, lineOf(at), err)
		}
		return nil, usage("%s: a spec is a JSON object", file)
	}
	if name == "" {
		return data, nil
	}
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	if fields["name"], err = json.Marshal(name); err != nil {
		return nil, usage("the name: %w", err)
	}
	return json.Marshal(fields)
}

func lineOf(before []byte) int { return bytes.Count(before, []byte("\n")) + 1 }

// maxText bounds, in bytes, a prompt that is read from stdin.
const maxText = 4 << 20

// textOf is an argument, or stdin for "-".
func (a *app) textOf(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	data, err := a.read("-", maxText)
	return string(bytes.TrimRight(data, "\n")), err
}
