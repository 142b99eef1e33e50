package harnesstest

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

func (p *Process) count(name string) (n int) {
	for _, ev := range p.Events {
		if ev.Name == name {
			n++
		}
	}
	return n
}

func (p *Process) last(name string) harness.Event {
	for i := len(p.Events) - 1; i >= 0; i-- {
		if p.Events[i].Name == name {
			return p.Events[i]
		}
	}
	p.t.Fatalf("no %s among the events\n%s", name, p.dump())
	return harness.Event{}
}

// texts are the texts of the messages of a role.
func (p *Process) texts(role string) (texts []string) {
	for _, ev := range p.Events {
		if ev.Name != ledger.MessageEnded {
			continue
		}
		var data struct{ Role string }
		var body struct{ Text string }
		decode(p.t, ev.Data, &data)
		decode(p.t, ev.Body, &body)
		if data.Role == role {
			texts = append(texts, body.Text)
		}
	}
	return texts
}

// syncBuffer may be read while the process still writes to it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func decode(t *testing.T, raw json.RawMessage, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("decoding %.200q: %v", raw, err)
	}
}
