package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/ledger"
)

// BenchmarkAppend measures appends per second of one writer and of 64, each
// append durable before it is answered, and their ratio. Each append is one
// event of an agent of the writer's own.
func BenchmarkAppend(b *testing.B) {
	const many = 64
	var groups counter
	measure := func(b *testing.B, writers, each int) float64 {
		groups = counter{}
		l, err := ledger.Open(b.Context(), filepath.Join(b.TempDir(), "ledger.db"), ledger.Options{Metrics: &groups})
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		mustAppend(b, l, runStarted(runID, "a_root0000"))
		for w := range writers {
			mustAppend(b, l, spawned(runID, fmt.Sprintf("a_%08x", w)))
		}
		payload := map[string]any{"role": "assistant", "stopReason": "stop", "usage": map[string]int{"input": 1200, "output": 340}}
		start := time.Now()
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				id := fmt.Sprintf("a_%08x", w)
				for range each {
					_, err := l.Append(context.Background(), ledger.Batch{Entries: []ledger.Entry{
						{RunID: runID, AgentID: id, SandboxID: "s_" + id[2:], TurnID: "t_" + id[2:], Event: ledger.MessageEnded, Payload: payload}}})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return float64(writers*each) / time.Since(start).Seconds()
	}
	var one, all float64
	for b.Loop() {
		one += measure(b, 1, 2000)
		all += measure(b, many, 1500)
	}
	n := float64(b.N)
	b.ReportMetric(one/n, "one-writer-appends/s")
	b.ReportMetric(all/n, "64-writers-appends/s")
	b.ReportMetric(all/one, "ratio")
	b.ReportMetric(float64(groups.events)/float64(groups.commits), "appends/commit")
	b.ReportMetric(0, "ns/op")
}

// counter counts commits. Only the writer touches it while the ledger is open.
type counter struct{ commits, batches, events int }

func (c *counter) LedgerCommitted(_ time.Duration, batches, events int) {
	c.commits++
	c.batches += batches
	c.events += events
}
