package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Report is what Verify and Rebuild found.
type Report struct {
	Events int64 // read from the log
	// Differences are what is wrong: between the log and the projections, or
	// in the log itself.
	Differences []string
	// Notes are what is unusual and yet right, as events of unknown names.
	Notes []string
	OK    bool // no differences
}

// maxDifferences bounds the report; what is beyond it is counted.
const maxDifferences = 100

type report struct {
	Report
	more    int
	unknown map[string]int
}

func (r *report) differ(format string, args ...any) {
	if len(r.Differences) >= maxDifferences {
		r.more++
		return
	}
	r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
}

func (r *report) finish() Report {
	if r.more > 0 {
		r.Differences = append(r.Differences, fmt.Sprintf("and %d more", r.more))
	}
	for _, name := range slices.Sorted(maps.Keys(r.unknown)) {
		r.Notes = append(r.Notes, fmt.Sprintf("%d events of the unknown name %q", r.unknown[name], name))
	}
	r.OK = len(r.Differences) == 0
	return r.Report
}

// Verify folds the whole log into a scratch database and compares it with the
// projections, row by row and column by column. It also checks that the log has
// no gaps, that its JSON can be read, that bodies belong to events, and that no
// cursor lies behind what was taken in. It reads one moment of the ledger and
// holds up no append. What it finds stands in the report; its error is one of
// not having been able to look.
func (l *Ledger) Verify(ctx context.Context) (Report, error) {
	if l.isClosed() {
		return Report{}, fmt.Errorf("verifying: %w", ErrClosed)
	}
	return VerifyFile(ctx, l.path)
}

// VerifyFile is Verify of a file that a daemon may hold or not. It only reads.
func VerifyFile(ctx context.Context, path string) (Report, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Report{}, fmt.Errorf("verifying: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return Report{}, classify("verifying", path, err)
	}
	db, c, err := openOne(ctx, dsn(path, "ro"))
	if err != nil {
		return Report{}, classify("verifying", path, err)
	}
	defer db.Close()
	defer c.Close()
	v, err := version(ctx, c, path)
	if err != nil {
		return Report{}, err
	}
	if v != newest() {
		return Report{}, classify("verifying", path,
			fmt.Errorf("schema version %d: start this alineod once, so that it is brought to %d", v, newest()))
	}
	// The transaction fixes the moment that is looked at.
	if _, err := c.ExecContext(ctx, "BEGIN"); err != nil {
		return Report{}, classify("verifying", path, err)
	}
	r := &report{unknown: map[string]int{}}
	if err := verify(ctx, c, r); err != nil {
		if ctx.Err() != nil {
			return r.finish(), fmt.Errorf("verifying: %w", ctx.Err())
		}
		return r.finish(), classify("verifying", path, err)
	}
	return r.finish(), nil
}

func verify(ctx context.Context, c *sql.Conn, r *report) error {
	if err := checkPages(ctx, c, r); err != nil {
		return err
	}
	// A database without a name is SQLite's own temporary one: in memory, and
	// on disk when it grows.
	sdb, sc, err := openOne(ctx, "")
	if err != nil {
		return err
	}
	defer sdb.Close()
	defer sc.Close()
	if _, err := sc.ExecContext(ctx, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN"); err != nil {
		return err
	}
	for _, m := range migrations {
		if _, err := sc.ExecContext(ctx, m.sql); err != nil {
			return err
		}
	}
	t := newTx(sc)
	defer t.close()
	if err := refold(ctx, c, newFolder(t), r); err != nil {
		return err
	}
	if err := checkCursors(ctx, c, r); err != nil {
		return err
	}
	if err := checkBodies(ctx, c, r); err != nil {
		return err
	}
	for _, p := range projections {
		if err := compare(ctx, c, sc, p.table, p.key, r); err != nil {
			return fmt.Errorf("comparing %s: %w", p.table, err)
		}
	}
	return nil
}

// checkPages asks SQLite about the file's own structure.
func checkPages(ctx context.Context, c *sql.Conn, r *report) error {
	return each(ctx, c, "PRAGMA quick_check", nil, func(rows *sql.Rows) error {
		var s string
		if err := rows.Scan(&s); err != nil {
			return err
		}
		if s != "ok" {
			r.differ("file: %s", s)
		}
		return nil
	})
}

