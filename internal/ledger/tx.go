package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// tx is one connection with its prepared statements: the writer's, or that of
// a scratch database. It belongs to one goroutine.
type tx struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	// writes counts statements that have changed something, or may have. Who finds it
	// unchanged has nothing to take back.
	writes int
}

func newTx(conn *sql.Conn) *tx { return &tx{conn: conn, stmts: map[string]*sql.Stmt{}} }

// prepare keeps each statement for the life of the connection. The texts are
// constants of this package, so their number is bounded. The context is the
// background one throughout: a transaction that was begun is ended, whatever
// becomes of its callers.
func (t *tx) prepare(query string) (*sql.Stmt, error) {
	if s := t.stmts[query]; s != nil {
		return s, nil
	}
	s, err := t.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("preparing a statement: %w", err)
	}
	t.stmts[query] = s
	return s, nil
}

// exec runs a statement and returns the number of rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	s, err := t.prepare(query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		t.writes++
		return 0, err
	}
	n, err := r.RowsAffected()
	if n > 0 || err != nil {
		t.writes++
	}
	return n, err
}

// get reads one row; false when there is none.
func (t *tx) get(query string, args []any, dest ...any) (bool, error) {
	s, err := t.prepare(query)
	if err != nil {
		return false, err
	}
	err = s.QueryRowContext(context.Background(), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (t *tx) begin() error {
	_, err := t.exec("BEGIN IMMEDIATE")
	return err
}

func (t *tx) commit() error {
	_, err := t.exec("COMMIT")
	return err
}

// rollback leaves no transaction open. SQLite has ended it by itself after
// some errors (a full disk), and then says so; that is no failure.
func (t *tx) rollback() { _, _ = t.exec("ROLLBACK") }

func (t *tx) close() {
	for _, s := range t.stmts {
		_ = s.Close()
	}
	t.stmts = nil
}
