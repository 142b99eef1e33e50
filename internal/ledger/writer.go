package ledger

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/failpoint"
)

// Bounds of one transaction, so that the first of many waiting callers does
// not wait for all of them.
const (
	maxGroupBatches = 512
	maxGroupBytes   = 8 << 20
)

// writer is the one goroutine that writes.
type writer struct {
	l    *Ledger
	conn *sql.Conn
	t    *tx
	f    *folder
	last int64 // sequence number of the last event of the transaction at hand
	// expect is how many callers there were at the end of the last one: those
	// answered, and those that waited by then.
	expect int

	// Of the transaction at hand: what is written at its end, all rows at
	// once, since no fold reads it.
	rows []row
}

type row struct {
	*Event
	epoch any // string, or nil: no cursor ends here
	pos   any // int64, or nil
}

func newWriter(l *Ledger, c *sql.Conn) *writer {
	t := newTx(c)
	return &writer{l: l, conn: c, t: t, f: newFolder(t)}
}

// load reads where the log ends, and the block that is not full yet. It
// forgets what was in memory of a transaction that failed.
func (w *writer) load() error {
	clear(w.f.runs)
	w.f.x.open = nil
	if _, err := w.t.get("SELECT coalesce(max(seq), 0) FROM ledger", nil, &w.last); err != nil {
		return err
	}
	s, err := w.t.prepare("SELECT seq, agent_id, run_id FROM ledger WHERE seq >= ? ORDER BY seq")
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(context.Background(), blockOf(w.last)*blockSize)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i indexed
		if err := rows.Scan(&i.seq, &i.agentID, &i.run); err != nil {
			return err
		}
		w.f.x.open = append(w.f.x.open, i)
	}
	return rows.Err()
}

func (w *writer) close() {
	w.t.close()
	_ = w.conn.Close()
}

// write is the writer's loop. It ends when the ledger is closed and nothing
// waits any more.
func (l *Ledger) write(w *writer) {
	defer w.close()
	for {
		l.gather(w.expect)
		group, closed := l.take()
		switch {
		case len(group) == 1 && group[0].alone != nil:
			group[0].err = group[0].alone(w)
			close(group[0].done)
		case len(group) > 0:
			w.commit(group)
		case closed:
			return
		default:
			<-l.wake
		}
	}
}

// The writer waits for callers that it has just answered as long as one more
// comes within gatherGap, and no longer than gatherFor: less than what a sync
// of the disk takes.
const (
	gatherGap = 50 * time.Microsecond
	gatherFor = 400 * time.Microsecond
)

// gather lets the callers of the last transaction come back and join those that
// came in the meantime. Without it the fastest of them would have a transaction
// of its own, and all others would wait for its sync. A lone caller waits for
// nobody.
func (l *Ledger) gather(expect int) {
	have := l.waiting()
	if expect < 2 || have == 0 {
		return
	}
	start := time.Now()
	for newest := start; have < expect; {
		runtime.Gosched()
		now, n := time.Now(), l.waiting()
		if n > have {
			have, newest = n, now
		}
		if now.Sub(newest) > gatherGap || now.Sub(start) > gatherFor {
			return
		}
	}
}

