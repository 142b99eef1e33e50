package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// list hands a list of names to a query as one argument, so that the text of
// the query does not depend on how many there are.
func list(names []string) string {
	b, err := json.Marshal(names)
	if err != nil {
		return "[]" // strings always marshal
	}
	return string(b)
}

// statement keeps a prepared query for the life of the ledger. The texts come
// from this package and are few.
func (l *Ledger) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := l.stmts.Load(query); ok {
		return s.(*sql.Stmt), nil
	}
	s, err := l.readDB.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if other, loaded := l.stmts.LoadOrStore(query, s); loaded {
		_ = s.Close()
		return other.(*sql.Stmt), nil
	}
	return s, nil
}

// readErr gives an error of a read its kind.
func (l *Ledger) readErr(ctx context.Context, op string, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", op, ctx.Err())
	case l.isClosed():
		return fmt.Errorf("%s: %w", op, ErrClosed)
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", op, ErrNotFound)
	case errors.Is(err, ErrDamaged):
		return damaged(op, l.path, err)
	}
	return classify(op, l.path, err)
}

// one reads one row; ErrNotFound when there is none.
func (l *Ledger) one(ctx context.Context, op, query string, args []any, dest ...any) error {
	s, err := l.statement(ctx, query)
	if err == nil {
		err = s.QueryRowContext(ctx, args...).Scan(dest...)
	}
	if err != nil {
		return l.readErr(ctx, op, err)
	}
	return nil
}

// selection builds a query from the conditions that are set.
type selection struct {
	conds []string
	args  []any
}

func (s *selection) where(cond string, args ...any) {
	s.conds = append(s.conds, cond)
	s.args = append(s.args, args...)
}

func (s *selection) equal(column, value string) {
	if value != "" {
		s.where(column+" = ?", value)
	}
}

func (s *selection) in(column string, values []string) {
	if len(values) > 0 {
		s.where(column+" IN (SELECT value FROM json_each(?))", list(values))
	}
}

func (s *selection) sql(from, order string, limit int) string {
	q := "SELECT " + from
	if len(s.conds) > 0 {
		q += " WHERE " + strings.Join(s.conds, " AND ")
	}
	q += " ORDER BY " + order
	if limit > 0 {
		q += " LIMIT ?"
		s.args = append(s.args, limit)
	}
	return q
}

// all reads the rows of a query, each with scan.
func all[T any](ctx context.Context, l *Ledger, op, query string, args []any, scan func(scanner) (T, error)) ([]T, error) {
	s, err := l.statement(ctx, query)
	if err != nil {
		return nil, l.readErr(ctx, op, err)
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return nil, l.readErr(ctx, op, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, l.readErr(ctx, op, err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, l.readErr(ctx, op, err)
	}
	return out, nil
}

// single reads the one row of a query; ErrNotFound when there is none.
func single[T any](ctx context.Context, l *Ledger, op, query string, args []any, scan func(scanner) (T, error)) (T, error) {
	rows, err := all(ctx, l, op, query, args, scan)
	var zero T
	switch {
	case err != nil:
		return zero, err
	case len(rows) == 0:
		return zero, fmt.Errorf("%s: %w", op, ErrNotFound)
	}
	return rows[0], nil
}

// scanner is a row to be read.
type scanner interface{ Scan(dest ...any) error }
