package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/alineod/alineod/internal/telemetry"
)

const secret = `pa"ss<word>`

type stringer struct{}

func (stringer) String() string { return "stringer " + secret }

type object struct{}

func (object) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("inner", secret)
	enc.AddInt("n", 7)
	return enc.AddArray("list", zapcore.ArrayMarshalerFunc(func(a zapcore.ArrayEncoder) error {
		a.AppendString(secret)
		return a.AppendReflected(struct{ Deep []string }{[]string{secret}})
	}))
}

// nilError panics when it is asked for its text.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestEveryFieldIsRedacted(t *testing.T) {
	t.Parallel()
	r := telemetry.NewRedactor("123456789") // a secret that is a number
	for _, format := range []string{"json", "console"} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger("debug", format, &out, false, r.Option())
		if err != nil {
			t.Fatal(err)
		}
		// With comes before the secret is known.
		log = log.With(zap.String("with", secret), zap.Int("agents", 123456789)).Named("room")
		r.Add(secret)
		var broken *nilError
		log.Warn("message "+secret,
			zap.String("string", secret),
			zap.Error(fmt.Errorf("wrapped: %w", errors.New(secret))),
			zap.NamedError("several", errors.Join(errors.New("a"), errors.New(secret))),
			zap.NamedError("broken", broken),
			zap.Errors("errors", []error{errors.New(secret)}),
			zap.Strings("strings", []string{secret}),
			zap.ByteString("bytes", []byte(secret)),
			zap.Binary("binary", []byte(secret)),
			zap.Stringer("stringer", stringer{}),
			zap.Object("object", object{}),
			zap.Inline(object{}),
			zap.Any("map", map[string]any{"k": secret, secret: 1.5}),
			zap.Reflect("struct", struct{ A, B string }{secret, "b"}),
			zap.Any("raw", json.RawMessage(`{"x":12345678901234567890}`)),
			zap.Any("when", time.Unix(0, 0).UTC()),
			zap.Duration("took", 1500*time.Millisecond),
			zap.Namespace("ns"),
			zap.Bool("ok", true),
		)
		r.Remove(secret)
		line := out.String()
		for _, bad := range []string{`pa"ss`, `pa\"ss`, `pa\\\"ss`, "word>", "ss\\u003cword", "cGEic3M8d29yZD4"} {
			if strings.Contains(line, bad) {
				t.Errorf("%s: the secret stands in the line as %s:\n%s", format, bad, line)
			}
		}
		if strings.Count(line, "\n") != 1 {
			t.Errorf("%s: not one line:\n%s", format, line)
		}
		if format == "console" {
			continue
		}
		var got map[string]any
		dec := json.NewDecoder(&out)
		dec.UseNumber()
		if err := dec.Decode(&got); err != nil {
			t.Fatalf("%v:\n%s", err, line)
		}
		for key, want := range map[string]string{
			"msg": "message [redacted]", "level": "warn", "logger": "room", "with": "[redacted]", "agents": "123456789",
			"error": "wrapped: [redacted]", "struct": "map[A:[redacted] B:b]", "took": "1.5s", "string": "[redacted]",
			"raw": "map[x:12345678901234567890]", "when": "1970-01-01T00:00:00.000Z", "ns": "map[ok:true]",
			"object": "map[inner:[redacted] list:[[redacted] map[Deep:[[redacted]]]] n:7]", "inner": "[redacted]",
			"errors": "[map[error:[redacted]]]", "stringer": "stringer [redacted]",
		} {
			if text := fmt.Sprint(got[key]); text != want {
				t.Errorf("%s = %s, want %s", key, text, want)
			}
		}
		if !strings.Contains(fmt.Sprint(got["broken"]), "nilError") {
			t.Errorf("broken = %v", got["broken"])
		}
		if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(got["ts"])); err != nil {
			t.Errorf("ts: %v", err)
		}
	}
}

func TestFormatsAndLevels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		format   string
		terminal bool
		json     bool
	}{
		{"json", false, true}, {"json", true, true}, {"auto", false, true},
		{"auto", true, false}, {"console", false, false}, {"console", true, false},
	} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger("warn", tt.format, &out, tt.terminal)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("too quiet to be heard")
		log.Warn("loud")
		if json.Valid(out.Bytes()) != tt.json || !strings.Contains(out.String(), "loud") || strings.Contains(out.String(), "quiet") {
			t.Errorf("%s on a terminal %v: %q", tt.format, tt.terminal, out.String())
		}
		if colour := strings.Contains(out.String(), "\x1b["); colour != (tt.terminal && !tt.json) {
			t.Errorf("%s on a terminal %v: colour %v", tt.format, tt.terminal, colour)
		}
	}
	for _, bad := range [][2]string{{"loud", "json"}, {"info", "xml"}, {"fatal", "json"}, {"", ""}} {
		if _, err := telemetry.NewLogger(bad[0], bad[1], &bytes.Buffer{}, false); !errors.Is(err, telemetry.ErrInvalid) {
			t.Errorf("level %q, format %q: %v, want ErrInvalid", bad[0], bad[1], err)
		}
	}
}
