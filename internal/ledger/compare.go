package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// compare walks a table of two databases in the order of its key.
func compare(ctx context.Context, have, want *sql.Conn, table, key string, r *report) error {
	query := "SELECT * FROM " + table + " ORDER BY " + key
	a, err := newWalk(ctx, have, query, key)
	if err != nil {
		return err
	}
	defer a.rows.Close()
	b, err := newWalk(ctx, want, query, key)
	if err != nil {
		return err
	}
	defer b.rows.Close()
	if !slices.Equal(a.columns, b.columns) {
		r.differ("%s: has the columns %v, not %v", table, a.columns, b.columns)
		return nil
	}
	for a.row != nil || b.row != nil {
		order := a.compareKey(b)
		if order < 0 {
			r.differ("%s: row %s should not be there", table, a.id())
		}
		if order > 0 {
			r.differ("%s: row %s is missing", table, b.id())
		}
		if order == 0 {
			for i, column := range a.columns {
				if !same(a.row[i], b.row[i]) {
					r.differ("%s: row %s: %s is %s, should be %s", table, a.id(), column, show(a.row[i]), show(b.row[i]))
				}
			}
		}
		if order <= 0 {
			if err := a.next(); err != nil {
				return err
			}
		}
		if order >= 0 {
			if err := b.next(); err != nil {
				return err
			}
		}
	}
	return nil
}

// walk is one side of a comparison.
type walk struct {
	rows    *sql.Rows
	columns []string
	keys    []int // which columns are the key
	row     []any // nil at the end
}

func newWalk(ctx context.Context, c *sql.Conn, query, key string) (*walk, error) {
	rows, err := c.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	w := &walk{rows: rows}
	if w.columns, err = rows.Columns(); err == nil {
		for _, k := range strings.Split(key, ", ") {
			w.keys = append(w.keys, slices.Index(w.columns, k))
		}
		if slices.Contains(w.keys, -1) {
			err = errors.New("a column of its key is missing")
		} else {
			err = w.next()
		}
	}
	if err != nil {
		rows.Close()
		return nil, err
	}
	return w, nil
}

func (w *walk) next() error {
	w.row = nil
	if !w.rows.Next() {
		return w.rows.Err()
	}
	row := make([]any, len(w.columns))
	dest := make([]any, len(row))
	for i := range row {
		dest[i] = &row[i]
	}
	if err := w.rows.Scan(dest...); err != nil {
		return err
	}
	w.row = row
	return nil
}

// compareKey orders two rows as SQLite does; the end comes after everything.
func (w *walk) compareKey(o *walk) int {
	switch {
	case w.row == nil:
		return 1
	case o.row == nil:
		return -1
	}
	for _, k := range w.keys {
		x, y := w.row[k], o.row[k]
		if a, ok := x.(int64); ok {
			if b, ok := y.(int64); ok && a != b {
				if a < b {
					return -1
				}
				return 1
			}
			continue
		}
		if c := strings.Compare(fmt.Sprint(x), fmt.Sprint(y)); c != 0 {
			return c
		}
	}
	return 0
}

func (w *walk) id() string {
	parts := make([]string, len(w.keys))
	for i, k := range w.keys {
		parts[i] = show(w.row[k])
	}
	return strings.Join(parts, ", ")
}

// same compares values and their types: SQLite keeps a type with each value.
func same(a, b any) bool {
	x, isBytes := a.([]byte)
	y, areBytes := b.([]byte)
	if isBytes && areBytes {
		return bytes.Equal(x, y)
	}
	return !isBytes && !areBytes && a == b
}

// show prints a value for a report; long ones are cut.
func show(v any) string {
	const most = 120
	s := fmt.Sprintf("%v", v)
	switch x := v.(type) {
	case nil:
		return "NULL"
	case string:
		s = x
	case []byte:
		s = fmt.Sprintf("%x", x)
	}
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
