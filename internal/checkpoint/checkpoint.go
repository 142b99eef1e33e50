// Package checkpoint keeps an agent's home directory as it was after a turn.
//
// A checkpoint is one archive (internal/archive) in a Store, and one
// agent.checkpointed event in the ledger that names it by its reference. The
// archive comes first, whole and synced; only then the caller records the
// event. An archive without an event is what a crash left between the two, and
// Sweep removes it at boot.
//
// The ledger alone says which checkpoints there are. Candidates and Prunable
// decide on its rows which one a restore tries next and which ones may go.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alineod/alineod/internal/ids"
)

// Kinds of errors. Callers ask with errors.Is.
var (
	// ErrNotFound: the store holds nothing under that reference.
	ErrNotFound = errors.New("no such checkpoint")
	// ErrDamaged: the checkpoint is there, and is not what was stored.
	ErrDamaged = errors.New("checkpoint is damaged")
	// ErrFull: the disk, or the quota on it, is full. Nothing was left behind.
	ErrFull = errors.New("no space left for checkpoints")
	// ErrInvalid: the metadata or the reference is not of this package's form.
	ErrInvalid = errors.New("invalid checkpoint")
)

// Meta says what an archive is a checkpoint of.
type Meta struct {
	AgentID   string
	SandboxID string
	TurnID    string // empty for one that was imported
	Turn      int    // 0: before the first turn
}

func (m Meta) validate() error {
	switch {
	case !ids.Valid(ids.Agent, m.AgentID):
		return fmt.Errorf("%w: agent %q", ErrInvalid, m.AgentID)
	case !ids.Valid(ids.Sandbox, m.SandboxID):
		return fmt.Errorf("%w: sandbox %q", ErrInvalid, m.SandboxID)
	case m.TurnID != "" && !ids.Valid(ids.Turn, m.TurnID):
		return fmt.Errorf("%w: turn id %q", ErrInvalid, m.TurnID)
	case m.Turn < 0:
		return fmt.Errorf("%w: turn %d", ErrInvalid, m.Turn)
	}
	return nil
}

// Stored is a checkpoint that is safely in its store.
type Stored struct {
	// Ref finds it again. It is relative to the store and opaque.
	Ref    string
	SHA256 string // of the stored bytes, in hexadecimal
	Bytes  int64  // as stored
	Files  int64  // entries of the archive that are not directories
}

// Store keeps archives. All methods are safe for concurrent use and honour
// their context. checkpointtest is the suite that each store passes.
type Store interface {
	// Put verifies an archive while it stores it: what comes out of a sandbox
	// is not trusted (the errors of archive.Verify). It reads to the end of
	// the stream. When it returns without an error the archive survives a
	// loss of power; when it fails nothing of it is left.
	Put(ctx context.Context, m Meta, archive io.Reader) (Stored, error)
	// Open returns the plain tar. Damage that shows while it is read is
	// ErrDamaged from Read. The caller closes it.
	Open(ctx context.Context, ref string) (io.ReadCloser, error)
	// Verify answers nil where what is stored is what Put said it stored,
	// else ErrDamaged or ErrNotFound. Any other error says nothing of the
	// checkpoint.
	Verify(ctx context.Context, ref, sha256 string) error
	// Remove removes a checkpoint. One that is gone already is no error.
	Remove(ctx context.Context, ref string) error
	// List returns all references, sorted, those of Puts included that a
	// crash cut short (Remove takes them; they cannot be opened), those of
	// Puts in progress not.
	List(ctx context.Context) ([]string, error)
}

// Source opens a stream that carries an archive. Its Read answers io.EOF only
// where the sender had finished. It must be closable while a Read is blocked:
// that is how a sandbox that never answers is left.
type Source func(ctx context.Context) (io.ReadCloser, error)

// Take takes a checkpoint: it opens the source and puts its archive into the
// store. It returns how long that took, also with an error. When ctx ends it
// closes the stream and returns ctx's cause.
func Take(ctx context.Context, store Store, src Source, m Meta) (Stored, time.Duration, error) {
	start := time.Now()
	stored, err := take(ctx, store, src, m)
	if err != nil {
		err = fmt.Errorf("taking the checkpoint of turn %d: %w", m.Turn, err)
	}
	return stored, time.Since(start), err
}

func take(ctx context.Context, store Store, src Source, m Meta) (Stored, error) {
	if err := m.validate(); err != nil {
		return Stored{}, err
	}
	rc, err := src(ctx)
	if err != nil {
		return Stored{}, err
	}
	stop := context.AfterFunc(ctx, func() { rc.Close() })
	stored, err := store.Put(ctx, m, rc)
	if stop() {
		// The stream was read to its end or given up: what closing it says
		// changes nothing.
		rc.Close()
	}
	if err != nil && ctx.Err() != nil {
		return Stored{}, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return stored, err
}
