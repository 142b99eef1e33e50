package harnesstest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// patience is how long anything may take before a test fails. It is a limit
// for things that hang, not a measure of speed.
const patience = time.Minute

// Process is a running process of a harness with its Protocol. It is used by
// the test's goroutine only.
type Process struct {
	Protocol harness.Protocol
	Events   []harness.Event
	Replies  map[string]harness.Reply

	t       *testing.T
	env     *Env
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	lines   chan []byte
	stderr  *syncBuffer
	turns   int // prompts that were taken
	exited  bool
	checked bool
}

// Start starts a process and waits for nothing. It is killed, and its turns
// are counted, when the test ends.
func (e *Env) Start(t *testing.T, l harness.Launch) *Process {
	t.Helper()
	l.Provider, l.Model, l.Self = e.Launch.Provider, e.Launch.Model, e.Launch.Self
	command, err := e.Harness.Launch(l)
	if err != nil {
		t.Fatalf("Launch(%+v): %v", l, err)
	}
	// The process's pid, for Kill: it may live in a namespace of its own.
	args := append([]string{"sh", "-c", `echo $$ >"$HOME/harness.pid"; exec "$@"`, "sh"}, command.Args...)
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{
		Protocol: e.Harness.NewProtocol(l), Replies: map[string]harness.Reply{}, t: t, env: e,
		cmd: e.Exec(ctx, args, command.Env), lines: make(chan []byte), stderr: &syncBuffer{},
	}
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = time.Second // a tool's process may hold stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatalf("starting %v: %v", args, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(p.lines)
		r := bufio.NewReaderSize(stdout, 1<<20)
		for {
			line, err := r.ReadBytes('\n')
			if len(line) > 0 {
				select {
				case p.lines <- line:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		p.check()
		cancel()
		<-done
		if !p.exited {
			_ = p.cmd.Wait() // it was killed just now
		}
	})
	p.do(p.Protocol.Open(), nil)
	return p
}

// do carries out what the Protocol wants done.
func (p *Process) do(out harness.Output, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("unexpected refusal: %v", err)
	}
	p.Events = append(p.Events, out.Events...)
	for _, r := range out.Replies {
		if _, twice := p.Replies[r.Order]; twice {
			p.t.Errorf("order %q was answered twice", r.Order)
		}
		p.Replies[r.Order] = r
	}
	for _, l := range out.Write {
		if bytes.ContainsRune(l, '\n') {
			p.t.Errorf("a line to be written holds a newline: %q", l)
		}
		// A process that died is noticed by the end of its output.
		_, _ = p.stdin.Write(append(l, '\n'))
	}
}

// Until takes lines of the process until cond holds.
func (p *Process) Until(what string, cond func() bool) {
	p.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !cond() {
		if p.exited {
			p.t.Fatalf("harness exited while waiting for %s\n%s", what, p.dump())
		}
		select {
		case line, open := <-p.lines:
			if open {
				p.do(p.Protocol.Line(bytes.TrimSuffix(line, []byte("\n"))), nil)
				continue
			}
			p.exited = true
			p.do(p.Protocol.Exited(exitOf(p.cmd.Wait(), p.stderr.String())), nil)
		case <-limit.C:
			p.t.Fatalf("gave up waiting for %s\n%s", what, p.dump())
		}
	}
}

func exitOf(err error, stderr string) harness.Exit {
	e := harness.Exit{Stderr: stderr}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		e.Code = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			e.Signal = "SIG" + strings.ToUpper(ws.Signal().String())
			if ws.Signal() == syscall.SIGKILL {
				e.Signal = "SIGKILL"
			}
		}
	}
	return e
}

// Ready waits for the session.
func (p *Process) Ready() *Process {
	p.t.Helper()
	p.Until("the session", func() bool { return p.Protocol.Status().State == harness.StateIdle })
	return p
}

// Prompt begins a turn.
func (p *Process) Prompt(text string) {
	p.t.Helper()
	p.PromptWith(harness.Prompt{Text: text})
}

// PromptWith begins a turn, with pictures if there are any.
func (p *Process) PromptWith(pr harness.Prompt) {
	p.t.Helper()
	out, err := p.Protocol.Prompt(pr)
	p.do(out, err)
	p.turns++
}

// Turn runs a whole turn and returns how it ended and its result.
func (p *Process) Turn(text string) (harness.TurnEnd, string) {
	p.t.Helper()
	p.Prompt(text)
	return p.Ended()
}

// Ended waits for the end of the turn in progress.
func (p *Process) Ended() (end harness.TurnEnd, result string) {
	p.t.Helper()
	p.Until("the end of the turn", func() bool { return p.count(ledger.TurnEnded) == p.turns })
	var body struct {
		Result string `json:"result"`
	}
	ev := p.last(ledger.TurnEnded)
	decode(p.t, ev.Data, &end)
	decode(p.t, ev.Body, &body)
	return end, body.Result
}

// WaitFor waits for the next event of that name after the first n events.
func (p *Process) WaitFor(name string, n int) harness.Event {
	p.t.Helper()
	var found harness.Event
	p.Until(name, func() bool {
		for _, ev := range p.Events[n:] {
			if ev.Name == name {
				found = ev
				return true
			}
		}
		return false
	})
	return found
}

// Exited waits for the end of the process.
func (p *Process) Exited() {
	p.t.Helper()
	p.Until("the end of the process", func() bool { return p.exited })
}

// Replied waits for the answer to an order and fails on a refusal.
func (p *Process) Replied(order string) {
	p.t.Helper()
	p.Until("the answer to "+order, func() bool { _, ok := p.Replies[order]; return ok })
	if r := p.Replies[order]; r.Err != "" {
		p.t.Errorf("order %s was refused: %s", order, r.Err)
	}
}

// Kill kills the harness's process with SIGKILL, and nothing else.
func (p *Process) Kill() {
	p.t.Helper()
	p.env.Sh(p.t, `kill -9 "$(cat "$HOME/harness.pid")"`)
	p.Exited()
}

// Stderr is what the process wrote to its standard error. It is complete once
// the process has exited.
func (p *Process) Stderr() string { return p.stderr.String() }

// check holds every process to what a Protocol promises, whatever was done to it.
func (p *Process) check() {
	if p.checked || p.t.Failed() {
		return
	}
	p.checked = true
	if ended := p.count(ledger.TurnEnded); ended > p.turns || p.exited && ended != p.turns {
		p.t.Errorf("%d turns, %d ends\n%s", p.turns, ended, p.dump())
	}
	for _, ev := range p.Events {
		for _, raw := range []json.RawMessage{ev.Data, ev.Body} {
			if len(raw) > 0 && !json.Valid(raw) {
				p.t.Errorf("%s carries invalid JSON: %.200q", ev.Name, raw)
			}
		}
	}
}

func (p *Process) dump() string {
	var b strings.Builder
	for _, ev := range p.Events[max(0, len(p.Events)-40):] {
		b.WriteString("  " + ev.Name + " " + clip(ev.Data) + " " + clip(ev.Body) + "\n")
	}
	return b.String() + "stderr: " + p.stderr.String()
}

func clip(raw []byte) string { return string(raw[:min(len(raw), 300)]) }
