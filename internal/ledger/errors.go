package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// ErrInvalid: an entry or batch that can never be stored: no event name, a
// payload or body that is no JSON object, or larger than MaxEntryBytes.
var ErrInvalid = errors.New("not a valid entry")

// MaxEntryBytes bounds an entry's payload and its body, each.
const MaxEntryBytes = 32 << 20

// Error is a failure of the ledger's file. errors.Is sees its Kind and its
// cause.
type Error struct {
	Op   string // what was being done
	Path string
	Kind error // one of the Err… of this package; nil when it is none of them
	Err  error
	Hint string // what to do about it
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ledger %s: %s: ", e.Path, e.Op)
	if e.Kind != nil {
		fmt.Fprintf(&b, "%v: ", e.Kind)
	}
	fmt.Fprintf(&b, "%v", e.Err)
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Unwrap gives errors.Is both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

func damaged(op, path string, err error) *Error {
	return &Error{Op: op, Path: path, Kind: ErrDamaged, Err: err,
		Hint: "run `alineod ledger verify` to see what can be read; keep a copy of the file and its -wal"}
}

// missingTable is classify for a statement on a table that every ledger has:
// that it cannot even be prepared means damage.
func missingTable(op, path string, err error) error {
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code() == lib.SQLITE_ERROR {
		return damaged(op, path, err)
	}
	return classify(op, path, err)
}

// classify gives an error of SQLite its kind.
func classify(op, path string, err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	e := &Error{Op: op, Path: path, Err: err}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return e
	}
	switch se.Code() & 0xff {
	case lib.SQLITE_FULL:
		e.Kind = ErrFull
	case lib.SQLITE_IOERR:
		// The system's error number does not come through, but some writes
		// that find no room (shared memory, sync) are told as an I/O error.
		if noSpace(path) {
			e.Kind = ErrFull
		}
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return damaged(op, path, err)
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		e.Kind = ErrLocked
	case lib.SQLITE_INTERRUPT:
		e.Kind = context.Canceled
	}
	if e.Kind == ErrFull {
		e.Hint = "make room on the file system of the state directory"
	}
	return e
}

// noSpace reports whether the file system of path is as good as full.
func noSpace(path string) bool {
	const enough = 64 << 10
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < enough
}
