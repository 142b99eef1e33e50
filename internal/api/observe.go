package api

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"
)

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

// Unwrap lets http.ResponseController reach deadlines and flushing.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// observed counts and logs requests, and turns a panic of one into a 500: it
// must not end the daemon that keeps everybody else's agents.
func (s *server) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := s.Clock.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			err := recover()
			if err != nil && err != http.ErrAbortHandler {
				s.Log.Error("a request panicked", zap.String("method", r.Method), zap.String("path", r.URL.Path),
					zap.String("panic", fmt.Sprint(err)), zap.ByteString("stack", debug.Stack()))
				if rec.code == 0 {
					writeProblem(rec, &problem{status: http.StatusInternalServerError, Code: "internal",
						Message: "internal error; the daemon's log has it"})
					err = nil
				}
			}
			s.account(r, rec.code, s.Clock.Since(begin))
			if err != nil {
				// Half an answer must not look like a whole one.
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

func (s *server) account(r *http.Request, code int, took time.Duration) {
	if code == 0 {
		code = http.StatusOK
	}
	pattern := s.pattern(r)
	if pattern == "" {
		pattern = "other"
	}
	method := r.Method
	if !slices.Contains(methods, method) && method != http.MethodHead {
		method = "other" // a client may make up any number of them
	}
	s.Metrics.HTTPServed(pattern, method, code, took)
	s.Log.Debug("request", zap.String("method", r.Method), zap.String("path", r.URL.Path),
		zap.Int("code", code), zap.Duration("took", took))
}

// fail answers with what an error means, and logs those that are the daemon's.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if s.Redact != nil {
		masked := *p
		masked.Message = s.Redact(p.Message)
		p = &masked
	}
	if p.status >= http.StatusInternalServerError && r.Context().Err() == nil {
		s.Log.Warn("request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path),
			zap.Int("code", p.status), zap.Error(err))
	}
	writeProblem(w, p)
}

// patient writes with a deadline per piece: a client that stopped reading is
// cut off, one that is merely slow is not.
type patient struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (s *server) patient(w http.ResponseWriter) *patient {
	return &patient{w: w, control: http.NewResponseController(w), timeout: s.WriteTimeout}
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.extend(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// flush sends what was written.
func (p *patient) flush() error {
	if err := p.extend(); err != nil {
		return err
	}
	return p.control.Flush()
}

// extend sets the deadline anew. The system's clock is meant: it is the
// connection's.
func (p *patient) extend() error {
	err := p.control.SetWriteDeadline(time.Now().Add(p.timeout))
	if errors.Is(err, http.ErrNotSupported) {
		return nil // no connection, as under a recorder
	}
	return err
}
