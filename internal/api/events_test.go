package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/swarm"
)

// feed is a stream of what a test puts into it.
type feed struct {
	events chan swarm.StreamEvent
	closed chan struct{}
	once   sync.Once
}

func newFeed() *feed {
	return &feed{events: make(chan swarm.StreamEvent, 100), closed: make(chan struct{})}
}

func (f *feed) Next(ctx context.Context) (swarm.StreamEvent, error) {
	select {
	case e, ok := <-f.events:
		if !ok {
			return e, errors.New("reader fell behind")
		}
		return e, nil
	case <-ctx.Done():
		return swarm.StreamEvent{}, ctx.Err()
	}
}

func (f *feed) Close() { f.once.Do(func() { close(f.closed) }) }

func stored(seq int64) swarm.StreamEvent {
	return swarm.StreamEvent{Seq: seq, Event: "turn.ended", Data: json.RawMessage(fmt.Sprintf(`{"n":%d}`, seq))}
}

// following is a server whose streams are feeds; each call of Follow is told.
type following struct {
	*httptest.Server
	clock   *clockwork.FakeClock
	metrics *metrics
	follows chan follow
}

type follow struct {
	after int64
	runID string
}

func serveFeed(t *testing.T, f *feed, change func(*api.Options)) *following {
	t.Helper()
	s := &following{clock: clockwork.NewFakeClock(), metrics: &metrics{changed: make(chan int, 10)}, follows: make(chan follow, 10)}
	o := options(&fake{
		run: func(id string) (swarm.RunView, error) {
			if id != "r1" {
				return swarm.RunView{}, &swarm.Error{Kind: swarm.ErrNotFound, Code: "run_not_found", Message: "no run " + id}
			}
			return swarm.RunView{}, nil
		},
		follow: func(after int64, runID string) api.Stream {
			s.follows <- follow{after, runID}
			return f
		},
	})
	o.Clock, o.Metrics = s.clock, s.metrics
	if change != nil {
		change(&o)
	}
	s.Server = httptest.NewServer(newHandler(t, o))
	t.Cleanup(s.Close)
	return s
}

