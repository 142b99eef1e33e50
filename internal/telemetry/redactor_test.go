package telemetry_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/alineod/alineod/internal/telemetry"
)

func TestRedactorString(t *testing.T) {
	t.Parallel()
	const key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nc2hvcnQ\n-----END KEY-----\n"
	odd := "a\"b<c>\\d\té&=/"
	r := telemetry.NewRedactor("s3cret-token", "s3cret-token-longer", odd, key, "short", "     x     ")
	asJSON, err := json.Marshal("x " + odd)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"Bearer s3cret-token, again s3cret-token": "Bearer [redacted], again [redacted]",
		"s3cret-token-longer":                     "[redacted]",
		"raw " + odd + " end":                     "raw [redacted] end",
		string(asJSON):                            `"x [redacted]"`,
		fmt.Sprintf("%q", odd):                    `"[redacted]"`,
		fmt.Sprintf("%+q", odd):                   `"[redacted]"`,
		"http://h/?t=" + url.QueryEscape(odd):     "http://h/?t=[redacted]",
		"http://h/" + url.PathEscape(odd):         "http://h/[redacted]",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("s3cret-token")): "Basic [redacted]",
		"line: MIIEvQIBADANBgkqhkiG9w0 end":                                  "line: [redacted] end",
		"a short word":                                                       "a short word",
		"":                                                                   "",
	} {
		if got := r.String(in); got != want {
			t.Errorf("String(%q) = %q, want %q", in, got, want)
		}
	}
	if got := r.String(key); strings.Contains(got, "MIIE") {
		t.Errorf("a key of several lines stands in %q", got)
	}

	r.Add("s3cret-token") // a second owner
	r.Remove("s3cret-token")
	if got := r.String("s3cret-token"); got != telemetry.Redacted {
		t.Errorf("with one owner left: %q", got)
	}
	r.Remove("s3cret-token", "s3cret-token")
	if got := r.String("s3cret-token"); got != "s3cret-token" {
		t.Errorf("with no owner left: %q", got)
	}
	r.Add("s3cret-token")
	if got := r.String("s3cret-token"); got != telemetry.Redacted {
		t.Errorf("added after one removal too many: %q", got)
	}

	var none *telemetry.Redactor
	none.Add("s3cret-token")
	if got := none.String("s3cret-token"); got != "s3cret-token" {
		t.Errorf("a nil Redactor changed the text to %q", got)
	}
}

func TestRedactorError(t *testing.T) {
	t.Parallel()
	r := telemetry.NewRedactor("s3cret-token")
	err := r.Error(fmt.Errorf("asking with s3cret-token: %w", io.ErrUnexpectedEOF))
	if err.Error() != "asking with [redacted]: unexpected EOF" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, kind kept: %v", err, errors.Is(err, io.ErrUnexpectedEOF))
	}
	if r.Error(nil) != nil || r.Error(io.EOF) != io.EOF {
		t.Error("an error without a secret was changed")
	}
}

func TestRedactorConcurrently(t *testing.T) {
	t.Parallel()
	r := telemetry.NewRedactor("always-there")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			own := fmt.Sprintf("secret-of-%d", i)
			for range 200 {
				r.Add(own)
				if got := r.String(own + " always-there"); got != "[redacted] [redacted]" {
					t.Errorf("got %q", got)
				}
				r.Remove(own)
			}
		})
	}
	wg.Wait()
	if got := r.String("secret-of-3"); got != "secret-of-3" {
		t.Errorf("after the last removal: %q", got)
	}
}

func BenchmarkRedactorString(b *testing.B) {
	r := telemetry.NewRedactor()
	for i := range 100 {
		r.Add(fmt.Sprintf("secret-number-%d", i))
	}
	line := strings.Repeat("agent a_0123456789ab went from running to done; ", 4)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		r.String(line)
	}
}