func (l *Ledger) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// take takes up what waits: a group of batches, or one work that runs alone.
func (l *Ledger) take() (group []*work, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for _, w := range l.queue {
		if len(group) > 0 && (w.alone != nil || len(group) == maxGroupBatches || size+w.size > maxGroupBytes) {
			break
		}
		n++
		if !w.state.CompareAndSwap(waiting, taken) {
			continue
		}
		group = append(group, w)
		size += w.size
		if w.alone != nil {
			break
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return group, l.closed
}

// errPartial: a batch failed after it had changed something, in a transaction
// that has no savepoint to go back to.
var errPartial = errors.New("batch failed half-way")

// commit stores a group in one transaction and answers its callers.
func (w *writer) commit(group []*work) {
	start := w.l.o.Clock.Now()
	before := w.last
	// Savepoints cost as much as a small batch, and a batch seldom fails
	// after its first write. So the first try does without.
	err := w.try(group, start, false)
	if errors.Is(err, errPartial) {
		w.undo(before)
		err = w.try(group, start, true)
	}
	if err != nil {
		w.undo(before)
		err = classify("storing", w.l.path, err)
		if lerr := w.load(); lerr != nil {
			err = errors.Join(err, classify("reading the end of the log", w.l.path, lerr))
		}
		w.l.o.Log.Error("ledger: a transaction failed", zap.Error(err), zap.Int("batches", len(group)))
		for _, b := range group {
			b.events, b.err = nil, err
			close(b.done)
		}
		return
	}
	failpoint.Hit("ledger.after-commit")
	w.expect = len(group) + w.l.waiting()
	var events []Event
	stored := 0
	for _, b := range group {
		if b.err == nil {
			stored++
			events = append(events, b.events...)
		}
	}
	w.l.last.Store(w.last)
	// Followers first: who has its answer finds the event with any of them.
	w.l.hub.publish(events)
	if m := w.l.o.Metrics; m != nil && stored > 0 {
		m.LedgerCommitted(w.l.o.Clock.Since(start), stored, len(events))
	}
	for _, b := range group {
		for i := range b.events {
			b.events[i].Body = nil
		}
		close(b.done)
	}
}

func (w *writer) undo(last int64) {
	w.t.rollback()
	w.last = last
	w.rows = w.rows[:0]
	clear(w.f.runs)
}

// try runs the transaction. Its error is one of the whole group; what is wrong
// with one batch stands in that batch.
func (w *writer) try(group []*work, now time.Time, savepoints bool) error {
	if err := w.t.begin(); err != nil {
		return err
	}
	open := w.f.x.open
	w.rows = w.rows[:0]
	for _, b := range group {
		if err := w.batch(b, now.UnixMilli(), savepoints); err != nil {
			w.f.x.open = open
			return err
		}
	}
	if err := w.insert(); err != nil {
		return err
	}
	failpoint.Hit("ledger.before-commit")
	return w.t.commit()
}

// batch does one batch of the transaction. It returns an error only when the
// transaction cannot go on.
func (w *writer) batch(b *work, ts int64, savepoint bool) error {
	last, rows, open, writes := w.last, len(w.rows), w.f.x.open, w.t.writes
	if savepoint {
		if _, err := w.t.exec("SAVEPOINT batch"); err != nil {
			return err
		}
		writes = w.t.writes
	}
	b.events, b.err = nil, nil
	err := w.apply(b, ts)
	if err != nil {
		if !refusal(err) {
			return err
		}
		w.last, w.rows, w.f.x.open = last, w.rows[:rows], open
		b.events, b.err = nil, err
		if w.t.writes != writes {
			if !savepoint {
				return errPartial
			}
			clear(w.f.runs)
			if _, err := w.t.exec("ROLLBACK TO batch"); err != nil {
				return err
			}
		}
	}
	if savepoint {
		_, err := w.t.exec("RELEASE batch")
		return err
	}
	return nil
}

// refusal reports an error that concerns its batch only.
func refusal(err error) bool {
	for _, kind := range [...]error{ErrConflict, ErrCursor, ErrDuplicate, ErrKeyReused, ErrInvalid} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (w *writer) apply(b *work, ts int64) error {
	if r := b.request; r != nil {
		if err := w.f.freshRequest(r.Scope, r.Key, r.BodyHash); err != nil {
			return err
		}
	}
	if c := b.cursor; c != nil {
		n, err := w.t.exec(`INSERT INTO cursors (sandbox_id, epoch, pos) VALUES (?1, ?2, ?3)
			ON CONFLICT (sandbox_id) DO UPDATE SET epoch = ?2, pos = ?3 WHERE pos < ?3`, c.SandboxID, c.Epoch, c.Pos)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrCursor
		}
	}
	b.events = make([]Event, len(b.entries))
	marked := false
	for i := range b.entries {
		e := &b.events[i]
		*e = b.entries[i].Event
		e.Seq, e.TS = w.last+1, ts
		if err := w.f.fold(e); err != nil {
			return err
		}
		w.last++
		w.rows = append(w.rows, row{Event: e})
	}
	// The batch's last event of that sandbox carries the cursor, so that the
	// log itself tells how far the journal was taken in.
	for i := len(w.rows) - 1; b.cursor != nil && !marked && i >= len(w.rows)-len(b.events); i-- {
		if r := &w.rows[i]; r.SandboxID == b.cursor.SandboxID {
			r.epoch, r.pos, marked = b.cursor.Epoch, b.cursor.Pos, true
		}
	}
	return nil
}

const (
	insertEvents = "INSERT INTO ledger (seq, ts, run_id, agent_id, sandbox_id, turn_id, event, payload, cursor_epoch, cursor_pos) VALUES "
	insertBodies = "INSERT INTO bodies (seq, body) VALUES "
)

// chunks are the numbers of rows of one INSERT, in the order they are tried.
var chunks = [...]int{64, 8, 1}

var (
	eventStmts = valuesOf(insertEvents, "(?,?,?,?,?,?,?,?,?,?)")
	bodyStmts  = valuesOf(insertBodies, "(?,?)")
)

func valuesOf(insert, tuple string) (stmts [len(chunks)]string) {
	for i, n := range chunks {
		stmts[i] = insert + strings.Repeat(tuple+",", n-1) + tuple
	}
	return stmts
}

// insert writes the rows of the log and the bodies of the transaction.
func (w *writer) insert() error {
	var args []any
	bodies := w.rows[:0:0]
	err := inChunks(w.rows, func(i int, rows []row) error {
		args = args[:0]
		for _, r := range rows {
			args = append(args, r.Seq, r.TS, r.RunID, r.AgentID, r.SandboxID, r.TurnID, r.Event.Event, string(r.Payload), r.epoch, r.pos)
			if r.Body != nil {
				bodies = append(bodies, r)
			}
		}
		_, err := w.t.exec(eventStmts[i], args...)
		return err
	})
	if err != nil {
		return err
	}
	return inChunks(bodies, func(i int, rows []row) error {
		args = args[:0]
		for _, r := range rows {
			args = append(args, r.Seq, string(r.Body))
		}
		_, err := w.t.exec(bodyStmts[i], args...)
		return err
	})
}

// inChunks calls do with as many rows as one of the prepared statements takes,
// and that statement's index.
func inChunks(rows []row, do func(stmt int, rows []row) error) error {
	for i, n := range chunks {
		for len(rows) >= n {
			if err := do(i, rows[:n]); err != nil {
				return err
			}
			rows = rows[n:]
		}
	}
	return nil
}
