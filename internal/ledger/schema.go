package ledger

import (
	"context"
	"database/sql"
	"fmt"
)

// applicationID marks a file as ours ("alin"), so that another program's
// database is refused instead of written into.
const applicationID = 0x616c696e

// A migration takes a database from the version before it to its own. It is
// never changed once released; a change of the schema is a new one at the end.
type migration struct {
	version int
	sql     string
}

var migrations = []migration{{1, schema1}, {2, schema2}, {3, schema3}}

// schema1 is the log, its side table, and the projections.
//
// The log has no index by agent or run: in a swarm each append would touch
// one more page per agent, which costs more than the append itself. The table
// seq_index says instead, per block of the log, which events are whose; see
// index.go.
const schema1 = `
CREATE TABLE ledger (
	seq          INTEGER PRIMARY KEY,
	ts           INTEGER NOT NULL,
	run_id       TEXT NOT NULL,
	agent_id     TEXT NOT NULL,
	sandbox_id   TEXT NOT NULL,
	turn_id      TEXT NOT NULL,
	event        TEXT NOT NULL,
	payload      TEXT NOT NULL,
	cursor_epoch TEXT,
	cursor_pos   INTEGER
);
CREATE TABLE bodies (
	seq  INTEGER PRIMARY KEY,
	body TEXT NOT NULL
);
CREATE TABLE seq_index (
	key   TEXT NOT NULL,
	block INTEGER NOT NULL,
	seqs  BLOB NOT NULL,
	PRIMARY KEY (key, block)
) WITHOUT ROWID;
CREATE TABLE cursors (
	sandbox_id TEXT PRIMARY KEY,
	epoch      TEXT NOT NULL,
	pos        INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE runs (
	run_id        TEXT PRIMARY KEY,
	root_agent_id TEXT NOT NULL,
	close_when    TEXT NOT NULL,
	state         TEXT NOT NULL,
	created_at    INTEGER NOT NULL,
	closed_at     INTEGER NOT NULL DEFAULT 0,
	agents        INTEGER NOT NULL DEFAULT 0,
	started_seq   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (started_seq);
CREATE INDEX runs_by_state ON runs (state, started_seq);

CREATE TABLE agents (
	agent_id        TEXT PRIMARY KEY,
	run_id          TEXT NOT NULL,
	parent_agent_id TEXT NOT NULL,
	depth           INTEGER NOT NULL,
	spawn_index     INTEGER NOT NULL,
	spec_name       TEXT NOT NULL,
	harness         TEXT NOT NULL,
	model           TEXT NOT NULL,
	runtime         TEXT NOT NULL,
	setup_hash      TEXT NOT NULL,
	checkpointing   INTEGER NOT NULL,
	spawn_depth     INTEGER,
	max_agents      INTEGER,
	spawned_seq     INTEGER NOT NULL,
	state           TEXT NOT NULL,
	reason          TEXT NOT NULL DEFAULT '',
	recovering      TEXT NOT NULL DEFAULT '',
	paused_by       TEXT NOT NULL DEFAULT '',
	outcome         TEXT NOT NULL DEFAULT '',
	error           TEXT NOT NULL DEFAULT '',
	sandbox_id      TEXT NOT NULL DEFAULT '',
	generation      INTEGER NOT NULL DEFAULT 0,
	turn            INTEGER NOT NULL DEFAULT 0,
	session_id      TEXT NOT NULL DEFAULT '',
	messages        INTEGER NOT NULL DEFAULT 0,
	stop_mode       TEXT NOT NULL DEFAULT '',
	created_at      INTEGER NOT NULL,
	ended_at        INTEGER NOT NULL DEFAULT 0,
	updated_seq     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX agents_by_spawn ON agents (spawned_seq);
CREATE INDEX agents_by_run ON agents (run_id, spawned_seq);
CREATE INDEX agents_by_state ON agents (state, spawned_seq);

CREATE TABLE sandboxes (
	sandbox_id   TEXT PRIMARY KEY,
	agent_id     TEXT NOT NULL,
	run_id       TEXT NOT NULL,
	runtime      TEXT NOT NULL,
	generation   INTEGER NOT NULL,
	purpose      TEXT NOT NULL,
	image        TEXT NOT NULL,
	state        TEXT NOT NULL,
	handle       TEXT NOT NULL DEFAULT '',
	transport    TEXT NOT NULL DEFAULT '',
	intended_at  INTEGER NOT NULL,
	intended_seq INTEGER NOT NULL,
	removed_at   INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX sandboxes_by_agent ON sandboxes (agent_id, intended_seq);
CREATE INDEX sandboxes_by_state ON sandboxes (state, intended_seq);

CREATE TABLE turns (
	turn_id         TEXT PRIMARY KEY,
	agent_id        TEXT NOT NULL,
	run_id          TEXT NOT NULL,
	number          INTEGER NOT NULL,
	state           TEXT NOT NULL,
	sandbox_id      TEXT NOT NULL DEFAULT '',
	retry_of        TEXT NOT NULL,
	attempt         INTEGER NOT NULL,
	requested_seq   INTEGER NOT NULL,
	started_seq     INTEGER NOT NULL DEFAULT 0,
	ended_seq       INTEGER NOT NULL DEFAULT 0,
	outcome         TEXT NOT NULL DEFAULT '',
	class           TEXT NOT NULL DEFAULT '',
	error           TEXT NOT NULL DEFAULT '',
	owes_checkpoint INTEGER NOT NULL DEFAULT 0,
	requested_at    INTEGER NOT NULL,
	started_at      INTEGER NOT NULL DEFAULT 0,
	ended_at        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX turns_by_agent ON turns (agent_id, number);
CREATE INDEX turns_by_request ON turns (requested_seq);
CREATE INDEX turns_open ON turns (agent_id, number) WHERE state <> 'ended';
CREATE INDEX turns_owing ON turns (agent_id, number) WHERE owes_checkpoint = 1;

CREATE TABLE handles (
	agent_id   TEXT PRIMARY KEY,
	state      TEXT NOT NULL,
	outcome    TEXT NOT NULL,
	result_ref TEXT NOT NULL,
	turn_id    TEXT NOT NULL,
	settled_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE checkpoints (
	seq          INTEGER PRIMARY KEY,
	agent_id     TEXT NOT NULL,
	run_id       TEXT NOT NULL,
	sandbox_id   TEXT NOT NULL,
	turn         INTEGER NOT NULL,
	turn_id      TEXT NOT NULL,
	snapshot_ref TEXT NOT NULL,
	sha256       TEXT NOT NULL,
	bytes        INTEGER NOT NULL,
	files        INTEGER NOT NULL,
	session_id   TEXT NOT NULL,
	messages     INTEGER NOT NULL,
	imported     INTEGER NOT NULL,
	state        TEXT NOT NULL,
	damaged      TEXT NOT NULL DEFAULT '',
	taken_at     INTEGER NOT NULL
);
CREATE INDEX checkpoints_by_agent ON checkpoints (agent_id, state, seq);
CREATE INDEX checkpoints_by_sandbox ON checkpoints (sandbox_id, state, seq);
CREATE INDEX checkpoints_by_ref ON checkpoints (snapshot_ref);
CREATE INDEX checkpoints_kept ON checkpoints (seq) WHERE state = 'kept';

CREATE TABLE setup_snapshots (
	runtime    TEXT NOT NULL,
	hash       TEXT NOT NULL,
	ref        TEXT NOT NULL,
	state      TEXT NOT NULL,
	skipped    TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	PRIMARY KEY (runtime, hash)
) WITHOUT ROWID;

CREATE TABLE idempotency (
	scope     TEXT NOT NULL,
	key       TEXT NOT NULL,
	body_hash TEXT NOT NULL,
	status    INTEGER NOT NULL,
	answer    BLOB,
	PRIMARY KEY (scope, key)
) WITHOUT ROWID;

CREATE TABLE permissions (
	agent_id     TEXT NOT NULL,
	request_id   TEXT NOT NULL,
	sandbox_id   TEXT NOT NULL,
	turn_id      TEXT NOT NULL,
	title        TEXT NOT NULL,
	state        TEXT NOT NULL,
	decision     TEXT NOT NULL DEFAULT '',
	feedback     TEXT NOT NULL DEFAULT '',
	request_seq  INTEGER NOT NULL,
	requested_at INTEGER NOT NULL,
	PRIMARY KEY (agent_id, request_id)
) WITHOUT ROWID;
CREATE INDEX permissions_by_state ON permissions (agent_id, state, request_seq);
`

