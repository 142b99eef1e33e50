package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"github.com/alineod/alineod/internal/client"
)

func say(w http.ResponseWriter, text string) {
	io.WriteString(w, text)
	http.NewResponseController(w).Flush()
}

func stored(seq int) string {
	return fmt.Sprintf("id: %d\nevent: turn.started\ndata: {\"turn\":%d}\n\n", seq, seq)
}

// connections answers the n-th connection with the n-th function.
type connections struct {
	mu     sync.Mutex
	answer []func(w http.ResponseWriter, r *http.Request)
	ids    []string // Last-Event-ID of each
}

func (c *connections) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	n := len(c.ids)
	c.ids = append(c.ids, strings.Join(r.Header["Last-Event-Id"], ","))
	c.mu.Unlock()
	if n >= len(c.answer) {
		<-r.Context().Done()
		return
	}
	c.answer[n](w, r)
}

// hurried makes a stream's waits between two connections pass at once.
func hurried(t *testing.T, clock *clockwork.FakeClock, s *client.EventStream) {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	ctx := t.Context()
	s.Lost = func(error) {
		wg.Go(func() {
			if clock.BlockUntilContext(ctx, 1) == nil {
				clock.Advance(5 * time.Second)
			}
		})
	}
}

func TestEventsExactlyOnceOverLostConnections(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 300<<10)
	served := &connections{answer: []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, _ *http.Request) {
			// The third is cut short: it has not been told.
			say(w, stored(1)+stored(2)+"id: 3\nevent: turn.started\ndata: {\"turn\":3}\n")
		},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) {
			// A daemon that repeats the second is put right.
			say(w, ": alive\n\n"+stored(2)+stored(3)+"event: message.updated\ndata: {\"delta\":\"d\"}\n\n")
		},
		func(w http.ResponseWriter, _ *http.Request) {
			say(w, "id: 4\r\nevent: message.ended\r\ndata: {\"text\":\r\ndata: \""+big+"\"}\r\n\r\n")
		},
	}}
	c := daemon(t, served.ServeHTTP)
	clock := clockwork.NewFakeClock()
	c.Clock = clock
	stream := c.Events(t.Context(), "r_1", 0)
	defer stream.Close()
	hurried(t, clock, stream)
	var got []string
	for range 5 {
		ev, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s %d", ev.Seq, ev.Name, len(ev.Data)))
	}
	want := []string{"1 turn.started 10", "2 turn.started 10", "3 turn.started 10", "0 message.updated 13",
		fmt.Sprintf("4 message.ended %d", len(big)+12)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	served.mu.Lock()
	defer served.mu.Unlock()
	if diff := cmp.Diff([]string{"0", "2", "2", "2", "3"}, served.ids); diff != "" {
		t.Errorf("Last-Event-ID (-want +got):\n%s", diff)
	}
}

func TestEventsOfNoDaemonAreWaitedForLongerAndLonger(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	c := daemon(t, func(w http.ResponseWriter, _ *http.Request) {
		if hits.Add(1) > 8 {
			say(w, stored(1))
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	clock := clockwork.NewFakeClock()
	c.Clock = clock
	stream := c.Events(t.Context(), "", -1)
	defer stream.Close()
	waits := []int{100, 200, 400, 800, 1600, 3200, 5000, 5000}
	lost := make(chan error, len(waits))
	stream.Lost = func(err error) { lost <- err }
	done := make(chan error, 1)
	go func() {
		_, err := stream.Next()
		done <- err
	}()
	for i, ms := range waits {
		if err := <-lost; !errors.Is(err, client.ErrUnavailable) {
			t.Errorf("lost: %v", err)
		}
		if err := clock.BlockUntilContext(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Duration(ms-1) * time.Millisecond)
		if got := hits.Load(); int(got) != i+1 {
			t.Errorf("connection %d was tried before %d ms", got, ms)
		}
		clock.Advance(time.Millisecond)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	connected := make(chan struct{}, 2)
	served := &connections{answer: []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, r *http.Request) { // not even headers
			connected <- struct{}{}
			<-r.Context().Done()
		},
		func(w http.ResponseWriter, r *http.Request) {
			say(w, stored(1))
			connected <- struct{}{}
			<-r.Context().Done()
		},
		func(w http.ResponseWriter, r *http.Request) { say(w, stored(2)) },
	}}
	c := daemon(t, served.ServeHTTP)
	clock := clockwork.NewFakeClock()
	c.Clock = clock
	stream := c.Events(t.Context(), "r_1", 0)
	defer stream.Close()
	var losses []error
	hurried(t, clock, stream)
	hurry := stream.Lost
	stream.Lost = func(err error) { losses = append(losses, err); hurry(err) }
	next := func(want int64) {
		t.Helper()
		if ev, err := stream.Next(); err != nil || ev.Seq != want {
			t.Errorf("Next: %d, %v; want %d", ev.Seq, err, want)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { <-connected; clock.Advance(35 * time.Second) })
	next(1)
	wg.Go(func() { <-connected; clock.Advance(35 * time.Second) })
	next(2)
	if len(losses) != 2 || !errors.Is(losses[0], client.ErrBroken) || !errors.Is(losses[1], client.ErrBroken) {
		t.Errorf("losses: %v", losses)
	}
}

func TestWhatEndsAStream(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   error
	}{
		"unknown run":    {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, client.ErrNotFound},
		"no token":       {func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, client.ErrAuth},
		"no JSON":        {func(w http.ResponseWriter) { say(w, "event: x\ndata: {\n\n") }, client.ErrProtocol},
		"an id of words": {func(w http.ResponseWriter) { say(w, "id: one\n\n") }, client.ErrProtocol},
	} {
		c := daemon(t, func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) })
		stream := c.Events(t.Context(), "r_1", 0)
		if _, err := stream.Next(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		stream.Close()
		stream.Close()
	}
}

func TestStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := daemon(t, func(w http.ResponseWriter, r *http.Request) {
		say(w, stored(1))
		<-r.Context().Done()
	})
	stream := c.Events(ctx, "r_1", 0)
	defer stream.Close()
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v", err)
	}
}

func TestComments(t *testing.T) {
	t.Parallel()
	c := daemon(t, func(w http.ResponseWriter, r *http.Request) {
		say(w, ":\n\n"+stored(1)+": live\n\n")
		<-r.Context().Done()
	})
	stream := c.Events(t.Context(), "r_1", 0)
	defer stream.Close()
	stream.Comments = true
	var got []string
	for range 3 {
		ev, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.Comment+ev.Name)
	}
	if diff := cmp.Diff([]string{"ping", "turn.started", client.LiveComment}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if stream.Last() != 1 {
		t.Errorf("Last is %d", stream.Last())
	}
}
