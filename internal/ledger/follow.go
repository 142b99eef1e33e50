package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Bounds of the recent events kept in memory for followers. One who falls
// behind them reads the file until it has caught up.
const (
	ringEvents = 4096
	ringBytes  = 16 << 20
)

// defaultNext is how many events Next returns at most, unless the filter says.
const defaultNext = 500

// hub keeps the most recent events and wakes followers.
type hub struct {
	mu     sync.Mutex
	recent []Event // without gaps, up to the last one stored
	bytes  int
	last   int64
	more   chan struct{} // closed and replaced when events come
	closed bool
}

func newHub() *hub { return &hub{more: make(chan struct{})} }

func (h *hub) start(last int64) { h.last = last }

func (h *hub) publish(events []Event) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent = append(h.recent, events...)
	for _, e := range events {
		h.bytes += sizeOf(e)
	}
	drop := max(0, len(h.recent)-ringEvents)
	for i, e := range h.recent {
		if i >= drop && h.bytes <= ringBytes {
			break
		}
		drop = max(drop, i+1)
		h.bytes -= sizeOf(e)
	}
	// Readers hold no part of the slice, so the events may move in place.
	h.recent = slices.Delete(h.recent, 0, drop)
	h.last = events[len(events)-1].Seq
	close(h.more)
	h.more = make(chan struct{})
}

func sizeOf(e Event) int {
	const fixed = 200
	return fixed + len(e.Payload) + len(e.Body)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	close(h.more)
	h.more = nil
}

// since returns what the filter lets through of the events after a position,
// and the position that is covered with them. It is behind where memory does
// not reach back so far. Without any event it returns what to wait for.
func (h *hub) since(after int64, f *EventFilter, limit int) (events []Event, covered int64, behind bool, more <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, after, false, nil, ErrClosed
	}
	if after >= h.last {
		return nil, after, false, h.more, nil
	}
	first := h.last - int64(len(h.recent)) + 1
	if after+1 < first {
		return nil, after, true, nil, nil
	}
	covered = after
	for _, e := range h.recent[after+1-first:] {
		covered = e.Seq
		if !f.matches(&e) {
			continue
		}
		if !f.Bodies {
			e.Body = nil
		}
		if events = append(events, e); len(events) == limit {
			break
		}
	}
	return events, covered, false, h.more, nil
}

// Follower reads the log from a position on and goes on with what is appended.
// It belongs to one goroutine; only Close may be called from another.
type Follower struct {
	l      *Ledger
	f      EventFilter
	limit  int
	pos    int64
	closed chan struct{}
	once   sync.Once
}

// Follow returns a follower of the events after a sequence number that the
// filter lets through. Of the filter, After and Desc do not count, Limit is the
// largest number of events of one Next. The caller closes it.
func (l *Ledger) Follow(after int64, f EventFilter) *Follower {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultNext
	}
	f.Names = slices.Clone(f.Names)
	return &Follower{l: l, f: f, limit: limit, pos: max(after, 0), closed: make(chan struct{})}
}

// Next waits until there is at least one event and returns what there is, in
// order, none left out and none twice. It is ErrClosed when the follower or
// the ledger was closed, or the filter's Upto is reached.
func (w *Follower) Next(ctx context.Context) ([]Event, error) {
	for {
		select {
		case <-w.closed:
			return nil, ErrClosed
		default:
		}
		if w.f.Upto > 0 && w.pos >= w.f.Upto {
			return nil, ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		events, covered, behind, more, err := w.l.hub.since(w.pos, &w.f, w.limit)
		if err != nil {
			return nil, err
		}
		if behind {
			if events, covered, err = w.catchUp(ctx); err != nil {
				return nil, fmt.Errorf("following: %w", err)
			}
		}
		moved := covered > w.pos
		w.pos = covered
		if len(events) > 0 {
			return events, nil
		}
		if moved {
			continue
		}
		select {
		case <-more:
		case <-w.closed:
		case <-ctx.Done():
		}
	}
}

// catchUp reads from the file. Where it finds nothing, all that is stored by
// now is covered.
func (w *Follower) catchUp(ctx context.Context) ([]Event, int64, error) {
	f := w.f
	f.After, f.Limit, f.Desc = w.pos, w.limit, false
	last := w.l.LastSeq()
	if f.Upto <= 0 || f.Upto > last {
		f.Upto = last
	}
	events, err := w.l.Events(ctx, f)
	if err != nil {
		return nil, w.pos, err
	}
	if len(events) == w.limit {
		return events, events[len(events)-1].Seq, nil
	}
	return events, f.Upto, nil
}

// Close ends the follower; a Next that waits returns. It is idempotent.
func (w *Follower) Close() { w.once.Do(func() { close(w.closed) }) }