// schema2 is what agents that spawn others need.
const schema2 = `
ALTER TABLE runs ADD COLUMN max_agents_total INTEGER;
ALTER TABLE runs ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN stirred_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN quiescent INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET turns = (SELECT count(*) FROM turns WHERE turns.run_id = runs.run_id), stirred_seq = max(
	(SELECT coalesce(max(requested_seq), 0) FROM turns WHERE turns.run_id = runs.run_id),
	(SELECT coalesce(max(spawned_seq), 0) FROM agents WHERE agents.run_id = runs.run_id));
ALTER TABLE agents ADD COLUMN fork_image TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN fork_setup TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN fork_marked INTEGER NOT NULL DEFAULT 0;
CREATE TABLE waits (
	agent_id    TEXT PRIMARY KEY,
	run_id      TEXT NOT NULL,
	request     TEXT NOT NULL,
	deadline_at INTEGER NOT NULL,
	state       TEXT NOT NULL,
	answer      TEXT NOT NULL DEFAULT '',
	opened_seq  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE memory (
	agent_id   TEXT NOT NULL,
	key        TEXT NOT NULL,
	value      TEXT NOT NULL,
	updated_at INTEGER NOT NULL,
	PRIMARY KEY (agent_id, key)
) WITHOUT ROWID;
`

