package bridge

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/alineod/alineod/internal/harness"
)

// More kinds of errors of the client.
var (
	// ErrSuperseded: a newer connection took the place of this one.
	ErrSuperseded = errors.New("another connection took over")
	// ErrDraining: the bridge was told to accept no more turns.
	ErrDraining = errors.New("bridge is draining")
	// ErrTooLarge: the request does not fit a frame.
	ErrTooLarge = errors.New("request too large")
	// ErrJournal: the bridge could not write its journal; nothing was done.
	ErrJournal = errors.New("bridge cannot write its journal")
	// ErrNoProcess: no such process of the harness.
	ErrNoProcess = errors.New("no such process in the sandbox")
)

// Modes of a stream, in its first frame.
const (
	modeControl = "control"
	modePack    = "pack"
	modeUnpack  = "unpack"
	modeVisit   = "visit" // a program of the sandbox speaks with the daemon
)

const (
	// maxHello bounds the first frame, which anyone may send.
	maxHello = 1 << 20
	// creditWindow is how many batches of records may be under way: the
	// server sends no more before the client's reader took one.
	creditWindow = 2
)

// helloRequest is the first frame of a stream.
type helloRequest struct {
	Version   int            `json:"version"`
	SandboxID string         `json:"sandboxId"`
	Mode      string         `json:"mode"`
	Pack      *PackRequest   `json:"pack,omitempty"`
	Unpack    *UnpackRequest `json:"unpack,omitempty"`
}

// Operations of a control stream.
const (
	opSubscribe = "subscribe"
	opCredit    = "credit" // has no answer
	opAck       = "ack"
	opStart     = "start"
	opStop      = "stop"
	opDeliver   = "deliver"
	opOrder     = "order"
	opStatus    = "status"
	opProcesses = "processes"
	opStderr    = "stderr"
	opDrain     = "drain"
	opSignal    = "signal"
)

// Operations of an Order.
const (
	orderSteer    = "steer"
	orderFollowUp = "follow-up"
	orderAbort    = "abort"
	orderAnswer   = "answer"
)

// request is a frame of the client.
type request struct {
	ID      int64         `json:"id,omitempty"`
	Op      string        `json:"op"`
	Pos     int64         `json:"pos,omitempty"`
	Start   *StartRequest `json:"start,omitempty"`
	Turn    *Turn         `json:"turn,omitempty"`
	Order   *Order        `json:"order,omitempty"`
	GraceMs int64         `json:"graceMs,omitempty"`
	PID     int           `json:"pid,omitempty"`
	Signal  int           `json:"signal,omitempty"`
}

// response is a frame of the server: the answer to the request ID, or with ID
// 0 a batch of the subscription, or the last word.
type response struct {
	ID         int64           `json:"id,omitempty"`
	Hello      *Hello          `json:"hello,omitempty"`
	Known      bool            `json:"known,omitempty"`
	Text       string          `json:"text,omitempty"`
	Processes  []Process       `json:"processes,omitempty"`
	Archive    *ArchiveStats   `json:"archive,omitempty"`
	Error      *wireError      `json:"error,omitempty"`
	Records    json.RawMessage `json:"records,omitempty"`
	Ephemerals []Ephemeral     `json:"ephemerals,omitempty"`
	// Knock: a program of the sandbox waits to speak with the daemon.
	Knock bool `json:"knock,omitempty"`
	// Bye is why the server ends the connection.
	Bye *wireError `json:"bye,omitempty"`
}

// Ephemeral is something the harness did that is shown and never stored.
type Ephemeral struct {
	TurnID string        `json:"turnId,omitempty"`
	Event  harness.Event `json:"event"`
}

// ArchiveStats says what an archive held.
type ArchiveStats struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// wireError is an error on the wire: its kind by name, and its words.
type wireError struct {
	Kind string `json:"kind,omitempty"`
	Text string `json:"text"`
}

// kinds are the errors that keep their identity over the wire.
var kinds = map[string]error{
	"busy":            harness.ErrBusy,
	"not-ready":       harness.ErrNotReady,
	"no-turn":         harness.ErrNoTurn,
	"refused":         harness.ErrRefused,
	"unknown-request": harness.ErrUnknownRequest,
	"unknown-harness": harness.ErrUnknown,
	"harness":         ErrHarness,
	"gap":             ErrGap,
	"archive":         ErrArchive,
	"protocol":        ErrProtocol,
	"superseded":      ErrSuperseded,
	"draining":        ErrDraining,
	"too-large":       ErrTooLarge,
	"journal":         ErrJournal,
	"no-process":      ErrNoProcess,
	"closed":          ErrClosed,
	"nobody":          ErrNobody,
}

func toWire(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	const keep = 8 << 10
	if len(w.Text) > keep {
		w.Text = w.Text[:keep]
	}
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			w.Kind = name
			break
		}
	}
	return w
}

// Error is a failure the bridge reported. Text is its words, which came out of
// a sandbox; Unwrap gives its kind.
type Error struct {
	Kind error // nil where the client knows no such kind
	Text string
}

func (e *Error) Error() string { return "bridge: " + e.Text }

// Unwrap gives the kind of the error.
func (e *Error) Unwrap() error { return e.Kind }

func (w *wireError) err() error {
	if w == nil {
		return nil
	}
	return &Error{Kind: kinds[w.Kind], Text: w.Text}
}

// readFrame reads one line of at most most bytes, without its line feed.
func readFrame(r *bufio.Reader, most int) ([]byte, error) {
	var frame []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(frame)+len(part) > most+1 {
			return nil, fmt.Errorf("frame of more than %d bytes: %w", most, ErrProtocol)
		}
		switch {
		case err == nil && frame == nil:
			return append([]byte(nil), part[:len(part)-1]...), nil
		case err == nil:
			return append(frame, part[:len(part)-1]...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			frame = append(frame, part...)
		case errors.Is(err, io.EOF) && len(frame)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// encodeFrame marshals one frame with its line feed.
func encodeFrame(v any) ([]byte, error) {
	b, err := encodeJSON(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	if len(b) > MaxFrame {
		return nil, fmt.Errorf("frame of %d bytes, at most %d: %w", len(b), MaxFrame, ErrTooLarge)
	}
	return append(b, '\n'), nil
}

// recordsFrame lays out a batch whose records are marshalled already.
func recordsFrame(records [][]byte) []byte {
	frame := []byte(`{"records":[`)
	for i, r := range records {
		if i > 0 {
			frame = append(frame, ',')
		}
		frame = append(frame, r...)
	}
	return append(frame, "]}\n"...)
}
