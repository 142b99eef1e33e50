package bridge

import "context"

// Journal lets tests drive the journal without a bridge.
type Journal struct {
	j     *journal
	turns *turnLog
}

// OpenTestJournal opens the journal and the list of turns of a bridge's dir.
func OpenTestJournal(dir string, segBytes, maxBytes int64) (*Journal, error) {
	s := &server{cfg: ServerConfig{Dir: dir, SegmentBytes: segBytes, JournalBytes: maxBytes}}
	var err error
	if s.dir, err = openDir(dir); err != nil {
		return nil, err
	}
	if s.own, err = ownerOf(s.dir); err != nil {
		return nil, err
	}
	if err := s.openJournal(); err != nil {
		return nil, err
	}
	return &Journal{j: s.journal, turns: s.turns}, nil
}

func (j *Journal) Append(r Record) (int64, error) {
	pos, err := j.j.append(r)
	if err == nil && r.Kind == KindTurn {
		j.turns.add(r.TurnID)
	}
	return pos, err
}
func (j *Journal) Skip(r Record)                             { j.j.skip(r) }
func (j *Journal) Flushed() int64                            { return j.j.flushed() }
func (j *Journal) Ack(pos int64) error                       { return j.j.ack(pos) }
func (j *Journal) Bounds() (int64, int64)                    { return j.j.bounds() }
func (j *Journal) Sync(pos int64) error                      { return j.j.sync(pos) }
func (j *Journal) Wait(ctx context.Context, pos int64) error { return j.j.wait(ctx, pos) }
func (j *Journal) HasTurn(id string) bool                    { return j.turns.has(id) }
func (j *Journal) LastTurn() string                          { return j.turns.newest() }
func (j *Journal) Close() error                              { return j.j.close() }
func (j *Journal) Reader(after int64) *JournalReader {
	return &JournalReader{c: &cursor{j: j.j, pos: after}, last: after}
}

// JournalReader reads as a subscription does.
type JournalReader struct {
	c    *cursor
	last int64
}

func (r *JournalReader) Close() { r.c.close() }

// Next returns the next batch as a client sees it.
func (r *JournalReader) Next() ([]Record, error) {
	raw, err := r.c.read()
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, b := range raw {
		w, err := decodeRecord(b)
		if err != nil {
			return out, err
		}
		if out, err = expand(out, &r.last, w); err != nil {
			return out, err
		}
	}
	return out, nil
}

// EncodeEntry makes one line of a segment.
func EncodeEntry(pos, run int64, body string) []byte {
	return encodeEntry(pos, run, flagPlain, []byte(body))
}

// LookupAccount resolves a user below root.
func LookupAccount(root, spec string) (name, home string, uid, gid int, groups []uint32, err error) {
	a, err := lookupAccount(root, spec)
	if a.cred != nil {
		groups = a.cred.Groups
	}
	return a.name, a.home, a.uid, a.gid, groups, err
}

// Limits of the journal and the wire.
const (
	MaxEvents = maxEvents
	MaxRun    = maxRun
	MaxConns  = maxConns
)
