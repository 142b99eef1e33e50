package telemetry

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// Redacted stands where a secret was.
	Redacted = "[redacted]"
	// minSecret: a shorter value stands in too many innocent words, and hides
	// nothing that could not be guessed.
	minSecret = 6
	// minSecretLine: single lines of a secret of many lines, as of a key.
	minSecretLine = 16
)

// Redactor takes the secrets it knows out of texts. All methods are safe for
// concurrent use; a nil Redactor knows none.
type Redactor struct {
	mu sync.Mutex
	// counts says how often a value was added: two agents may have the same
	// token, and one of them ends first.
	counts  map[string]int
	current atomic.Pointer[strings.Replacer] // nil where nothing is known
}

// NewRedactor returns a Redactor that knows the given values.
func NewRedactor(values ...string) *Redactor {
	r := &Redactor{counts: map[string]int{}}
	r.Add(values...)
	return r
}

// Add makes values known. Those shorter than six characters are ignored. A
// value added twice is forgotten after two removals.
func (r *Redactor) Add(values ...string) { r.change(1, values) }

// Remove takes back one Add of each value.
func (r *Redactor) Remove(values ...string) { r.change(-1, values) }

func (r *Redactor) change(by int, values []string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for _, v := range values {
		if len(strings.TrimSpace(v)) < minSecret {
			continue
		}
		n := r.counts[v] + by
		if n > 0 {
			r.counts[v] = n
		} else {
			delete(r.counts, v)
		}
		// Only a first Add and a last Remove change what is known.
		changed = changed || by > 0 && n == 1 || by < 0 && n <= 0
	}
	if changed {
		r.rebuild()
	}
}

// rebuild makes the replacer anew. Longer forms come first: of a secret and
// another that begins with it, the longer one is what stands there.
func (r *Redactor) rebuild() {
	var all []string
	for v := range r.counts {
		all = append(all, forms(v)...)
	}
	if len(all) == 0 {
		r.current.Store(nil)
		return
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	all = slices.Compact(all)
	pairs := make([]string, 0, 2*len(all))
	for _, form := range all {
		pairs = append(pairs, form, Redacted)
	}
	r.current.Store(strings.NewReplacer(pairs...))
}

// String returns s without the secrets known at this moment.
func (r *Redactor) String(s string) string {
	if r == nil {
		return s
	}
	if replacer := r.current.Load(); replacer != nil {
		return replacer.Replace(s)
	}
	return s
}

// Error returns err with its text redacted. It is the same error to errors.Is
// and errors.As; what errors.As finds has its own text, unredacted.
func (r *Redactor) Error(err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); r.String(text) != text {
		return &redactedError{r.String(text), err}
	}
	return err
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }

// forms lists how a value may stand in a text: as it is, quoted by JSON or Go,
// in an address, in base64, and line by line.
func forms(value string) []string {
	trimmed := strings.TrimSpace(value)
	out := []string{
		trimmed,
		quoted(trimmed, true), quoted(trimmed, false),
		unquote(strconv.Quote(trimmed)), unquote(strconv.QuoteToASCII(trimmed)),
		url.QueryEscape(trimmed), url.PathEscape(trimmed),
		// Base64 of the value alone; inside a longer text it looks different.
		base64.StdEncoding.EncodeToString([]byte(trimmed)),
		base64.RawURLEncoding.EncodeToString([]byte(trimmed)),
	}
	if strings.Contains(trimmed, "\n") {
		for line := range strings.Lines(trimmed) {
			if line = strings.TrimSpace(line); len(line) >= minSecretLine {
				out = append(out, line, quoted(line, true), quoted(line, false))
			}
		}
	}
	return out
}

// quoted is what stands between the quotes of a JSON string.
func quoted(s string, escapeHTML bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if err := enc.Encode(s); err != nil {
		return s
	}
	return unquote(strings.TrimSuffix(b.String(), "\n"))
}

func unquote(s string) string { return s[1 : len(s)-1] }
