package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	turnsFile = "turns"
	// maxTurnID bounds a turn's identifier, maxTurnsFile the file of all that
	// were ever accepted: some four million.
	maxTurnID    = 128
	maxTurnsFile = 64 << 20
)

// turnLog remembers every turn this sandbox ever accepted. A turn is first
// remembered by its record in the journal; before a segment with such records
// is dropped, their identifiers are put into a file of their own. Safe for
// concurrent use.
type turnLog struct {
	mu    sync.Mutex
	file  *os.File
	size  int64
	known map[string]struct{}
	fresh []string // known, and not in the file yet
	last  string
}

// validTurnID says whether id can be one line of the file.
func validTurnID(id string) bool {
	if id == "" || len(id) > maxTurnID {
		return false
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

func openTurnLog(dir *os.File, own owner) (*turnLog, error) {
	f, err := openAt(dir, turnsFile, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the list of turns: %w", err)
	}
	t := &turnLog{file: f, known: make(map[string]struct{})}
	data, err := io.ReadAll(io.LimitReader(f, maxTurnsFile))
	err = errors.Join(err, own.give(f, 0o600), dir.Sync())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the list of turns: %w", err), f.Close())
	}
	// A last line without its end was cut short by a crash; its turn is still
	// in the journal, for the segment is dropped after the line is on disk.
	for {
		line, rest, found := bytes.Cut(data, []byte("\n"))
		if !found {
			break
		}
		if id := string(line); validTurnID(id) {
			t.known[id], t.last = struct{}{}, id
		}
		t.size += int64(len(line)) + 1
		data = rest
	}
	return t, nil
}

// visit takes a turn's record from the journal.
func (t *turnLog) visit(record []byte) {
	var r struct {
		TurnID string `json:"turnId"`
	}
	if json.Unmarshal(record, &r) == nil && validTurnID(r.TurnID) {
		t.add(r.TurnID)
	}
}

func (t *turnLog) add(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.known[id]; !known {
		t.known[id] = struct{}{}
		t.fresh = append(t.fresh, id)
	}
	t.last = id
}

// save puts the fresh identifiers on disk.
func (t *turnLog) save() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fresh) == 0 {
		return nil
	}
	var lines []byte
	for _, id := range t.fresh {
		lines = append(append(lines, id...), '\n')
	}
	_, err := t.file.WriteAt(lines, t.size)
	if err == nil {
		err = unix.Fdatasync(int(t.file.Fd()))
	}
	if err != nil {
		return fmt.Errorf("saving the list of turns: %w", err)
	}
	t.size += int64(len(lines))
	t.fresh = nil
	return nil
}

func (t *turnLog) has(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.known[id]
	return known
}

// newest returns the turn accepted last.
func (t *turnLog) newest() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}
