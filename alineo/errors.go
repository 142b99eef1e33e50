package alineo

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
)

// Kinds of errors, for errors.Is.
var (
	ErrInvalid     = swarm.ErrInvalid     // what was asked for is wrong
	ErrNotFound    = swarm.ErrNotFound    // no such agent, sandbox or checkpoint
	ErrConflict    = swarm.ErrConflict    // not possible in the agent's state
	ErrRefused     = swarm.ErrRefused     // the harness refused
	ErrUnavailable = swarm.ErrUnavailable // not just now; try again
	ErrInUse       = ledger.ErrLocked     // another program has the state directory
	ErrDiskFull    = ledger.ErrFull       // nothing of it was stored
)

// Field is one thing that is wrong with a spec.
type Field struct {
	Path    string // as resources.cpu
	Message string
}

// Error is an error that the caller can act on. It is of one Kind.
type Error struct {
	Kind    error
	Code    string // stable, as not_promptable; may be empty
	Message string
	Fields  []Field
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// wrap makes an *Error of what the swarm says, and keeps what else there is.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	var (
		of  *swarm.Error
		bad *spec.Error
	)
	switch {
	case errors.As(err, &of):
		return &Error{Kind: of.Kind, Code: of.Code, Message: doing + ": " + of.Message, Fields: fields(of.Fields)}
	case errors.As(err, &bad):
		return &Error{Kind: ErrInvalid, Code: "invalid_spec", Message: doing + ": " + bad.Error(), Fields: fields(bad.Problems)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func fields(problems []spec.Problem) []Field {
	var all []Field
	for _, p := range problems {
		all = append(all, Field{Path: p.Path, Message: p.Message})
	}
	return all
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
