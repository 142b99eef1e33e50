package ledger

import (
	"context"
	"fmt"
	"sync/atomic"
)

// work is what the writer is asked to do: store a batch, or run something
// alone between two transactions.
type work struct {
	entries []prepared
	cursor  *Cursor
	request *Request
	size    int
	alone   func(*writer) error

	state  atomic.Int32
	done   chan struct{}
	events []Event
	err    error
}

// States of a work. It leaves waiting exactly once: taken up by the writer, or
// dropped by a caller who gave up.
const (
	waiting int32 = iota
	taken
	dropped
)

// Append stores a batch, all of it or nothing, and returns its events with
// their sequence numbers once they are durable. Batches of different callers
// share a transaction; one that is refused harms no other.
//
// It is ErrCursor, ErrDuplicate, ErrKeyReused or ErrConflict when a guard does
// not hold, ErrInvalid for what can never be stored, ErrFull when there is no
// room, and ErrClosed. A context that ends before the writer has taken the
// batch up drops it; after that the answer is awaited, so that it is true.
//
// An entry that names its agent and no run is stored with the agent's run.
func (l *Ledger) Append(ctx context.Context, b Batch) ([]Event, error) {
	w := &work{cursor: b.Cursor, request: b.Request, entries: make([]prepared, 0, len(b.Entries)+1)}
	if b.Cursor != nil && b.Cursor.SandboxID == "" {
		return nil, fmt.Errorf("appending: cursor names no sandbox: %w", ErrInvalid)
	}
	add := func(en Entry) error {
		p, err := prepare(en)
		if err != nil {
			return fmt.Errorf("appending: %w", err)
		}
		w.entries = append(w.entries, p)
		w.size += p.size
		return nil
	}
	for _, en := range b.Entries {
		if err := add(en); err != nil {
			return nil, err
		}
	}
	if r := b.Request; r != nil {
		if err := add(Entry{Event: RequestAccepted, Payload: RequestAcceptedPayload{
			Scope: r.Scope, Key: r.Key, BodyHash: r.BodyHash, Status: r.Status, Answer: r.Answer}}); err != nil {
			return nil, err
		}
	}
	if len(w.entries) == 0 && w.cursor == nil {
		return nil, ctx.Err()
	}
	if err := l.do(ctx, w); err != nil {
		return nil, fmt.Errorf("appending: %w", err)
	}
	return w.events, nil
}

// Ping waits until the writer has come to it, and stores nothing: it shows that
// the writer is neither stuck nor gone. Errors: ErrClosed and the context's.
func (l *Ledger) Ping(ctx context.Context) error {
	if err := l.do(ctx, &work{alone: func(*writer) error { return nil }}); err != nil {
		return fmt.Errorf("waiting for the ledger's writer: %w", err)
	}
	return nil
}

// do hands a work to the writer and waits for its end.
func (l *Ledger) do(ctx context.Context, w *work) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.done = make(chan struct{})
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.queue = append(l.queue, w)
	l.mu.Unlock()
	l.poke()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	if w.state.CompareAndSwap(waiting, dropped) {
		return ctx.Err()
	}
	<-w.done
	return w.err
}
