package scripted

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alineod/alineod/internal/harness"
)

var errAborted = errors.New("aborted")

// exitError ends the process in mid-turn with that code.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// failure ends a turn as failed.
type failure struct{ class, text string }

func (f failure) Error() string { return f.text }

// turns runs one turn after another until ctx ends.
func (a *agent) turns(ctx context.Context, prompts <-chan prompt) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-prompts:
			err := a.turn(p.ctx, p.order)
			p.cancel(nil)
			if err != nil {
				return err
			}
		}
	}
}

// turn obeys one prompt and reports its end. An error ends the process: the
// turn's end was not reported then.
func (a *agent) turn(ctx context.Context, o order) error {
	t := &turn{agent: a, earlier: a.session.messages}
	err := t.obey(ctx, o)
	aborts := a.close()

	end := report{Ev: evEnd, Outcome: harness.OutcomeSuccess, Messages: a.session.messages}
	var failed failure
	switch {
	case err == nil:
	case errors.As(err, &failed):
		end.Outcome, end.Class, end.Error = harness.OutcomeFailed, failed.class, failed.text
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		end.Outcome = harness.OutcomeAborted
	default:
		return err
	}
	a.emit(end)
	for _, id := range aborts {
		a.emit(report{Ev: evReply, ID: id})
	}
	return nil
}

// close ends the turn for the reader, before its end is reported: the next
// prompt may follow that report at once. It returns the aborts to be answered.
func (a *agent) close() (aborts []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	aborts = a.aborts
	a.busy, a.abort, a.aborts, a.steering, a.followUp = false, nil, nil, nil, nil
	clear(a.asks)
	return aborts
}

// turn is the turn in progress.
type turn struct {
	*agent
	earlier int // messages stored before the prompt
}

// obey obeys the prompt, then what arrived meanwhile: steering messages
// between two lines, follow-up messages when no lines are left.
func (t *turn) obey(ctx context.Context, o order) error {
	if err := t.message(entry{Role: "user", Text: o.Text, Images: o.Images}); err != nil {
		return err
	}
	lines := split(o.Text)
	for {
		text, ok := t.next(len(lines) == 0)
		if ok {
			if err := t.message(entry{Role: "user", Text: text}); err != nil {
				return err
			}
			lines = append(split(text), lines...)
			continue
		}
		if len(lines) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		line := lines[0]
		lines = lines[1:]
		if err := t.line(ctx, line); err != nil {
			return err
		}
	}
}

func split(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// next takes the next waiting message, a follow-up only where idle says that
// nothing else is left. Where there is none at all, the turn stops taking
// orders in the same instant: one that is accepted is always obeyed.
func (t *turn) next(idle bool) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := &t.steering
	if len(*queue) == 0 && idle {
		queue = &t.followUp
	}
	if len(*queue) == 0 {
		if idle {
			t.abort = nil
		}
		return "", false
	}
	text := (*queue)[0]
	*queue = (*queue)[1:]
	t.emit(report{Ev: evQueue, Steering: len(t.steering), FollowUp: len(t.followUp)})
	return text, true
}

// message stores a message, then reports it: what was reported is durable.
func (t *turn) message(e entry) error {
	e.Type = "message"
	if err := t.session.append(e); err != nil {
		return err
	}
	t.emit(report{Ev: evMessage, Name: e.Role, Text: e.Text, Messages: t.session.messages})
	return nil
}

func (t *turn) say(text string) error {
	t.emit(report{Ev: evDelta, Name: "text", Text: text})
	return t.message(entry{Role: "assistant", Text: text})
}

// callID numbers tool calls and requests over the life of the session, so that
// a continued one repeats none.
func (t *turn) callID() string {
	t.calls++
	return fmt.Sprintf("%s-%d-%d", t.session.id[:8], t.session.messages, t.calls)
}
