// Package scripted is the harness that needs no model and no key. It is built
// into the binary and obeys its prompts line by line; it is there for trying
// alineod out, for demonstrations, tests and load.
//
// Its process is `alineod scripted-harness`. It keeps its conversation in
// $HOME/.scripted/sessions/ID.jsonl and continues it when told to.
//
// # Commands
//
//	say TEXT        says TEXT
//	run COMMAND     runs COMMAND with sh in the working directory, as a tool call
//	write PATH TEXT writes TEXT and a newline to PATH below the home, as a tool call
//	sleep SECONDS   sleeps, as a tool call; a fraction is allowed
//	count           says "count: N", N being the messages before this prompt
//	think TEXT      thinks TEXT aloud
//	todo TEXT       notes TEXT, as a tool call
//	ask QUESTION    asks for permission, waits, says "answer: once|always|reject"
//	fail TEXT       the turn fails as by an error of the model
//	quota PROVIDER SECONDS  the turn fails: limit reached, reset in SECONDS
//	unauthorized    the turn fails as by a refused key
//	exit CODE       the process exits at once
//	flood N         sends N text deltas, says "flood: N"
//	garbage         prints lines nobody can read, says "garbage: printed"
//	anything else   says "echo: " and the line
//
// Empty lines are skipped. The last thing said is the turn's result. A turn
// that fails or is aborted drops its other lines and what is queued behind it.
//
// # Messages
//
// The conversation counts the prompt, each steering and follow-up message as
// one user message; each thing said as one assistant message; each tool call as
// two, an assistant and a tool message, stored before it begins and after it
// ended: one killed in between counts one. Thinking counts none.
package scripted

import (
	"errors"

	"github.com/alineod/alineod/internal/harness"
)

// Name is the harness's name in specs.
const Name = "scripted"

// Subcommand is the hidden command of the binary that runs Main.
const Subcommand = "scripted-harness"

// Harness implements harness.Harness.
type Harness struct{}

var _ harness.Harness = Harness{}

// Name returns "scripted".
func (Harness) Name() string { return Name }

// Trusted reports true: it does only what its prompt says.
func (Harness) Trusted() bool { return true }

// Setup returns nothing: the executable is in every sandbox already.
func (Harness) Setup(string) []harness.SetupStep { return nil }

// Launch names the executable inside the sandbox, which l.Self must tell.
func (Harness) Launch(l harness.Launch) (harness.Command, error) {
	if l.Self == "" {
		return harness.Command{}, errors.New("launching the scripted harness: path of the executable in the sandbox is not known")
	}
	args := []string{l.Self, Subcommand}
	switch {
	case l.Continue && l.SessionID != "":
		args = append(args, "--session", l.SessionID)
	case l.Continue:
		args = append(args, "--continue")
	}
	return harness.Command{Args: args}, nil
}

// NewProtocol makes the state machine of one process.
func (Harness) NewProtocol(harness.Launch) harness.Protocol {
	return &protocol{status: harness.Status{State: harness.StateStarting}, orders: map[string]bool{}, asks: map[string]bool{}}
}
