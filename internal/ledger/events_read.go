package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// EventFilter says which events of the log are meant. Fields that are zero let
// everything through.
type EventFilter struct {
	After   int64 // those after this sequence number
	Upto    int64 // and up to this one, which is included
	RunID   string
	AgentID string
	TurnID  string
	Names   []string
	Limit   int
	Bodies  bool // load the bodies as well
	Desc    bool // newest first
}

func (f *EventFilter) matches(e *Event) bool {
	return e.Seq > f.After && (f.Upto <= 0 || e.Seq <= f.Upto) &&
		(f.RunID == "" || e.RunID == f.RunID) &&
		(f.AgentID == "" || e.AgentID == f.AgentID) &&
		(f.TurnID == "" || e.TurnID == f.TurnID) &&
		(len(f.Names) == 0 || slices.Contains(f.Names, e.Event))
}

// Events reads from the log. Events of one run, agent or turn are found by the
// index; a filter by names alone reads through the log from After on.
func (l *Ledger) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	// One transaction, so that index and log are of one moment.
	t, err := l.readDB.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, l.readErr(ctx, "reading events", err)
	}
	defer func() { _ = t.Rollback() }() // nothing was written
	r := reader{ctx: ctx, t: t, f: f}
	if err := r.read(); err != nil {
		return nil, l.readErr(ctx, "reading events", err)
	}
	return r.events, nil
}

// reader is one call of Events.
type reader struct {
	ctx    context.Context
	t      *sql.Tx
	f      EventFilter
	events []Event
}

func (r *reader) full() bool { return r.f.Limit > 0 && len(r.events) >= r.f.Limit }

func (r *reader) read() error {
	var last int64
	if err := r.t.QueryRowContext(r.ctx, "SELECT coalesce(max(seq), 0) FROM ledger").Scan(&last); err != nil {
		return err
	}
	if r.f.Upto <= 0 || r.f.Upto > last {
		r.f.Upto = last
	}
	key, err := r.narrow()
	if err != nil || r.f.After >= r.f.Upto {
		return err
	}
	if key == "" {
		return r.scan(r.f.After, r.f.Upto)
	}
	// Blocks before the one of the last event have rows in the index; the last
	// one is read through.
	tail := blockOf(last) * blockSize
	if r.f.Desc {
		if err := r.scan(max(r.f.After, tail-1), r.f.Upto); err != nil {
			return err
		}
		return r.indexed(key, tail)
	}
	if err := r.indexed(key, tail); err != nil {
		return err
	}
	return r.scan(max(r.f.After, tail-1), r.f.Upto)
}

// narrow chooses the key of the index to go by; none for a plain scan. A turn
// is found by its agent, from the turn's request on.
func (r *reader) narrow() (string, error) {
	if r.f.TurnID != "" {
		var agent string
		var seq int64
		err := r.t.QueryRowContext(r.ctx, "SELECT agent_id, requested_seq FROM turns WHERE turn_id = ?", r.f.TurnID).Scan(&agent, &seq)
		switch {
		case err == sql.ErrNoRows:
			// No turn, so it has no events but such as were never its own.
		case err != nil:
			return "", err
		default:
			r.f.After = max(r.f.After, seq-1)
			if r.f.AgentID == "" {
				return agent, nil
			}
		}
	}
	if r.f.AgentID != "" {
		return r.f.AgentID, nil
	}
	return r.f.RunID, nil
}

// indexed reads the key's events of the blocks that lie before tail.
func (r *reader) indexed(key string, tail int64) error {
	order := "ASC"
	if r.f.Desc {
		order = "DESC"
	}
	from, to := blockOf(r.f.After+1), min(blockOf(r.f.Upto), blockOf(tail)-1)
	if from > to {
		return nil
	}
	rows, err := r.t.QueryContext(r.ctx, "SELECT block, seqs FROM seq_index WHERE key = ? AND block BETWEEN ? AND ? ORDER BY block "+order,
		key, from, to)
	if err != nil {
		return err
	}
	defer rows.Close()
	for !r.full() && rows.Next() {
		var block int64
		var b []byte
		if err := rows.Scan(&block, &b); err != nil {
			return err
		}
		seqs, err := decodeSeqs(block, b)
		if err != nil {
			return fmt.Errorf("block %d of %s: %w: %w", block, key, err, ErrDamaged)
		}
		list, err := json.Marshal(seqs)
		if err != nil {
			return err
		}
		if err := r.rows("l.seq IN (SELECT value FROM json_each(?)) AND l.seq > ? AND l.seq <= ?", string(list), r.f.After, r.f.Upto); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (r *reader) scan(after, upto int64) error {
	if after >= upto || r.full() {
		return nil
	}
	return r.rows("l.seq > ? AND l.seq <= ?", after, upto)
}

// rows reads events of a condition and the filter.
func (r *reader) rows(where string, args ...any) error {
	var q strings.Builder
	q.WriteString("SELECT l.seq, l.ts, l.run_id, l.agent_id, l.sandbox_id, l.turn_id, l.event, l.payload")
	if r.f.Bodies {
		q.WriteString(", b.body FROM ledger l LEFT JOIN bodies b ON b.seq = l.seq")
	} else {
		q.WriteString(", NULL FROM ledger l")
	}
	q.WriteString(" WHERE " + where)
	for _, c := range [3]struct{ column, is string }{{"run_id", r.f.RunID}, {"agent_id", r.f.AgentID}, {"turn_id", r.f.TurnID}} {
		if c.is != "" {
			q.WriteString(" AND l." + c.column + " = ?")
			args = append(args, c.is)
		}
	}
	if len(r.f.Names) > 0 {
		q.WriteString(" AND l.event IN (SELECT value FROM json_each(?))")
		args = append(args, list(r.f.Names))
	}
	q.WriteString(" ORDER BY l.seq")
	if r.f.Desc {
		q.WriteString(" DESC")
	}
	if r.f.Limit > 0 {
		q.WriteString(" LIMIT ?")
		args = append(args, r.f.Limit-len(r.events))
	}
	rows, err := r.t.QueryContext(r.ctx, q.String(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		e, err := scanEvent(rows)
		if err != nil {
			return err
		}
		r.events = append(r.events, e)
	}
	return rows.Err()
}

func scanEvent(rows *sql.Rows) (e Event, err error) {
	var payload string
	var body sql.NullString
	err = rows.Scan(&e.Seq, &e.TS, &e.RunID, &e.AgentID, &e.SandboxID, &e.TurnID, &e.Event, &payload, &body)
	e.Payload = json.RawMessage(payload)
	if body.Valid {
		e.Body = json.RawMessage(body.String)
	}
	return e, err
}

// Body reads the body of an event. It is ErrNotFound for one without.
func (l *Ledger) Body(ctx context.Context, seq int64) (json.RawMessage, error) {
	var body string
	err := l.one(ctx, "reading a body", "SELECT body FROM bodies WHERE seq = ?", []any{seq}, &body)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(body), nil
}
