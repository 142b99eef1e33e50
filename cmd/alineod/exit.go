package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/spf13/cobra"
)

// Exit codes. docs/cli-output.md promises them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNoDaemon    = 3
	exitNotFound    = 4
	exitConflict    = 5
	exitTimeout     = 124 // as timeout(1)
	exitInterrupted = 130 // as a shell reports SIGINT
)

const exitCodes = `  0    done; of a turn that was waited for: success
  1    failed: the turn ended otherwise, or the daemon said no
  2    the command line, a file or a request is wrong
  3    no daemon answers
  4    no such agent, run, sandbox, checkpoint or request
  5    not possible in the present state
  124  a wait timed out
  130  interrupted`

// exits is the end of a command's help: the codes that have a meaning there.
func exits(lines string) string {
	return "\n\nExit codes:\n" + lines + "\n  Every command: see `alineod --help`."
}

// exitError ends the program with a code. Without err, nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error { return fail(exitUsage, format, args...) }

// silent ends the program with a code: what there is to say stands in the data.
func silent(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

// report prints an error and returns the exit code for it.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var own *exitError
	if errors.As(err, &own) && own.err == nil {
		return own.code
	}
	code := exitCode(err)
	// What cobra says of itself is that no command has that name.
	if code == exitFailed && own == nil && cmd != nil && !cmd.HasParent() {
		code = exitUsage
	}
	// Who interrupts a command knows that it was interrupted.
	if code == exitInterrupted {
		return code
	}
	a.complain(err)
	return code
}

func exitCode(err error) int {
	var own *exitError
	// No daemon comes before the kinds of its answers: there was none.
	switch {
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, client.ErrNoDaemon):
		return exitNoDaemon
	case errors.Is(err, client.ErrAddress), errors.Is(err, client.ErrInvalid),
		errors.Is(err, spec.ErrInvalid), errors.Is(err, config.ErrInvalid):
		return exitUsage
	case errors.Is(err, client.ErrNotFound):
		return exitNotFound
	case errors.Is(err, client.ErrConflict), errors.Is(err, ledger.ErrLocked):
		return exitConflict
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// complain prints an error as one line, and below it one line for each field
// that is wrong.
func (a *app) complain(err error) {
	var answer *client.Error
	var ours *spec.Error
	var conf *config.Error
	head, fields := err.Error(), []string(nil)
	switch {
	case errors.As(err, &answer):
		for _, f := range answer.Fields {
			fields = append(fields, f.String())
		}
	case errors.As(err, &ours):
		head = spec.ErrInvalid.Error()
		for _, f := range ours.Problems {
			fields = append(fields, f.String())
		}
	case errors.As(err, &conf):
		head = config.ErrInvalid.Error()
		for _, f := range conf.Problems {
			fields = append(fields, f.String())
		}
	}
	fmt.Fprintf(a.err, "alineod: %s\n", line(head))
	for _, f := range fields {
		fmt.Fprintf(a.err, "  %s\n", line(f))
	}
}
