package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alineod/alineod/internal/harness"
)

// maxFlood bounds `flood`, so that a slip of the finger ends some day.
const maxFlood = 10_000_000

// line obeys one line. Arguments that make no sense fail the turn.
func (t *turn) line(ctx context.Context, line string) error {
	name, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSpace(arg)
	switch name {
	case "say":
		return t.say(arg)
	case "run":
		return t.tool(ctx, "run", map[string]any{"command": arg}, func(ctx context.Context, progress func(string)) (string, error) {
			return shell(ctx, arg, progress)
		})
	case "write":
		path, text, _ := strings.Cut(arg, " ")
		return t.tool(ctx, "write", map[string]any{"path": path, "text": text}, func(context.Context, func(string)) (string, error) {
			return t.write(path, text)
		})
	case "sleep":
		d, err := seconds(arg)
		if err != nil {
			return err
		}
		return t.tool(ctx, "sleep", map[string]any{"seconds": d.Seconds()}, func(ctx context.Context, _ func(string)) (string, error) {
			return sleep(ctx, d)
		})
	case "count":
		return t.say(fmt.Sprintf("count: %d", t.earlier))
	case "think":
		t.emit(report{Ev: evDelta, Name: "thinking", Text: arg})
		return nil
	case "todo":
		return t.tool(ctx, "todo", map[string]any{"text": arg}, func(context.Context, func(string)) (string, error) {
			return "noted", nil
		})
	case "ask":
		return t.ask(ctx, arg)
	case "fail":
		return failure{harness.ClassModelError, arg}
	case "quota":
		return t.quota(arg)
	case "unauthorized":
		return failure{harness.ClassMissingCredentials, "401: the key was refused"}
	case "exit":
		code, err := strconv.ParseUint(arg, 10, 8)
		if err != nil {
			return bad(line, "want exit CODE, a number from 0 to 255")
		}
		return exitError(code)
	case "flood":
		return t.flood(ctx, arg)
	case "garbage":
		return t.garbage()
	}
	return t.say("echo: " + line)
}

func bad(line, want string) error {
	return failure{harness.ClassModelError, fmt.Sprintf("cannot obey %q: %s", line, want)}
}

func seconds(arg string) (time.Duration, error) {
	s, err := strconv.ParseFloat(arg, 64)
	if err != nil || math.IsNaN(s) || s < 0 || s > math.MaxInt32 {
		return 0, bad(arg, "want a number of seconds")
	}
	return time.Duration(s * float64(time.Second)), nil
}

// tool stores the call, does it and stores what came of it. An error of do is
// the tool's, not the turn's; only an aborted turn cuts it short.
func (t *turn) tool(ctx context.Context, name string, args map[string]any, do func(context.Context, func(string)) (string, error)) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("marshalling a call: %w", err)
	}
	id := t.callID()
	if err := t.message(entry{Role: "assistant", Call: id, Tool: name, Args: raw}); err != nil {
		return err
	}
	t.emit(report{Ev: evTool, ID: id, Name: name, Args: raw})
	result, failed := do(ctx, func(text string) { t.emit(report{Ev: evToolOut, ID: id, Name: name, Text: text}) })
	if ctx.Err() != nil {
		failed = ctx.Err()
	}
	if failed != nil {
		result = strings.TrimLeft(result+"\n"+failed.Error(), "\n")
	}
	if err := t.message(entry{Role: "tool", Call: id, Tool: name, Text: result}); err != nil {
		return err
	}
	t.emit(report{Ev: evToolEnd, ID: id, Name: name, Text: result, IsError: failed != nil})
	return ctx.Err()
}

// write writes a file below the home; a path that leads out of it, by way of
// dots or links, is refused.
func (t *turn) write(path, text string) (string, error) {
	root, err := os.OpenRoot(t.home)
	if err != nil {
		return "", fmt.Errorf("opening the home: %w", err)
	}
	defer root.Close()
	path = strings.TrimPrefix(strings.TrimPrefix(path, "~/"), t.home+"/")
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	if err := root.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	return fmt.Sprintf("wrote %d bytes to %s", len(text)+1, path), nil
}

func sleep(ctx context.Context, d time.Duration) (string, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return fmt.Sprintf("slept %v", d), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (t *turn) ask(ctx context.Context, question string) error {
	id := t.callID()
	answer := make(chan order, 1)
	t.mu.Lock()
	t.asks[id] = answer
	t.mu.Unlock()
	t.emit(report{Ev: evAsk, ID: id, Text: question})
	select {
	case o := <-answer:
		t.emit(report{Ev: evAnswered, ID: id, Decision: o.Decision, Feedback: o.Feedback})
		return t.say("answer: " + o.Decision)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *turn) quota(arg string) error {
	provider, rest, _ := strings.Cut(arg, " ")
	d, err := seconds(strings.TrimSpace(rest))
	if provider == "" || err != nil {
		return bad("quota "+arg, "want quota PROVIDER SECONDS")
	}
	reset := time.Now().Add(d)
	text := fmt.Sprintf("429: usage limit of %s reached, resets at %s", provider, reset.UTC().Format(time.RFC3339))
	t.emit(report{Ev: evQuota, Provider: provider, ResetsAt: reset.UnixMilli(), Text: text})
	return failure{harness.ClassQuota, text}
}

func (t *turn) flood(ctx context.Context, arg string) error {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 || n > maxFlood {
		return bad("flood "+arg, fmt.Sprintf("want flood N, at most %d", maxFlood))
	}
	for i := range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		t.emit(report{Ev: evDelta, Name: "text", Text: fmt.Sprintf("%d ", i)})
	}
	return t.message(entry{Role: "assistant", Text: fmt.Sprintf("flood: %d", n)})
}

// garbage prints what a broken or hostile harness might: each line has to be
// set aside by the reader without harm.
func (t *turn) garbage() error {
	lines := []string{
		"this is not JSON",
		`{"ev":"message","text":`,
		`{"ev":42}`,
		`{"ev":"end","messages":1e999}`,
		`{"ev":"nothing of that name"}`,
		`[1,2,3]`,
		"\x00\x01\xff\xfe",
		strings.Repeat("[", 20_000),
		`"` + strings.Repeat("x", 100_000),
	}
	t.outMu.Lock()
	_, _ = t.out.Write([]byte(strings.Join(lines, "\n") + "\n"))
	t.outMu.Unlock()
	return t.say("garbage: printed")
}
