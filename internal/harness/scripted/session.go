package scripted

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// entry is one line of a session file: first a header, then messages.
type entry struct {
	Type string `json:"type"` // session, message
	ID   string `json:"id,omitempty"`
	Role string `json:"role,omitempty"`
	Text string `json:"text,omitempty"`
	// Call is the tool call's id, in the assistant message that makes it and
	// in the tool message that answers it.
	Call   string          `json:"call,omitempty"`
	Tool   string          `json:"tool,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	Images int             `json:"images,omitempty"`
	TS     int64           `json:"ts"` // Unix milliseconds
}

var (
	errDamaged   = errors.New("session file is damaged")
	errNoSession = errors.New("no such session")
)

var sessionID = regexp.MustCompile(`^[0-9a-z][0-9a-z-]{0,63}$`)

// session is an open session file. Each append is synced before it returns.
type session struct {
	id       string
	file     *os.File
	messages int
}

func newSession(dir string) (*session, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the session directory: %w", err)
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	s := &session{id: hex.EncodeToString(b[:])}
	var err error
	s.file, err = os.OpenFile(sessionPath(dir, s.id), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making a session: %w", err)
	}
	if err := s.append(entry{Type: "session", ID: s.id}); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// openSession opens the session id of dir and cuts off what a crash left torn
// at its end. A file that is wrong anywhere else is errDamaged and left alone.
func openSession(dir, id string) (*session, error) {
	if !sessionID.MatchString(id) {
		return nil, fmt.Errorf("opening session %q: %w", id, errNoSession)
	}
	f, err := os.OpenFile(sessionPath(dir, id), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening session %s: %w", id, errNoSession)
	}
	if err != nil {
		return nil, fmt.Errorf("opening session %s: %w", id, err)
	}
	s := &session{id: id, file: f}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("opening session %s: %w", id, errors.Join(err, f.Close()))
	}
	return s, nil
}

func (s *session) load() error {
	data, err := io.ReadAll(s.file)
	if err != nil {
		return err
	}
	good := 0 // bytes that are whole, readable lines
	for n := 0; good < len(data); n++ {
		end := bytes.IndexByte(data[good:], '\n')
		var e entry
		readable := end >= 0 && json.Unmarshal(data[good:good+end], &e) == nil
		last := end < 0 || good+end+1 == len(data)
		switch {
		case n == 0 && (!readable || e.Type != "session" || e.ID != s.id):
			return fmt.Errorf("%w: its header cannot be read", errDamaged)
		case !readable && last:
			return s.cut(int64(good))
		case !readable:
			return fmt.Errorf("%w: line %d cannot be read", errDamaged, n+1)
		}
		if e.Type == "message" {
			s.messages++
		}
		good += end + 1
	}
	if len(data) == 0 {
		return fmt.Errorf("%w: it is empty", errDamaged)
	}
	return nil
}

// cut shortens the file and makes that durable before anything is appended.
func (s *session) cut(size int64) error {
	if err := s.file.Truncate(size); err != nil {
		return fmt.Errorf("cutting off its torn end: %w", err)
	}
	return s.file.Sync()
}

// append stores e durably. The line goes out in one write: a crash leaves it
// whole, torn at the end, or absent.
func (s *session) append(e entry) error {
	e.TS = time.Now().UnixMilli()
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("marshalling a message: %w", err)
	}
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("storing a message: %w", err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("storing a message: %w", err)
	}
	if e.Type == "message" {
		s.messages++
	}
	return nil
}

// newestSession returns the id of the session written last, or "".
func newestSession(dir string) (string, error) {
	found, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("listing sessions: %w", err)
	}
	var newest string
	var at time.Time
	for _, d := range found {
		id, isSession := cutSuffix(d.Name(), ".jsonl")
		info, err := d.Info()
		if err != nil || !isSession || !info.Mode().IsRegular() {
			continue
		}
		if newest == "" || info.ModTime().After(at) {
			newest, at = id, info.ModTime()
		}
	}
	return newest, nil
}

func cutSuffix(name, suffix string) (string, bool) {
	id := name[:max(0, len(name)-len(suffix))]
	return id, id+suffix == name && sessionID.MatchString(id)
}

func sessionPath(dir, id string) string { return filepath.Join(dir, id+".jsonl") }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}
