package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/alineod/alineod/internal/spec"
)

// Kinds of errors.
var (
	ErrAddress  = errors.New("not an address of a daemon")
	ErrNoDaemon = errors.New("no daemon answers")
	// ErrBroken: the connection ended before the answer did. Whether the
	// request had an effect is not known.
	ErrBroken = errors.New("the connection to the daemon broke")

	ErrInvalid     = errors.New("invalid request")      // 400, 413, 415, 422
	ErrAuth        = errors.New("not allowed")          // 401, 403
	ErrNotFound    = errors.New("not found")            // 404
	ErrConflict    = errors.New("conflict")             // 409
	ErrUnavailable = errors.New("unavailable just now") // 429, 503, 507
)

// NoDaemonError tells that nothing listens at an address. It is ErrNoDaemon.
type NoDaemonError struct {
	Address string
	Err     error // of the connection
}

func (e *NoDaemonError) Error() string {
	return fmt.Sprintf("no daemon answers at %s (%v); start one with `alineod serve`", e.Address, e.Err)
}

// Unwrap gives errors.Is both the kind and the cause.
func (e *NoDaemonError) Unwrap() []error { return []error{ErrNoDaemon, e.Err} }

// Error is an answer that is no success.
type Error struct {
	Status  int
	Code    string // stable, as not_promptable; may be empty
	Message string
	Fields  []spec.Problem // what is wrong with the request, where it says
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is see the kind that follows from the status.
func (e *Error) Is(target error) bool { return target == e.kind() }

func (e *Error) kind() error {
	switch e.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return ErrInvalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrAuth
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusConflict:
		return ErrConflict
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return ErrUnavailable
	}
	return nil
}

// readError makes an *Error of an answer. What is no JSON of ours, as from a
// proxy, is quoted in part.
func readError(res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxError))
	if err != nil {
		data = nil // the status says enough
	}
	var body struct {
		Error  string         `json:"error"`
		Code   string         `json:"code"`
		Fields []spec.Problem `json:"fields"`
	}
	if json.Unmarshal(data, &body) == nil && body.Error != "" {
		return &Error{Status: res.StatusCode, Code: body.Code, Message: body.Error, Fields: body.Fields}
	}
	const quoted = 200
	text := strings.TrimSpace(strings.ToValidUTF8(string(data[:min(len(data), quoted)]), ""))
	text, _, _ = strings.Cut(text, "\n")
	message := fmt.Sprintf("the daemon answered %s", res.Status)
	if text != "" {
		message += fmt.Sprintf(": %q", text)
	}
	return &Error{Status: res.StatusCode, Message: message}
}

// Temporary reports whether the same request may succeed a moment later
// without anybody's doing: no daemon, a broken connection, a busy daemon.
func Temporary(err error) bool {
	var answer *Error
	if errors.As(err, &answer) {
		return answer.Status >= 500 || answer.kind() == ErrUnavailable
	}
	return errors.Is(err, ErrNoDaemon) || errors.Is(err, ErrBroken)
}
