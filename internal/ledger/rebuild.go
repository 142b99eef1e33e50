package ledger

import (
	"context"
	"fmt"
)

// Rebuild replaces the projections by a fresh fold of the log, in one
// transaction; appends wait for it. Events that cannot be folded are set aside
// and stand in the report as differences. Cursors are kept, since the log does
// not say all of them, and moved up where they lie behind it.
func (l *Ledger) Rebuild(ctx context.Context) (Report, error) {
	r := &report{unknown: map[string]int{}}
	err := l.do(ctx, &work{alone: func(w *writer) error {
		err := w.rebuild(ctx, r)
		if lerr := w.load(); err == nil {
			err = lerr
		}
		l.last.Store(w.last)
		return err
	}})
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Report{}, fmt.Errorf("rebuilding the projections: %w", classify("rebuilding", l.path, err))
	}
	return r.finish(), nil
}

func (w *writer) rebuild(ctx context.Context, r *report) (err error) {
	if err := w.t.begin(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.t.rollback()
		}
	}()
	for _, p := range projections {
		if _, err := w.t.exec("DELETE FROM " + p.table); err != nil {
			return err
		}
	}
	if err := refold(ctx, w.conn, newFolder(w.t), r); err != nil {
		return err
	}
	if _, err := w.t.exec(`INSERT INTO cursors (sandbox_id, epoch, pos)
		SELECT sandbox_id, coalesce(cursor_epoch, ''), max(cursor_pos) FROM ledger WHERE cursor_pos IS NOT NULL GROUP BY sandbox_id
		ON CONFLICT (sandbox_id) DO UPDATE SET epoch = excluded.epoch, pos = excluded.pos WHERE pos < excluded.pos`); err != nil {
		return err
	}
	return w.t.commit()
}