// schema3 is what agents that tell each other of something need, and those that
// are held: by a failure, or until it is their turn.
const schema3 = `
ALTER TABLE agents ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN blocked TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN queued_at INTEGER NOT NULL DEFAULT 0;
CREATE TABLE subscriptions (
	agent_id  TEXT NOT NULL,
	watched   TEXT NOT NULL,
	wake      INTEGER NOT NULL,
	state     TEXT NOT NULL,
	told_turn TEXT,
	PRIMARY KEY (agent_id, watched)
) WITHOUT ROWID;
CREATE INDEX subscriptions_open ON subscriptions (watched) WHERE state = 'open';
CREATE TABLE inbox (
	seq       INTEGER PRIMARY KEY,
	agent_id  TEXT NOT NULL,
	item      TEXT NOT NULL,
	state     TEXT NOT NULL,
	turn_id   TEXT NOT NULL DEFAULT '',
	sent_seq  INTEGER NOT NULL DEFAULT 0,
	queued_at INTEGER NOT NULL,
	told_at   INTEGER NOT NULL DEFAULT 0,
	delivery  TEXT NOT NULL DEFAULT ''
);
CREATE INDEX inbox_by_agent ON inbox (agent_id, state);
CREATE INDEX agents_inbox ON agents (spawned_seq) WHERE inbox > 0;
UPDATE agents SET failures = (SELECT count(*) FROM turns WHERE turns.agent_id = agents.agent_id AND outcome = 'failed'
	AND ended_seq > (SELECT coalesce(max(ended_seq), 0) FROM turns WHERE turns.agent_id = agents.agent_id AND outcome = 'success'));
`

// projections are the tables that are a pure function of the log, with their
// primary keys. Verify compares them and Rebuild replaces them.
var projections = []struct{ table, key string }{
	{"seq_index", "key, block"},
	{"runs", "run_id"},
	{"agents", "agent_id"},
	{"sandboxes", "sandbox_id"},
	{"turns", "turn_id"},
	{"handles", "agent_id"},
	{"checkpoints", "seq"},
	{"setup_snapshots", "runtime, hash"},
	{"idempotency", "scope, key"},
	{"permissions", "agent_id, request_id"},
	{"waits", "agent_id"},
	{"memory", "agent_id, key"},
	{"subscriptions", "agent_id, watched"},
	{"inbox", "seq"},
}

// newest is the version this binary writes.
func newest() int { return migrations[len(migrations)-1].version }

// version reads which version a database has; 0 for an empty one. A database
// of another program is ErrDamaged, a newer one ErrNewer. It only reads.
func version(ctx context.Context, c *sql.Conn, path string) (int, error) {
	var tables, app, v int
	err := c.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables)
	if err == nil {
		err = c.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app)
	}
	if err != nil {
		return 0, classify("reading the schema version", path, err)
	}
	if tables == 0 && app == 0 {
		return 0, nil
	}
	if app != applicationID {
		return 0, damaged("opening", path, fmt.Errorf("not a ledger: application id %#x", app))
	}
	err = c.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM schema_version").Scan(&v)
	if err != nil {
		return 0, missingTable("reading the schema version", path, err)
	}
	if v > newest() {
		return 0, &Error{Op: "opening", Path: path, Kind: ErrNewer,
			Err:  fmt.Errorf("schema version %d, this alineod knows up to %d", v, newest()),
			Hint: "install the newer alineod again; the file was left untouched"}
	}
	if v < 1 {
		return 0, damaged("opening", path, fmt.Errorf("schema version %d", v))
	}
	return v, nil
}

// migrate brings a database to the newest version, each step in a transaction
// of its own: one that is cut short is done again by the next start.
func migrate(ctx context.Context, c *sql.Conn, path string, from int, nowMs int64) error {
	for _, m := range migrations {
		if m.version <= from {
			continue
		}
		if err := migrateOne(ctx, c, m, nowMs); err != nil {
			return classify(fmt.Sprintf("migrating to schema version %d", m.version), path, err)
		}
	}
	return nil
}

func migrateOne(ctx context.Context, c *sql.Conn, m migration, nowMs int64) (err error) {
	if _, err = c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// SQLite may have rolled back already; there is nothing to add.
			_, _ = c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		}
	}()
	if m.version == 1 {
		if _, err = c.ExecContext(ctx, fmt.Sprintf(`PRAGMA application_id = %d;
			CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)`,
			applicationID)); err != nil {
			return err
		}
	}
	if _, err = c.ExecContext(ctx, m.sql); err != nil {
		return err
	}
	if _, err = c.ExecContext(ctx, "INSERT INTO schema_version VALUES (?, ?)", m.version, nowMs); err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, "COMMIT")
	return err
}
