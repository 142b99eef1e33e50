package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/swarm"
)

// heartbeat is how often a comment line says that the stream lives.
const heartbeat = 10 * time.Second

const streamType = "text/event-stream"

const (
	fromStart = int64(0)
	fromNow   = int64(-1)
)

var resumeParams = []param{
	{name: "Last-Event-ID", in: "header", doc: "Replay what is stored after this id, then go on live"},
	{name: "lastEventId", doc: "The same, for clients that cannot set the header"},
}

// resumeAfter is the seq a client has already, or its default.
func resumeAfter(r *http.Request, def int64) (int64, error) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.URL.Query().Get("lastEventId")
	}
	if text == "" {
		return def, nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, invalid("invalid_parameter", "Last-Event-ID %q is not the id of an event", text)
	}
	return seq, nil
}

func (s *server) runEvents(w http.ResponseWriter, r *http.Request) error {
	after, err := resumeAfter(r, fromStart)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, err := s.Swarm.Run(r.Context(), id); err != nil {
		return err
	}
	s.stream(w, r, after, id)
	return nil
}

func (s *server) allEvents(w http.ResponseWriter, r *http.Request) error {
	after, err := resumeAfter(r, fromNow)
	if err != nil {
		return err
	}
	s.stream(w, r, after, "")
	return nil
}

// stream writes events until the client goes away or stops reading, the
// stream ends, or the daemon does (the request's context).
func (s *server) stream(w http.ResponseWriter, r *http.Request, after int64, runID string) {
	h := w.Header()
	h.Set("Content-Type", streamType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Connection", "close") // its write deadline must not meet another request
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	s.Metrics.SSEClients(1)
	defer s.Metrics.SSEClients(-1)

	// Subscribed before the headers go out: what happens after a client has
	// seen them, it gets.
	follow := s.Swarm.Follow(after, runID)
	ctx, cancel := context.WithCancel(r.Context())
	events, ended := make(chan swarm.StreamEvent), make(chan error, 1)
	go func() { ended <- pump(ctx, follow, events) }()
	done := false
	defer func() {
		cancel()
		follow.Close()
		if !done {
			<-ended
		}
	}()

	ticker := s.Clock.NewTicker(heartbeat)
	defer ticker.Stop()
	out := s.patient(w)
	w.WriteHeader(http.StatusOK)
	err := out.flush()
	for err == nil {
		select {
		case e := <-events:
			err = writeEvent(out, e)
		case <-ticker.Chan():
			err = writeComment(out)
		case err = <-ended:
			done = true
		}
	}
	if ctx.Err() == nil {
		s.Log.Debug("event stream closed", zap.String("run", runID), zap.Error(err))
	}
}

// pump hands over events one by one until there are no more; its error is
// never nil.
func pump(ctx context.Context, from Stream, to chan<- swarm.StreamEvent) error {
	for {
		e, err := from.Next(ctx)
		if err != nil {
			return err
		}
		select {
		case to <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func writeEvent(out *patient, e swarm.StreamEvent) error {
	var b bytes.Buffer
	if e.Event == "" { // all that was stored has been sent
		if _, err := out.Write([]byte(": live\n\n")); err != nil {
			return err
		}
		return out.flush()
	}
	if e.Seq > 0 {
		fmt.Fprintf(&b, "id: %d\n", e.Seq)
	}
	fmt.Fprintf(&b, "event: %s\ndata: ", e.Event)
	if bytes.ContainsAny(e.Data, "\r\n") {
		// A line break would end the field.
		if err := json.Compact(&b, e.Data); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
	} else {
		b.Write(e.Data)
	}
	b.WriteString("\n\n")
	if _, err := out.Write(b.Bytes()); err != nil {
		return err
	}
	return out.flush()
}

func writeComment(out *patient) error {
	if _, err := out.Write([]byte(": alive\n\n")); err != nil {
		return err
	}
	return out.flush()
}