func (s *following) get(t *testing.T, ctx context.Context, path string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

// block reads up to an empty line.
func block(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", b.String(), err)
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

func TestEventsOnTheWire(t *testing.T) {
	t.Parallel()
	f := newFeed()
	s := serveFeed(t, f, nil)
	// Nothing was sent yet: that Do returns shows that the headers were flushed.
	answer := s.get(t, t.Context(), "/runs/r1/events")
	if got := answer.Header.Get("Content-Type"); got != "text/event-stream" || answer.StatusCode != 200 {
		t.Fatalf("%d %s", answer.StatusCode, got)
	}
	if n := <-s.metrics.changed; n != 1 {
		t.Errorf("%d clients", n)
	}
	f.events <- stored(7)
	f.events <- swarm.StreamEvent{Event: "message.updated", Data: json.RawMessage(`{"text":"a\nb"}`)}
	f.events <- swarm.StreamEvent{Seq: 8, Event: "run.closed", Data: json.RawMessage("{\n  \"a\": 1\r\n}")}
	r := bufio.NewReader(answer.Body)
	for _, want := range []string{
		"id: 7\nevent: turn.ended\ndata: {\"n\":7}\n",
		"event: message.updated\ndata: {\"text\":\"a\\nb\"}\n",
		"id: 8\nevent: run.closed\ndata: {\"a\":1}\n",
	} {
		if diff := cmp.Diff(want, block(t, r)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	// A stream that ends ends the answer.
	close(f.events)
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	<-f.closed
	if n := <-s.metrics.changed; n != 0 {
		t.Errorf("%d clients are left", n)
	}
}

func TestWhereEventsBegin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, header string
		want         follow
	}{
		{"/runs/r1/events", "", follow{0, "r1"}},
		{"/runs/r1/events", "12", follow{12, "r1"}},
		{"/runs/r1/events?lastEventId=13", "", follow{13, "r1"}},
		{"/runs/r1/events?lastEventId=13", "14", follow{14, "r1"}}, // as EventSource reconnects
		{"/events", "", follow{-1, ""}},
		{"/events", "0", follow{0, ""}},
	} {
		f := newFeed()
		close(f.events)
		s := serveFeed(t, f, nil)
		s.get(t, t.Context(), c.path, "Last-Event-ID", c.header)
		if got := <-s.follows; got != c.want {
			t.Errorf("%s %q: follows %+v, want %+v", c.path, c.header, got, c.want)
		}
	}
	s := serveFeed(t, newFeed(), nil)
	if answer := s.get(t, t.Context(), "/runs/r2/events"); answer.StatusCode != 404 {
		t.Errorf("events of no run: %d", answer.StatusCode)
	}
	if len(s.follows) > 0 {
		t.Error("a run that is not there is followed")
	}
	if w := ask(newHandler(t, options(&fake{})), "HEAD", "/events", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestEventsResume breaks a client's connection again and again. From the ids
// it has seen it must come to every event once.
func TestEventsResume(t *testing.T) {
	t.Parallel()
	const all = 40
	o := options(&fake{
		run: func(string) (swarm.RunView, error) { return swarm.RunView{}, nil },
		follow: func(after int64, _ string) api.Stream {
			f := newFeed()
			for seq := after + 1; seq <= min(after+10, all); seq++ {
				f.events <- stored(seq)
			}
			return f
		},
	})
	server := httptest.NewServer(newHandler(t, o))
	defer server.Close()
	var seen []string
	last := ""
	for round := 1; len(seen) < all; round++ {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/runs/r1/events", nil)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(answer.Body)
		for range min(1+round%5, all-len(seen)) {
			id, _, _ := strings.Cut(block(t, lines), "\n")
			last = strings.TrimPrefix(id, "id: ")
			seen = append(seen, last)
		}
		cancel()
		answer.Body.Close()
	}
	for i, id := range seen {
		if id != fmt.Sprint(i+1) {
			t.Fatalf("event %d has id %s: %v", i+1, id, seen)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	s := serveFeed(t, newFeed(), nil)
	answer := s.get(t, t.Context(), "/events")
	r := bufio.NewReader(answer.Body)
	for range 3 {
		if err := s.clock.BlockUntilContext(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		s.clock.Advance(10 * time.Second)
		if got := block(t, r); !strings.HasPrefix(got, ":") {
			t.Fatalf("got %q, want a comment", got)
		}
	}
}

// TestClientGone: a client that leaves leaves nothing behind.
func TestClientGone(t *testing.T) {
	t.Parallel()
	f := newFeed()
	s := serveFeed(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	s.get(t, ctx, "/events")
	<-s.metrics.changed
	cancel()
	<-f.closed
	if n := <-s.metrics.changed; n != 0 {
		t.Errorf("%d clients are left", n)
	}
}

// endless never runs out.
type endless struct{ data json.RawMessage }

func (e endless) Next(ctx context.Context) (swarm.StreamEvent, error) {
	return swarm.StreamEvent{Event: "message.updated", Data: e.data}, ctx.Err()
}
func (endless) Close() {}

// TestStuckClient: one that does not read is cut off, however much there is
// to send.
func TestStuckClient(t *testing.T) {
	t.Parallel()
	m := &metrics{changed: make(chan int, 10)}
	o := options(&fake{follow: func(int64, string) api.Stream {
		return endless{json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}
	}})
	o.Metrics, o.WriteTimeout = m, 50*time.Millisecond
	server := httptest.NewServer(newHandler(t, o))
	defer server.Close()
	answer, err := http.Get(server.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if n := <-m.changed; n != 1 {
		t.Fatalf("%d clients", n)
	}
	select {
	case n := <-m.changed:
		if n != 0 {
			t.Errorf("%d clients are left", n)
		}
	case <-time.After(20 * time.Second):
		t.Error("a client that does not read still holds its stream")
	}
}

// TestManyFollow: streams do not disturb each other (with -race).
func TestManyFollow(t *testing.T) {
	t.Parallel()
	o := options(&fake{follow: func(after int64, _ string) api.Stream {
		f := newFeed()
		for seq := after + 1; seq <= after+20; seq++ {
			f.events <- stored(seq)
		}
		close(f.events)
		return f
	}})
	h := newHandler(t, o)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			w := ask(h, "GET", "/events", "", "Last-Event-ID", fmt.Sprint(i*100))
			if got := strings.Count(w.Body.String(), "\ndata: "); got != 20 {
				t.Errorf("stream %d: %d events", i, got)
			}
		})
	}
	wg.Wait()
}
