package ledger

import (
	"context"
	"encoding/json"
)

// Memory is one value that an agent remembers.
type Memory struct {
	Key       string
	Value     json.RawMessage
	UpdatedAt int64
}

func foldMemorySet(f *folder, e *Event) error {
	p, err := decode[MemoryPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	_, err = f.t.exec(`INSERT INTO memory (agent_id, key, value, updated_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (agent_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at`,
		e.AgentID, p.Key, string(p.Value), e.TS)
	return err
}

func foldMemoryDeleted(f *folder, e *Event) error {
	p, err := decode[MemoryPayload](e)
	if err != nil {
		return err
	}
	if err := needAgent(e); err != nil {
		return err
	}
	_, err = f.t.exec("DELETE FROM memory WHERE agent_id = ? AND key = ?", e.AgentID, p.Key)
	return err
}

const memoryColumns = "key, value, updated_at FROM memory"

func scanMemory(s scanner) (m Memory, err error) {
	var value string
	err = s.Scan(&m.Key, &value, &m.UpdatedAt)
	m.Value = json.RawMessage(value)
	return m, err
}

// Memory reads what an agent remembers under a key, or is ErrNotFound.
func (l *Ledger) Memory(ctx context.Context, agentID, key string) (Memory, error) {
	return single(ctx, l, "reading the memory of "+agentID, "SELECT "+memoryColumns+" WHERE agent_id = ? AND key = ?", []any{agentID, key}, scanMemory)
}

// Memories reads what an agent remembers under the keys after one, in the order
// of the keys; at most limit of them, where that is above 0.
func (l *Ledger) Memories(ctx context.Context, agentID, after string, limit int) ([]Memory, error) {
	var s selection
	s.equal("agent_id", agentID)
	if after != "" {
		s.where("key > ?", after)
	}
	return all(ctx, l, "reading the memory of "+agentID, s.sql(memoryColumns, "key", limit), s.args, scanMemory)
}

// MemoryUse says how many keys an agent remembers, and how many bytes they and
// their values have, beside one key.
func (l *Ledger) MemoryUse(ctx context.Context, agentID, beside string) (keys int, bytes int64, err error) {
	err = l.one(ctx, "measuring the memory of "+agentID,
		"SELECT count(*), coalesce(sum(length(CAST(key AS BLOB)) + length(CAST(value AS BLOB))), 0) FROM memory WHERE agent_id = ? AND key <> ?",
		[]any{agentID, beside}, &keys, &bytes)
	return keys, bytes, err
}
