package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// chatCompletions serves OpenAI's chat completions, streaming only.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !body.Stream {
		http.Error(w, "only streaming requests are served", http.StatusBadRequest)
		return
	}
	c := conversation{model: body.Model}
	for _, m := range body.Messages {
		role := m.Role
		if role == "developer" {
			role = "system"
		}
		c.messages = append(c.messages, Message{Role: role, Text: contentText(m.Content)})
	}
	if err := s.record(Request{API: "openai-completions", Path: r.URL.Path, Model: c.model, Count: c.count(), Messages: c.messages}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a := &completion{w: w, model: c.model}
	if err := s.obey(r.Context(), c, a); err != nil {
		// An answer that has begun can only be cut; the client sees a broken
		// stream, which is what it is.
		panic(http.ErrAbortHandler)
	}
}

// contentText is the text of a content that is a string or a list of parts.
func contentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var texts []string
	for _, p := range parts {
		if p.Type == "text" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// completion implements answer.
type completion struct {
	w     http.ResponseWriter
	model string
	begun bool
}

func (a *completion) text(delta string) error {
	return a.chunk(map[string]any{"content": delta}, nil)
}

func (a *completion) thinking(delta string) error {
	return a.chunk(map[string]any{"reasoning_content": delta}, nil)
}

func (a *completion) toolCall(id, name string, args json.RawMessage) error {
	err := a.chunk(map[string]any{"tool_calls": []map[string]any{{
		"index": 0, "id": id, "type": "function",
		"function": map[string]string{"name": name, "arguments": string(args)},
	}}}, nil)
	if err != nil {
		return err
	}
	return a.finish("tool_calls")
}

func (a *completion) stop() error { return a.finish("stop") }

func (a *completion) finish(reason string) error {
	if err := a.chunk(map[string]any{}, reason); err != nil {
		return err
	}
	return a.write("[DONE]")
}

func (a *completion) fail(status int, body string) error {
	if a.begun {
		return errDrop
	}
	a.begun = true
	a.w.Header().Set("Content-Type", "application/json")
	a.w.WriteHeader(status)
	_, err := io.WriteString(a.w, body)
	return err
}

// chunk sends one delta. reason is nil in all but the last.
func (a *completion) chunk(delta map[string]any, reason any) error {
	if !a.begun {
		delta["role"] = "assistant"
	}
	b, err := json.Marshal(map[string]any{
		"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": a.model,
		"choices": []map[string]any{{"index": 0, "delta": delta, "finish_reason": reason}},
		"usage":   map[string]int{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	})
	if err != nil {
		return fmt.Errorf("marshalling a chunk: %w", err)
	}
	return a.write(string(b))
}

func (a *completion) write(data string) error {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.WriteHeader(http.StatusOK)
	}
	if _, err := io.WriteString(a.w, "data: "+data+"\n\n"); err != nil {
		return err
	}
	return http.NewResponseController(a.w).Flush()
}
