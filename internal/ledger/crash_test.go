package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/alineod/alineod/internal/ledger"
)

// childEnv names the ledger that a child of the crash tests appends to.
const childEnv = "ALINEOD_LEDGER_TEST_CHILD"

const childWriters = 8

// child appends from several goroutines until it is killed, and writes the
// sequence number and the text of each append to its standard output once it
// was acknowledged.
func child(path string) error {
	ctx := context.Background()
	l, err := ledger.Open(ctx, path, ledger.Options{})
	if err != nil {
		return err
	}
	start := l.LastSeq()
	run := fmt.Sprintf("r_%08x", start)
	var mu sync.Mutex
	ack := func(events []ledger.Event) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			// One write each: the pipe holds whole lines or nothing.
			fmt.Fprintf(os.Stdout, "%d %s\n", e.Seq, e.Payload)
		}
	}
	events, err := l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{runStarted(run, "a_root0000")}})
	if err != nil {
		return err
	}
	ack(events)
	var wg sync.WaitGroup
	errs := make(chan error, childWriters)
	for w := range childWriters {
		wg.Go(func() {
			id := fmt.Sprintf("a_%08x%04x", start, w)
			events, err := l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{spawned(run, id)}})
			for i := 1; err == nil; i++ {
				ack(events)
				turn := fmt.Sprintf("t_%08x%04x%04x", start, w, i)
				events, err = l.Append(ctx, ledger.Batch{Entries: []ledger.Entry{
					of(id, "", turn, ledger.TurnRequested, ledger.TurnRequestedPayload{Turn: i}),
					of(id, "s_"+id, turn, ledger.TurnStarted, ledger.TurnStartedPayload{Turn: i}),
					{AgentID: id, SandboxID: "s_" + id, TurnID: turn, Event: ledger.MessageEnded, Payload: map[string]int{"w": w, "i": i},
						Body: map[string]string{"text": "some text that is kept aside"}},
					of(id, "s_"+id, turn, ledger.TurnEnded, ledger.TurnEndedPayload{Turn: i, Outcome: "success"}),
				}, Cursor: &ledger.Cursor{SandboxID: "s_" + id, Epoch: "e", Pos: int64(i)}})
			}
			errs <- err
		})
	}
	wg.Wait()
	return <-errs
}

// runChild starts a child, kills it after so many acknowledged events, and
// returns all that it had acknowledged.
func runChild(t *testing.T, path string, killAfter int, env ...string) map[int64]string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+path), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acked := map[int64]string{}
	in := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == killAfter {
			if err := cmd.Process.Kill(); err != nil {
				t.Errorf("kill: %v", err)
			}
		}
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var seq int64
		var payload string
		if _, err := fmt.Sscanf(line, "%d %s", &seq, &payload); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		acked[seq] = payload
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	return acked
}

// wantAcked is that every acknowledged event is there, as it was said, and
// that all is sound.
func wantAcked(t *testing.T, path string, acked map[int64]string) {
	t.Helper()
	l, err := ledger.Open(t.Context(), path, ledger.Options{})
	if err != nil {
		t.Fatalf("opening after the crash: %v", err)
	}
	defer l.Close()
	events, err := l.Events(t.Context(), ledger.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has sequence number %d", i+1, e.Seq)
		}
		if want, ok := acked[e.Seq]; ok && want != string(e.Payload) {
			t.Fatalf("event %d is %s, acknowledged was %s", e.Seq, e.Payload, want)
		}
	}
	for seq := range acked {
		if seq > int64(len(events)) {
			t.Fatalf("acknowledged event %d is lost, the log ends at %d", seq, len(events))
		}
	}
	wantSound(t, l)
}

func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	all := map[int64]string{}
	for range rounds {
		for seq, payload := range runChild(t, path, rand.IntN(300)) {
			if before, ok := all[seq]; ok {
				t.Fatalf("event %d acknowledged twice: %s and %s", seq, before, payload)
			}
			all[seq] = payload
		}
		wantAcked(t, path, all)
	}
	t.Logf("%d rounds, %d acknowledged events", rounds, len(all))
}
