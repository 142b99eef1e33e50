package modelserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// conversation is a request of any API, reduced to what the script needs.
type conversation struct {
	model    string
	messages []Message
}

// count is the number of messages but for the system's.
func (c conversation) count() (n int) {
	for _, m := range c.messages {
		if m.Role != "system" {
			n++
		}
	}
	return n
}

// script returns the last user message's lines and how many of its tool calls
// have their results.
func (c conversation) script() (lines []string, calls int) {
	for i := len(c.messages) - 1; i >= 0; i-- {
		switch m := c.messages[i]; m.Role {
		case "tool":
			calls++
		case "user":
			for line := range strings.Lines(m.Text) {
				if line = strings.TrimSpace(line); line != "" {
					lines = append(lines, line)
				}
			}
			return lines, calls
		}
	}
	return nil, calls
}

func (c conversation) lastResult() string {
	for i := len(c.messages) - 1; i >= 0; i-- {
		if c.messages[i].Role == "tool" {
			return c.messages[i].Text
		}
	}
	return ""
}

// answer is one streamed answer in the words of an API.
type answer interface {
	text(delta string) error
	thinking(delta string) error
	// toolCall calls a tool and ends the answer.
	toolCall(id, name string, args json.RawMessage) error
	// stop ends the answer.
	stop() error
	// fail answers with an HTTP status; errDrop where the answer has begun.
	fail(status int, body string) error
}

// speaker puts a new line between the things said in one answer.
type speaker struct {
	answer
	spoke bool
}

func (a *speaker) say(text string) error {
	if a.spoke {
		text = "\n" + text
	}
	a.spoke = true
	return a.text(text)
}

// errDrop: the connection is to be cut.
var errDrop = errors.New("connection dropped")

const (
	quotaBody = `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.",` +
		`"type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`
	unauthorizedBody = `{"error":{"message":"Incorrect API key provided.",` +
		`"type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`
)

// obey does what the conversation's last user message says from where it
// stands, up to the next tool call or the end.
func (s *Server) obey(ctx context.Context, c conversation, a answer) error {
	lines, done := c.script()
	out := &speaker{answer: a}
	for i, line := range lines {
		name, arg, _ := strings.Cut(line, " ")
		arg = strings.TrimSpace(arg)
		if name == "run" || name == "tool" {
			if done--; done >= 0 {
				continue
			}
			return s.call(a, name, arg)
		}
		if done > 0 {
			continue // said in an answer before
		}
		ended, err := s.line(ctx, c, out, name, arg, line, i)
		if err != nil || ended {
			return err
		}
	}
	return a.stop()
}

func (s *Server) call(a answer, name, arg string) error {
	if name == "tool" {
		tool, args, _ := strings.Cut(arg, " ")
		if !json.Valid([]byte(args)) {
			return a.fail(http.StatusBadRequest, "tool: arguments are not JSON")
		}
		return a.toolCall(s.callID(), tool, json.RawMessage(args))
	}
	args, err := json.Marshal(map[string]string{"command": arg})
	if err != nil {
		return fmt.Errorf("marshalling a call: %w", err)
	}
	return a.toolCall(s.callID(), "bash", args)
}

// line obeys one line that calls no tool; ended says that it closed the answer.
func (s *Server) line(ctx context.Context, c conversation, a *speaker, name, arg, line string, i int) (ended bool, err error) {
	switch name {
	case "say":
		return false, a.say(arg)
	case "think":
		return false, a.thinking(arg)
	case "result":
		return false, a.say("result: " + strings.TrimSpace(c.lastResult()))
	case "count":
		return false, a.say(fmt.Sprintf("count: %d", c.count()))
	case "hold":
		return false, hold(ctx, arg)
	case "sleep":
		return false, sleep(ctx, arg)
	case "flood":
		n, _ := strconv.Atoi(arg) // no number floods nothing
		for i := range n {
			if err := a.text(fmt.Sprintf("%d ", i)); err != nil {
				return false, err
			}
		}
		return false, nil
	case "fail":
		status, body, _ := strings.Cut(arg, " ")
		return true, a.fail(httpStatus(status), body)
	case "flaky":
		times, status, _ := strings.Cut(arg, " ")
		n, _ := strconv.Atoi(times)
		if s.failAgain(fmt.Sprintf("%d/%d/%s", c.count(), i, line), n) {
			return true, a.fail(httpStatus(status), `{"error":{"message":"busy, try again"}}`)
		}
		return false, nil
	case "quota":
		return true, a.fail(http.StatusTooManyRequests, quotaBody)
	case "unauthorized":
		return true, a.fail(http.StatusUnauthorized, unauthorizedBody)
	case "drop":
		return true, errDrop
	}
	return false, a.say("echo: " + line)
}

func httpStatus(s string) int {
	status, err := strconv.Atoi(s)
	if err != nil || status < 400 || status > 599 {
		return http.StatusInternalServerError
	}
	return status
}

// holdInterval is how often `hold` looks for its file. Nothing depends on it
// but how soon the answer goes on.
const holdInterval = 10 * time.Millisecond

func hold(ctx context.Context, path string) error {
	tick := time.NewTicker(holdInterval)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("holding for %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func sleep(ctx context.Context, arg string) error {
	s, err := strconv.ParseFloat(arg, 64)
	if err != nil {
		return fmt.Errorf("sleeping: %w", err)
	}
	timer := time.NewTimer(time.Duration(s * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
