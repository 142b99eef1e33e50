package swarm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/alineod/alineod/internal/ledger"
)

// Limits of what an agent may remember.
const (
	MemoryKey   = 256      // characters of a key
	MemoryValue = 64 << 10 // bytes of a value
	MemoryKeys  = 1000     // keys of an agent
	MemoryBytes = 8 << 20  // bytes of all its keys and values
)

// MemoryView is one value that an agent remembers.
type MemoryView struct {
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
	UpdatedAt int64           `json:"updatedAt"`
}

// MemoriesView is one page of what an agent remembers, in the order of the
// keys. Next is the cursor of the page after it.
type MemoriesView struct {
	AgentID string       `json:"agentId"`
	Entries []MemoryView `json:"entries"`
	Next    string       `json:"next,omitempty"`
}

// Memories lists what an agent remembers.
func (s *Swarm) Memories(ctx context.Context, id, after string, limit int) (MemoriesView, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return MemoriesView{}, err
	}
	all, err := s.Ledger.Memories(ctx, id, after, limit)
	view := MemoriesView{AgentID: id, Entries: make([]MemoryView, len(all))}
	for i, m := range all {
		view.Entries[i] = MemoryView(m)
	}
	if len(all) > 0 && len(all) == limit {
		view.Next = all[limit-1].Key
	}
	return view, err
}

// Memory reads one value. Errors: ErrNotFound.
func (s *Swarm) Memory(ctx context.Context, id, key string) (MemoryView, error) {
	if _, err := s.agentRow(ctx, id); err != nil {
		return MemoryView{}, err
	}
	m, err := s.Ledger.Memory(ctx, id, key)
	if errors.Is(err, ledger.ErrNotFound) {
		return MemoryView{}, notFound("memory", fmt.Sprintf("%s of %s", key, id))
	}
	return MemoryView(m), err
}

// Remember stores a value under a key, in place of the one before.
func (s *Swarm) Remember(ctx context.Context, id, key string, value json.RawMessage, idem Idempotency) (MemoryView, error) {
	if n := utf8.RuneCountInString(key); n == 0 || n > MemoryKey || !utf8.ValidString(key) {
		return MemoryView{}, invalid("key", fmt.Sprintf("must have 1 to %d characters", MemoryKey))
	}
	var small bytes.Buffer
	if err := json.Compact(&small, value); err != nil {
		return MemoryView{}, invalid("value", "must be JSON")
	}
	if small.Len() > MemoryValue {
		return MemoryView{}, invalid("value", fmt.Sprintf("has %d bytes, at most %d", small.Len(), MemoryValue))
	}
	return idempotent(ctx, s, idem, func(req withKey) (MemoryView, error) {
		unlock, err := s.memories.Lock(ctx, id)
		if err != nil {
			return MemoryView{}, err
		}
		defer unlock()
		if err := s.remembers(ctx, id, "remember for"); err != nil {
			return MemoryView{}, err
		}
		keys, size, err := s.Ledger.MemoryUse(ctx, id, key)
		if err != nil {
			return MemoryView{}, err
		}
		if keys >= MemoryKeys || size+int64(len(key)+small.Len()) > MemoryBytes {
			return MemoryView{}, &Error{Kind: ErrConflict, Code: "memory_full", Message: fmt.Sprintf(
				"agent %s remembers %d keys of %d bytes in all; at most %d of %d", id, keys, size, MemoryKeys, MemoryBytes)}
		}
		view := MemoryView{Key: key, Value: small.Bytes(), UpdatedAt: s.Clock.Now().UnixMilli()}
		events, err := s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{AgentID: id, By: actor(ctx), Event: ledger.MemorySet,
			Payload: ledger.MemoryPayload{Key: key, Value: view.Value}}}, Request: req(view)})
		if err == nil {
			view.UpdatedAt = events[0].TS
		}
		return view, err
	})
}

// Forget drops a value. One that is not there is no error.
func (s *Swarm) Forget(ctx context.Context, id, key string, idem Idempotency) error {
	_, err := idempotent(ctx, s, idem, func(req withKey) (none, error) {
		if err := s.remembers(ctx, id, "forget for"); err != nil {
			return none{}, err
		}
		_, err := s.Ledger.Append(ctx, ledger.Batch{Entries: []ledger.Entry{{AgentID: id, By: actor(ctx), Event: ledger.MemoryDeleted,
			Payload: ledger.MemoryPayload{Key: key}}}, Request: req(none{})})
		return none{}, err
	})
	return err
}

// remembers says whether an agent's memory may still be changed.
func (s *Swarm) remembers(ctx context.Context, id, doing string) error {
	row, err := s.agentRow(ctx, id)
	if err == nil && isFinal(row.State) {
		err = refused(doing, row.State)
	}
	return err
}
