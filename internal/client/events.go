package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jonboulle/clockwork"
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// silence is how long a stream may say nothing: the daemon sends a comment
	// every ten seconds, so that a longer one means a dead connection.
	silence = 35 * time.Second
	// maxLine bounds a line of a stream, in bytes: a message's event carries
	// the whole message.
	maxLine = 64 << 20
)

// LiveComment is the comment a daemon sends when all that was stored has been
// sent and the stream goes live.
const LiveComment = "live"

// Event is one event of a stream.
type Event struct {
	Seq  int64           `json:"seq"` // 0: not stored
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
	// Comment is set instead of the others for a comment of the stream, which
	// Next returns only where Comments is set.
	Comment string `json:"-"`
}

// EventStream reads the events of a run, or of all runs. It connects at the
// first Next, and again whenever the connection is lost, from the last stored
// event it has returned on: each stored event is returned exactly once. It is
// used by one goroutine at a time.
type EventStream struct {
	// Comments makes Next return comments too.
	Comments bool
	// Lost, where set, is called when a connection was lost or refused, before
	// the wait for the next try.
	Lost func(err error)

	c     *Client
	ctx   context.Context
	path  string
	after int64
	tries int // connections in a row that brought nothing

	body   io.Closer
	cancel context.CancelFunc
	watch  clockwork.Timer
	lines  *bufio.Reader
}

// Events reads the events of a run that are stored after the given seq, then
// those that come: GET /runs/{id}/events, or GET /events where runID is empty.
// A negative seq is the daemon's default: of all runs, only what comes.
// The stream ends with ctx or with Close.
func (c *Client) Events(ctx context.Context, runID string, after int64) *EventStream {
	s := &EventStream{c: c, ctx: ctx, path: "/events", after: after}
	if runID != "" {
		s.path = path("runs", runID, "events")
	}
	return s
}

// Last is the seq of the last stored event that was returned.
func (s *EventStream) Last() int64 { return s.after }

// Next returns the next event, waiting for it. Its error is one that trying
// again does not mend: the context's, ErrProtocol, or an *Error such as of an
// unknown run.
func (s *EventStream) Next() (Event, error) {
	for {
		if s.lines == nil {
			if err := s.connect(); err != nil {
				if err := s.pause(err); err != nil {
					return Event{}, err
				}
				continue
			}
		}
		ev, err := s.read()
		if err != nil {
			s.drop()
			if !errors.Is(err, ErrProtocol) {
				err = s.c.failed(s.ctx, "GET "+s.path, err)
			}
			if err := s.pause(err); err != nil {
				return Event{}, err
			}
			continue
		}
		s.tries = 0
		if ev.Comment != "" {
			if s.Comments {
				return ev, nil
			}
			continue
		}
		if ev.Seq != 0 {
			// A daemon that repeats itself is no reason to.
			if ev.Seq <= s.after {
				continue
			}
			s.after = ev.Seq
		}
		return ev, nil
	}
}

// Close ends the stream. It is idempotent.
func (s *EventStream) Close() { s.drop() }

// connect opens the stream after the last event that was returned.
func (s *EventStream) connect() error {
	ctx, cancel := context.WithCancel(s.ctx)
	// Over a network a connection can die without a word.
	watch := s.c.Clock.AfterFunc(silence, cancel)
	header := http.Header{"Accept": {"text/event-stream"}}
	if s.after >= 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(s.after, 10))
	}
	res, err := s.c.open(ctx, request{method: http.MethodGet, path: s.path, header: header})
	if err != nil {
		watch.Stop()
		cancel()
		// Only the caller's context ends the stream, not the watch's.
		if s.ctx.Err() == nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("GET %s: %w: silent for %v", s.path, ErrBroken, silence)
		}
		return err
	}
	s.body, s.cancel, s.watch = res.Body, cancel, watch
	s.lines = bufio.NewReaderSize(res.Body, 64<<10)
	return nil
}

func (s *EventStream) drop() {
	if s.lines == nil {
		return
	}
	s.watch.Stop()
	s.cancel()
	s.body.Close()
	s.lines = nil
}

// pause waits before the next connection, or returns the error where another
// would not help.
func (s *EventStream) pause(err error) error {
	if s.ctx.Err() != nil {
		return fmt.Errorf("GET %s: %w", s.path, s.ctx.Err())
	}
	if !Temporary(err) {
		return err
	}
	if s.Lost != nil {
		s.Lost(err)
	}
	wait := maxBackoff
	if s.tries < 6 {
		wait = min(maxBackoff, firstBackoff<<s.tries)
	}
	s.tries++
	timer := s.c.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-s.ctx.Done():
		return fmt.Errorf("GET %s: %w", s.path, s.ctx.Err())
	}
}

// ErrProtocol: the stream says what cannot be read. It would say it again.
var ErrProtocol = errors.New("not a stream of events")

// read reads one event or comment. An event that the stream's end cut short is
// not returned.
func (s *EventStream) read() (Event, error) {
	var ev Event
	var data [][]byte
	for {
		line, err := s.line()
		if err != nil {
			return Event{}, err
		}
		s.watch.Reset(silence)
		if len(line) == 0 {
			if ev.Name == "" && data == nil {
				continue
			}
			ev.Data = bytes.Join(data, []byte("\n"))
			if !json.Valid(ev.Data) {
				return Event{}, fmt.Errorf("%w: event %q with seq %d is not valid JSON", ErrProtocol, ev.Name, ev.Seq)
			}
			return ev, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "":
			if ev.Name != "" || data != nil {
				continue
			}
			if len(value) == 0 {
				value = []byte("ping")
			}
			return Event{Comment: string(value)}, nil
		case "id":
			if ev.Seq, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return Event{}, fmt.Errorf("%w: an event's id: %w", ErrProtocol, err)
			}
		case "event":
			ev.Name = string(value)
		case "data":
			data = append(data, value)
		}
	}
}

// line reads one line without its end.
func (s *EventStream) line() ([]byte, error) {
	var line []byte
	for {
		part, err := s.lines.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, maxLine)
		}
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
