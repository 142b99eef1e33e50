package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// print writes data: as one JSON document where that is asked for, else as
// readable writes it.
func (a *app) print(data any, readable func(w io.Writer)) error {
	if !a.json {
		w := &failing{w: a.out}
		readable(w)
		return w.err
	}
	out := json.NewEncoder(a.out)
	// The output is for programs and shells, not for a page.
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(data); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// printLine writes data as one line of a stream of JSON documents.
func (a *app) printLine(data any) error {
	out := json.NewEncoder(a.out)
	out.SetEscapeHTML(false)
	if err := out.Encode(data); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// failing remembers the first error of a writer, as of a full disk, so that
// what is printed in many steps is checked once.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.w.Write(p)
	if err != nil {
		f.err = fmt.Errorf("writing the answer: %w", err)
	}
	return n, f.err
}

// say writes a message for the user.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// table writes rows in columns, each cell as one line.
func table(w io.Writer, rows ...[]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = line(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush() // w remembers its error
}

// line makes text fit for one line of a terminal. What agents say is not
// trusted: a control sequence could rewrite what the user sees.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return visible(r)
	}, s)
}

// text makes text fit for a terminal, with its lines.
func text(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return visible(r)
	}, s)
}

// visible drops control characters and those that only turn the direction of
// others.
func visible(r rune) rune {
	// C1 controls are controls too: some terminals obey them.
	if r == unicode.ReplacementChar || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
		return -1
	}
	return r
}

// cut shortens one line to at most n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// when formats Unix milliseconds.
func when(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).Format(time.RFC3339)
}

// age says how long ago Unix milliseconds are, in its largest unit.
func (a *app) age(ms int64) string {
	d := max(a.clock.Now().Sub(time.UnixMilli(ms)), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// size formats a size.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/unit, "KMGTPE"
	for v >= unit && len(units) > 1 {
		v, units = v/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

// deref is *p, or the zero value.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// list is never null in JSON.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
