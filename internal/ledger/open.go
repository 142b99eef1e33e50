package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Metrics is told of the ledger's work. Its methods must not block.
type Metrics interface {
	// LedgerCommitted: one transaction with that many batches and events was
	// made durable, in that time.
	LedgerCommitted(took time.Duration, batches, events int)
}

// Options of a ledger. The zero value is a safe default.
type Options struct {
	Clock   clockwork.Clock // nil: the real one
	Log     *zap.Logger     // nil: none
	Metrics Metrics         // nil: none
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

const (
	// readers is the size of the pool of reading connections. Each holds a
	// page cache of its own, and two cores feed no more.
	readers = 4
	// busyMs is how long a statement waits for another process that has the
	// file, as `ledger rebuild` run by hand.
	busyMs = 5000
	// walKeepBytes is what is left of a write-ahead log that a long read made
	// grow.
	walKeepBytes = 64 << 20
)

// Ledger is an open ledger. Its methods are safe for concurrent use.
type Ledger struct {
	path    string
	o       Options
	writeDB *sql.DB
	readDB  *sql.DB
	stmts   sync.Map // text of a query → *sql.Stmt of readDB
	last    atomic.Int64
	hub     *hub

	mu     sync.Mutex // guards queue and closed
	queue  []*work
	closed bool
	wake   chan struct{}

	closeOnce sync.Once
	closeErr  error
	stopped   chan struct{}
}

// Open opens the ledger at path, makes it if it is not there, and brings it
// to the newest schema. The caller holds the state directory's lock. It is
// ErrNewer or ErrDamaged where the file cannot be used; such a file is left as
// it is.
func Open(ctx context.Context, path string, o Options) (*Ledger, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	o = o.withDefaults()
	if err := refuse(ctx, path); err != nil {
		return nil, err
	}
	l := &Ledger{path: path, o: o, hub: newHub(), wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	w, err := l.openWriter(ctx)
	if err != nil {
		return nil, err
	}
	l.readDB, err = sql.Open("sqlite", dsn(path, "rw", "query_only(1)"))
	if err != nil {
		w.close()
		return nil, errors.Join(classify("opening", path, err), l.writeDB.Close())
	}
	l.readDB.SetMaxOpenConns(readers)
	l.readDB.SetMaxIdleConns(readers)
	go func() {
		defer close(l.stopped)
		l.write(w)
	}()
	return l, nil
}

// refuse looks at an existing file without a right to write, so that one that
// cannot be used stays as it is to the byte.
func refuse(ctx context.Context, path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
		return nil
	}
	if err != nil {
		return classify("opening", path, err)
	}
	db, c, err := openOne(ctx, dsn(path, "ro"))
	if err != nil {
		return classify("opening", path, err)
	}
	defer db.Close()
	defer c.Close()
	_, err = version(ctx, c, path)
	return err
}

func (l *Ledger) openWriter(ctx context.Context) (w *writer, err error) {
	// Made here rather than by SQLite, for its mode: prompts stand in it.
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, classify("opening", l.path, err)
	}
	if err := f.Close(); err != nil {
		return nil, classify("opening", l.path, err)
	}
	db, c, err := openOne(ctx, dsn(l.path, "rw", "journal_mode(WAL)", "synchronous(FULL)",
		fmt.Sprintf("journal_size_limit(%d)", walKeepBytes)))
	if err != nil {
		return nil, classify("opening", l.path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(), db.Close())
		}
	}()
	var mode string
	if err := c.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return nil, classify("opening", l.path, err)
	}
	if mode != "wal" {
		return nil, classify("opening", l.path, fmt.Errorf("journal mode is %s: the file system cannot hold a write-ahead log", mode))
	}
	from, err := version(ctx, c, l.path)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, c, l.path, from, l.o.Clock.Now().UnixMilli()); err != nil {
		return nil, err
	}
	if from == 0 {
		// SQLite syncs the file; that the directory names it is up to us.
		if err := syncDir(filepath.Dir(l.path)); err != nil {
			return nil, classify("syncing the directory", l.path, err)
		}
	}
	l.writeDB = db
	w = newWriter(l, c)
	if err := w.load(); err != nil {
		return nil, missingTable("reading the end of the log", l.path, err)
	}
	l.last.Store(w.last)
	l.hub.start(w.last)
	return w, nil
}

// openOne opens a database for exactly one connection.
func openOne(ctx context.Context, name string) (*sql.DB, *sql.Conn, error) {
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1)
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, c, nil
}

func dsn(path, mode string, pragmas ...string) string {
	q := url.Values{"mode": {mode}, "_pragma": append([]string{
		fmt.Sprintf("busy_timeout(%d)", busyMs), "temp_store(MEMORY)"}, pragmas...)}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	return u.String()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close ends the ledger: appends that wait are still stored and answered,
// followers end, and later calls are ErrClosed. It is idempotent, and every
// call returns when all has ended.
func (l *Ledger) Close() error {
	l.closeOnce.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.poke()
		<-l.stopped
		l.hub.close()
		l.stmts.Range(func(_, s any) bool {
			_ = s.(*sql.Stmt).Close()
			return true
		})
		// The writer last: the last connection of a file folds the
		// write-ahead log into it.
		if err := errors.Join(l.readDB.Close(), l.writeDB.Close()); err != nil {
			l.closeErr = classify("closing", l.path, err)
		}
	})
	return l.closeErr
}

// LastSeq is the sequence number of the last event stored; 0 when there is
// none.
func (l *Ledger) LastSeq() int64 { return l.last.Load() }

func (l *Ledger) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// poke tells the writer that there is something to do.
func (l *Ledger) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
