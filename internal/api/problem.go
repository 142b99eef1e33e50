package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
)

// problem is the body of every answer that is an error.
type problem struct {
	Message string         `json:"error" doc:"What is wrong, for people"`
	Code    string         `json:"code" doc:"What is wrong, for programs; stable"`
	Fields  []spec.Problem `json:"fields,omitempty" nullable:"false" doc:"Each field that is wrong"`

	status     int
	retryAfter int // seconds; 0: none
}

func (p *problem) Error() string { return p.Message }

// retrySoon is the Retry-After of a 503, in seconds.
const retrySoon = 2

func invalid(code, format string, args ...any) *problem {
	return &problem{status: http.StatusBadRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// problemOf maps what a Swarm answered to what a client is told.
func problemOf(err error) *problem {
	var (
		own   *problem
		of    *swarm.Error
		bad   *spec.Error
		unset *spec.UnsetVarError
		large *http.MaxBytesError
	)
	p := &problem{Message: err.Error()}
	set := func(status int, code string) { p.status, p.Code = status, code }
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &of):
		p.Message, p.Fields = of.Message, of.Fields
		status, code := statusOf(of.Kind)
		if of.Code != "" {
			code = of.Code
		}
		set(status, code)
	case errors.As(err, &bad):
		p.Fields = bad.Problems
		set(http.StatusBadRequest, "invalid_spec")
	case errors.As(err, &unset):
		set(http.StatusBadRequest, "unset_variable")
	case errors.As(err, &large):
		p.Message = fmt.Sprintf("the body is larger than %d bytes", large.Limit)
		set(http.StatusRequestEntityTooLarge, "too_large")
	case errors.Is(err, ledger.ErrKeyReused):
		set(http.StatusConflict, "key_reused")
	case errors.Is(err, ledger.ErrFull):
		set(http.StatusInsufficientStorage, "disk_full")
	case errors.Is(err, ledger.ErrNotFound):
		set(http.StatusNotFound, "not_found")
	case errors.Is(err, ledger.ErrConflict):
		set(http.StatusConflict, "conflict")
	case errors.Is(err, ledger.ErrClosed), errors.Is(err, context.Canceled):
		// Whose client went away reads no answer; else the daemon is ending.
		set(http.StatusServiceUnavailable, "shutting_down")
	case errors.Is(err, context.DeadlineExceeded):
		set(http.StatusServiceUnavailable, "timeout")
	default:
		set(statusOf(err))
	}
	if p.status == http.StatusServiceUnavailable {
		p.retryAfter = retrySoon
	}
	return p
}

func statusOf(kind error) (status int, code string) {
	switch {
	case errors.Is(kind, swarm.ErrInvalid), errors.Is(kind, spec.ErrInvalid):
		return http.StatusBadRequest, "invalid"
	case errors.Is(kind, swarm.ErrNotFound):
		return http.StatusNotFound, "not_found"
	case errors.Is(kind, swarm.ErrConflict):
		return http.StatusConflict, "conflict"
	case errors.Is(kind, swarm.ErrRefused):
		return http.StatusBadGateway, "refused"
	case errors.Is(kind, swarm.ErrUnavailable):
		return http.StatusServiceUnavailable, "unavailable"
	}
	return http.StatusInternalServerError, "internal"
}

func writeProblem(w http.ResponseWriter, p *problem) {
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(p.retryAfter))
	}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="alineod"`)
	}
	writeJSON(w, p.status, p)
}

// writeJSON answers with v. A client that does not read it is no error of ours.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status = http.StatusInternalServerError
		body, _ = json.Marshal(&problem{Code: "internal", Message: fmt.Sprintf("encoding the answer: %v", err)})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
