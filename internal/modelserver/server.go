// Package modelserver is a model server for tests: it speaks a provider's API
// and does what the last user message of a request tells it, line by line.
//
//	say TEXT           says TEXT
//	think TEXT         thinks TEXT
//	run COMMAND        calls the tool "bash" with COMMAND, goes on after its result
//	tool NAME JSON     calls any tool with those arguments
//	result             says "result: " and the text of the last tool result
//	count              says "count: N", N being the messages received, the system's left out
//	hold PATH          waits until a file appears at PATH on the server's side
//	sleep SECONDS      waits
//	flood N            sends N text deltas
//	fail STATUS BODY   answers with that HTTP status and body
//	flaky N STATUS     does so N times for this message, then goes on
//	quota              fails as by a used-up quota
//	unauthorized       fails as by a wrong key
//	drop               cuts the connection
//	anything else      says "echo: " and the line
//
// The server keeps no conversation. How far the message has been obeyed is
// read from the request: each tool result after the last user message is one
// call that was made. So it may be killed and started anew at any moment.
//
// It speaks OpenAI's chat completions, streaming. GET /requests lists every
// request received since the start, oldest first.
package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxRequest bounds one request's body, in bytes.
const maxRequest = 64 << 20

// Message is one message of a request, as the server reads it.
type Message struct {
	Role string `json:"role"` // system, user, assistant, tool
	Text string `json:"text"`
}

// Request is one request received.
type Request struct {
	API      string    `json:"api"`
	Path     string    `json:"path"`
	Model    string    `json:"model"`
	Count    int       `json:"count"` // messages, the system's left out
	Messages []Message `json:"messages"`
	At       int64     `json:"at"` // Unix milliseconds
}

// Server is the handler. It is safe for concurrent use.
type Server struct {
	mux *http.ServeMux

	mu       sync.Mutex
	log      io.Writer
	requests []Request
	failed   map[string]int // of `flaky`, by the messages up to it
	calls    int
}

// New returns a server that writes each request to log, one JSON object a
// line, before it is answered. log may be nil.
func New(log io.Writer) *Server {
	s := &Server{mux: http.NewServeMux(), log: log, failed: map[string]int{}}
	s.mux.HandleFunc("POST /v1/chat/completions", s.chatCompletions)
	s.mux.HandleFunc("GET /requests", s.listRequests)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Requests returns the requests received so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request{}, s.requests...)
}

func (s *Server) listRequests(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Requests()) // a client that is gone needs no answer
}

func (s *Server) record(r Request) error {
	r.At = time.Now().UnixMilli()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("marshalling a request: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	if s.log == nil {
		return nil
	}
	if _, err := s.log.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("logging a request: %w", err)
	}
	return nil
}

// failAgain reports whether the flaky step of this key has still to fail.
func (s *Server) failAgain(key string, times int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[key]++
	return s.failed[key] <= times
}

// callID is unique over the server's life, and over restarts by the clock.
func (s *Server) callID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return fmt.Sprintf("call_%x_%d", time.Now().UnixNano(), s.calls)
}

// PiModels is a ~/.pi/agent/models.json with the one provider "fake" and its
// one model "fake-1", served at baseURL (as http://127.0.0.1:8080/v1). apiKey
// is taken as Pi takes it: "$NAME" names a variable of the environment.
func PiModels(baseURL, apiKey string) []byte {
	b, err := json.MarshalIndent(map[string]any{"providers": map[string]any{"fake": map[string]any{
		"baseUrl": baseURL, "api": "openai-completions", "apiKey": apiKey,
		"models": []map[string]any{{"id": "fake-1", "input": []string{"text", "image"}, "contextWindow": 128000, "maxTokens": 8192}},
	}}}, "", "  ")
	if err != nil {
		panic(err) // maps of strings and numbers always marshal
	}
	return b
}
