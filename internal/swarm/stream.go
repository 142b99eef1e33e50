package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/ledger"
)

// hub hands events that are not stored to the streams that listen. A stream
// that does not keep up loses them.
type hub struct {
	mu      sync.Mutex
	streams map[*Stream]bool
}

func newHub() *hub { return &hub{streams: map[*Stream]bool{}} }

func (h *hub) publish(runID, agentID string, e bridge.Ephemeral) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) == 0 {
		return
	}
	whole := ledger.Event{RunID: runID, AgentID: agentID, TurnID: e.TurnID, Event: e.Event.Name, Payload: e.Event.Data, Body: e.Event.Body}
	var data json.RawMessage
	for st := range h.streams {
		if st.runID != "" && st.runID != runID {
			continue
		}
		if data == nil {
			data = whole.Data()
		}
		select {
		case st.passing <- StreamEvent{Event: e.Event.Name, Data: data}:
		default:
		}
	}
}

func (h *hub) add(st *Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[st] = true
}

func (h *hub) drop(st *Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, st)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams = map[*Stream]bool{}
}

// passingSize is how many unstored events a stream may lag behind.
const passingSize = 256

// Stream yields the events of one run, or of all: every stored one once and in
// order, and between them those that are not stored. It belongs to one
// goroutine; only Close may be called from another.
type Stream struct {
	s       *Swarm
	runID   string
	passing chan StreamEvent
	stored  chan []ledger.Event
	ended   chan error
	ready   []StreamEvent
	cancel  context.CancelFunc
	work    sync.WaitGroup
}

// Follow streams the stored events after a sequence number, and then what
// comes. A negative number means from now on. The caller closes the stream.
func (s *Swarm) Follow(after int64, runID string) *Stream {
	if after < 0 {
		after = s.Ledger.LastSeq()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	st := &Stream{s: s, runID: runID, passing: make(chan StreamEvent, passingSize), stored: make(chan []ledger.Event),
		ended: make(chan error, 1), cancel: cancel}
	s.live.add(st)
	now := s.Ledger.LastSeq()
	st.work.Go(func() {
		err := st.feed(ctx, after, now)
		if errors.Is(err, ledger.ErrClosed) && ctx.Err() == nil { // up to now, that is
			err = st.send(ctx, nil)
		}
		if err == nil {
			err = st.feed(ctx, max(after, now), 0)
		}
		st.ended <- err
	})
	return st
}

// feed hands over what is stored after a position, up to another one (0: for
// ever), which ends it with ledger.ErrClosed.
func (st *Stream) feed(ctx context.Context, after, upto int64) error {
	if upto > 0 && after >= upto {
		return ledger.ErrClosed
	}
	f := st.s.Ledger.Follow(after, ledger.EventFilter{RunID: st.runID, Upto: upto, Bodies: true})
	defer f.Close()
	for {
		events, err := f.Next(ctx)
		if err != nil {
			return err
		}
		if err := st.send(ctx, events); err != nil {
			return err
		}
	}
}

func (st *Stream) send(ctx context.Context, events []ledger.Event) error {
	select {
	case st.stored <- events:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Next waits for the next event. A zero event says, once, that all that was
// stored when the stream began has been yielded. The error is io.EOF when the daemon is stopping or
// the stream was closed.
func (st *Stream) Next(ctx context.Context) (StreamEvent, error) {
	for {
		if len(st.ready) > 0 {
			e := st.ready[0]
			st.ready = st.ready[1:]
			return e, nil
		}
		select {
		case events := <-st.stored:
			if events == nil {
				return StreamEvent{}, nil
			}
			for i := range events {
				if ledger.Public(events[i].Event) {
					st.ready = append(st.ready, StreamEvent{Seq: events[i].Seq, Event: events[i].Event, Data: events[i].Data()})
				}
			}
		case e := <-st.passing:
			return e, nil
		case err := <-st.ended:
			st.ended <- err
			if errors.Is(err, context.Canceled) || errors.Is(err, ledger.ErrClosed) {
				err = io.EOF
			}
			return StreamEvent{}, err
		case <-ctx.Done():
			return StreamEvent{}, ctx.Err()
		}
	}
}

// Close ends the stream and waits for what fed it.
func (st *Stream) Close() {
	st.s.live.drop(st)
	st.cancel()
	st.work.Wait()
}
