package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/ledger"
)

// An entry is one line of a segment of the journal:
//
//	crc(8) length(8) position(16) run(4) flag(1) JSON LF
//
// with single spaces between, all numbers hexadecimal. The checksum covers
// everything after it. A run entry stands for several records without events
// (lines that only gave deltas): they have positions of their own, and that is
// all there is to say of them, so they cost one entry together.
const (
	headerLen = 8 + 1 + 8 + 1 + 16 + 1 + 4 + 1 + 1 + 1
	// maxEntry bounds an entry's JSON, so that one record always fits a frame.
	maxEntry = MaxFrame - 1<<16
	// maxEvents bounds how many events a record may hold: an event of two
	// bytes takes a hundred in memory.
	maxEvents = 1024
	// maxRun bounds how many records one entry stands for.
	maxRun = 4096
	// maxPos keeps a position clear of overflow, whoever wrote it.
	maxPos = int64(math.MaxInt64 / 2)

	flagPlain = '-'
	flagRun   = 'r'
	flagTurn  = 't' // a turn was accepted: read again at the next start
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// wireRecord is a record as the journal and the wire hold it. Run counts the
// records it stands for, the last of them at Pos; 0 and 1 are one.
type wireRecord struct {
	Record
	Run int64 `json:"run,omitempty"`
}

// entryHeader is what can be told of an entry without reading its JSON.
type entryHeader struct {
	crc  uint32
	size int64
	pos  int64
	run  int64
	flag byte
}

// first is the first position the entry covers.
func (h entryHeader) first() int64 { return h.pos - h.run + 1 }

// encodeEntry lays out one line of a segment.
func encodeEntry(pos, run int64, flag byte, body []byte) []byte {
	line := make([]byte, 0, headerLen+len(body)+1)
	line = append(line, "00000000 "...)
	line = fmt.Appendf(line, "%08x %016x %04x %c ", len(body), pos, run, flag)
	line = append(line, body...)
	sum := crc32.Checksum(line[9:], castagnoli)
	copy(line, fmt.Sprintf("%08x", sum))
	return append(line, '\n')
}

// parseHeader reads the fixed part of an entry. It accepts nothing whose
// numbers could lead a reader astray.
func parseHeader(b []byte) (entryHeader, bool) {
	if len(b) != headerLen || b[8] != ' ' || b[17] != ' ' || b[34] != ' ' || b[39] != ' ' || b[41] != ' ' {
		return entryHeader{}, false
	}
	var num [4]uint64
	for i, field := range [4][]byte{b[:8], b[9:17], b[18:34], b[35:39]} {
		n, err := strconv.ParseUint(string(field), 16, 64)
		if err != nil {
			return entryHeader{}, false
		}
		num[i] = n
	}
	if num[1] > maxEntry || num[2] > uint64(maxPos) || num[3] < 1 || num[3] > maxRun || num[3] > num[2] {
		return entryHeader{}, false
	}
	return entryHeader{
		crc: uint32(num[0]), size: int64(num[1]), pos: int64(num[2]), run: int64(num[3]), flag: b[40],
	}, true
}

// intact says whether header and body are what was written.
func (h entryHeader) intact(header, body []byte) bool {
	sum := crc32.Update(crc32.Checksum(header[9:], castagnoli), castagnoli, body)
	return sum == h.crc
}

// encodeJSON marshals without the escaping meant for web pages, which would
// make a line of code up to six times as long. The result has no line feed.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// encodeRecord marshals a record so that it fits an entry. Events that cannot
// be marshalled, and the bodies of a record that is too large, give way to a
// diagnostic: what a harness says must never stop its journal.
func encodeRecord(r wireRecord) ([]byte, error) {
	body, err := encodeJSON(r)
	if err == nil && len(body) <= maxEntry && len(r.Events) <= maxEvents {
		return body, nil
	}
	kept := make([]harness.Event, 0, len(r.Events)+1)
	lost := 0
	for _, e := range r.Events {
		data, dataErr := encodeJSON(e.Data)
		if dataErr != nil || len(data) > 1<<16 {
			e.Data, lost = nil, lost+1
		}
		if b, bodyErr := encodeJSON(e.Body); bodyErr != nil || len(b) > 1<<16 {
			e.Body, lost = nil, lost+1
		}
		kept = append(kept, e)
		if len(kept) == maxEvents-1 {
			lost += len(r.Events) - len(kept)
			break
		}
	}
	why := "record too large"
	if err != nil {
		why = err.Error()
	}
	r.Events = append(kept, diagnostic(fmt.Sprintf("%s: %d parts left out", why, lost), nil))
	return encodeJSON(r)
}

// decodeRecord reads a record that a sandbox wrote.
func decodeRecord(b []byte) (wireRecord, error) {
	// The embedded record's own events are left raw by the shadowing field.
	var raw struct {
		wireRecord
		Events json.RawMessage `json:"events"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return wireRecord{}, fmt.Errorf("reading a record: %w: %w", ErrProtocol, err)
	}
	events, err := decodeList[harness.Event](raw.Events, maxEvents)
	if err != nil {
		return wireRecord{}, err
	}
	raw.wireRecord.Events = events
	return raw.wireRecord, nil
}

// decodeList reads a JSON list of at most most elements.
func decodeList[T any](b json.RawMessage, most int) ([]T, error) {
	if len(b) == 0 || string(b) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("reading a list: %w", ErrProtocol)
	}
	var list []T
	for dec.More() {
		var v T
		if len(list) == most {
			return nil, fmt.Errorf("reading a list of more than %d: %w", most, ErrProtocol)
		}
		if err := dec.Decode(&v); err != nil {
			return nil, fmt.Errorf("reading a list: %w: %w", ErrProtocol, err)
		}
		list = append(list, v)
	}
	return list, nil
}

// diagnostic is the event for something that could not be read or kept.
func diagnostic(text string, line []byte) harness.Event {
	const keep = 1024
	if len(line) > keep {
		line = line[:keep]
	}
	data, _ := json.Marshal(map[string]string{"class": harness.ClassProtocolError, "error": text})
	e := harness.Event{Name: ledger.DiagnosticStored, Data: data}
	if line != nil {
		e.Body, _ = json.Marshal(map[string]string{"line": string(bytes.ToValidUTF8(line, []byte("\uFFFD")))})
	}
	return e
}

// expand appends the records that w stands for to out, from the one after
// *last on, and moves *last. A record that leaves a gap, comes twice or claims
// more than it may is refused.
func expand(out []Record, last *int64, w wireRecord) ([]Record, error) {
	if w.Run == 0 {
		w.Run = 1
	}
	switch {
	case w.Pos <= *last || w.Pos > maxPos:
		return out, fmt.Errorf("record %d after %d: %w", w.Pos, *last, ErrProtocol)
	case w.Run < 0 || w.Run > maxRun:
		return out, fmt.Errorf("record %d stands for %d: %w", w.Pos, w.Run, ErrProtocol)
	case w.Kind == KindDropped:
		if w.Dropped != w.Pos-*last {
			return out, fmt.Errorf("record %d after %d tells of %d lost: %w", w.Pos, *last, w.Dropped, ErrProtocol)
		}
	case w.Pos-w.Run > *last:
		return out, fmt.Errorf("record %d after %d: %w", w.Pos, *last, ErrProtocol)
	}
	if w.Kind != KindDropped && w.Run > 1 {
		// Only a record that says nothing may stand for several.
		for pos := *last + 1; pos <= w.Pos; pos++ {
			out = append(out, Record{Pos: pos, Epoch: w.Epoch, TS: w.TS, Kind: KindLine, TurnID: w.TurnID})
		}
	} else {
		out = append(out, w.Record)
	}
	*last = w.Pos
	return out, nil
}
