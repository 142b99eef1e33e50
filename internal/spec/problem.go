package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalid is the kind of every error of a spec that cannot be used. The
// error itself is an *Error.
var ErrInvalid = errors.New("invalid spec")

// Problem is one thing that is wrong.
type Problem struct {
	// Path is the field, as setup[2].run or env.TOKEN; empty for the spec as a
	// whole.
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Warning is one thing that is odd and does no harm.
type Warning = Problem

// Error is all that is wrong with a spec, in the order of its fields.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = p.String()
	}
	return ErrInvalid.Error() + ": " + strings.Join(texts, "; ")
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// UnsetVarError names every variable a spec refers to that is not set in the
// daemon's environment.
type UnsetVarError struct{ Names []string }

func (e *UnsetVarError) Error() string {
	names := make([]string, len(e.Names))
	for i, v := range e.Names {
		names[i] = "${" + v + "}"
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s is not set in the daemon's environment", names[0])
	}
	return strings.Join(names, ", ") + " are not set in the daemon's environment"
}

// findings gathers problems and warnings while a spec is read.
type findings struct {
	problems []Problem
	warnings []Warning
	// written maps a field to the older name its author used for it.
	written map[string]string
}

// key is the name under which the author wrote a field.
func (f *findings) key(field string) string {
	if old, ok := f.written[field]; ok {
		return old
	}
	return field
}

func (f *findings) problem(path, format string, args ...any) {
	f.problems = append(f.problems, Problem{path, fmt.Sprintf(format, args...)})
}

func (f *findings) warn(path, format string, args ...any) {
	f.warnings = append(f.warnings, Warning{path, fmt.Sprintf(format, args...)})
}

// has says whether a problem of that very path is known: what has the wrong
// type is not also missing.
func (f *findings) has(path string) bool {
	return slices.ContainsFunc(f.problems, func(p Problem) bool { return p.Path == path })
}

func (f *findings) err() error {
	if len(f.problems) == 0 {
		return nil
	}
	return &Error{f.problems}
}