// foldPage is how many events are read at a time: reading and folding take
// turns, since a rebuild does both on one connection.
const foldPage = 1000

// refold folds the whole log. An event that cannot be read or does not fit
// what came before it is set aside with a difference.
func refold(ctx context.Context, c *sql.Conn, f *folder, r *report) error {
	var last int64
	for {
		var page []Event
		err := each(ctx, c, `SELECT seq, ts, run_id, agent_id, sandbox_id, turn_id, event, payload, NULL FROM ledger
			WHERE seq > ? ORDER BY seq LIMIT ?`, []any{last, foldPage}, func(rows *sql.Rows) error {
			e, err := scanEvent(rows)
			page = append(page, e)
			return err
		})
		if err != nil {
			return err
		}
		for i := range page {
			e := &page[i]
			if e.Seq != last+1 {
				r.differ("log: events %d to %d are missing", last+1, e.Seq-1)
			}
			last = e.Seq
			r.Events++
			if err := foldOne(f, e, r); err != nil {
				return fmt.Errorf("folding event %d: %w", e.Seq, err)
			}
		}
		if len(page) < foldPage {
			return nil
		}
	}
}

func foldOne(f *folder, e *Event, r *report) error {
	if _, known := folds[e.Event]; !known {
		r.unknown[e.Event]++
	}
	if !json.Valid(e.Payload) {
		r.differ("log: event %d (%s): payload is no JSON", e.Seq, e.Event)
		return f.x.add(f.t, e)
	}
	err := f.fold(e)
	if err == nil || !refusal(err) {
		return err
	}
	r.differ("log: event %d: %v", e.Seq, err)
	return f.x.add(f.t, e) // it is found by its agent all the same
}

// checkCursors compares the cursors with the positions that the log's own
// events carry.
func checkCursors(ctx context.Context, c *sql.Conn, r *report) error {
	type mark struct {
		seq, pos int64
	}
	marks := map[string]mark{}
	err := each(ctx, c, "SELECT seq, sandbox_id, cursor_pos FROM ledger WHERE cursor_pos IS NOT NULL ORDER BY seq", nil,
		func(rows *sql.Rows) error {
			var m mark
			var sandbox string
			if err := rows.Scan(&m.seq, &sandbox, &m.pos); err != nil {
				return err
			}
			if before, ok := marks[sandbox]; ok && m.pos <= before.pos {
				r.differ("log: event %d: cursor of sandbox %s went from %d to %d", m.seq, sandbox, before.pos, m.pos)
			}
			marks[sandbox] = m
			return nil
		})
	if err != nil {
		return err
	}
	stored := map[string]int64{}
	err = each(ctx, c, "SELECT sandbox_id, pos FROM cursors", nil, func(rows *sql.Rows) error {
		var sandbox string
		var pos int64
		if err := rows.Scan(&sandbox, &pos); err != nil {
			return err
		}
		stored[sandbox] = pos
		return nil
	})
	if err != nil {
		return err
	}
	for _, sandbox := range slices.Sorted(maps.Keys(marks)) {
		m := marks[sandbox]
		if pos, ok := stored[sandbox]; !ok {
			r.differ("cursors: sandbox %s has none, event %d took its journal in up to %d", sandbox, m.seq, m.pos)
		} else if pos < m.pos {
			r.differ("cursors: sandbox %s is at %d, event %d took its journal in up to %d", sandbox, pos, m.seq, m.pos)
		}
	}
	return nil
}

func checkBodies(ctx context.Context, c *sql.Conn, r *report) error {
	return each(ctx, c, "SELECT b.seq, b.body, l.seq FROM bodies b LEFT JOIN ledger l ON l.seq = b.seq ORDER BY b.seq", nil,
		func(rows *sql.Rows) error {
			var seq int64
			var body sql.RawBytes
			var event sql.NullInt64
			if err := rows.Scan(&seq, &body, &event); err != nil {
				return err
			}
			if !event.Valid {
				r.differ("bodies: %d has no event", seq)
			}
			if !json.Valid(body) {
				r.differ("bodies: %d is no JSON", seq)
			}
			return nil
		})
}

// each calls do for every row of a query.
func each(ctx context.Context, c *sql.Conn, query string, args []any, do func(*sql.Rows) error) error {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
