package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Parse reads and checks a spec. The error, where there is one, is an *Error
// (errors.Is ErrInvalid) with every problem found; warnings are returned in
// either case. A null is taken as a field that was not given.
func Parse(data []byte) (*Spec, []Warning, error) {
	var f findings
	s := f.decode(data)
	if s != nil {
		f.check(s)
	}
	if err := f.err(); err != nil {
		return nil, f.warnings, err
	}
	return s, f.warnings, nil
}

// UnmarshalJSON reads a spec that was accepted before, as from the ledger. It
// checks types only: rules may have become stricter since, and an agent that
// lives is not to be lost for that.
func (s *Spec) UnmarshalJSON(data []byte) error {
	var f findings
	d := f.decode(data)
	if err := f.err(); err != nil {
		return err
	}
	*s = *d
	return nil
}

// decode reads the types; nil where the text is no JSON object.
func (f *findings) decode(data []byte) *Spec {
	if len(data) > MaxBytes {
		f.problem("", "is longer than %d bytes", MaxBytes)
		return nil
	}
	if !utf8.Valid(data) {
		f.problem("", "is not valid UTF-8")
		return nil
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		f.problem("", "%s", syntaxMessage(data, err))
		return nil
	}
	s := &Spec{}
	var cli, cliVersion string
	if !f.object("", whole, fields{
		"$schema":        str(&s.Schema),
		"name":           str(&s.Name),
		"title":          str(&s.Title),
		"description":    str(&s.Description),
		"metadata":       rawObject(&s.Metadata),
		"harness":        str(&s.Harness),
		"cli":            str(&cli),
		"harnessVersion": str(&s.HarnessVersion),
		"cliVersion":     str(&cliVersion),
		"provider":       str(&s.Provider),
		"model":          str(&s.Model),
		"image":          str(&s.Image),
		"packages":       strs(&s.Packages),
		"setup":          steps(&s.Setup),
		"env":            strMap(&s.Env),
		"resources":      resources(&s.Resources),
		"workdir":        str(&s.Workdir),
		"user":           str(&s.User),
		"checkpoint":     checkpoint(&s.Checkpoint),
		"onInterrupt":    str(&s.OnInterrupt),
		"onFailure":      str(&s.OnFailure),
		"maxRetries":     integer(&s.MaxRetries),

		"maxConsecutiveFailures": integer(&s.MaxFailures),

		"spawnDepth": integer(&s.SpawnDepth),
		"maxAgents":  integer(&s.MaxAgents),
	}, &s.Extra) {
		return nil
	}
	s.Harness = f.alias("harness", s.Harness, "cli", cli)
	s.HarnessVersion = f.alias("harnessVersion", s.HarnessVersion, "cliVersion", cliVersion)
	if s.Name == "" && !f.has("name") {
		s.Name = s.Harness
	}
	return s
}

// alias joins a field with its older name.
func (f *findings) alias(name, value, old, oldValue string) string {
	switch {
	case oldValue == "":
		return value
	case value == "":
		if f.written == nil {
			f.written = map[string]string{}
		}
		f.written[name] = old
		return oldValue
	case value != oldValue:
		f.problem(old, "is %q, but %s is %q; both name the same thing, give one", oldValue, name, value)
	}
	return value
}

// A reader takes one value into the field it was made for.
type reader func(f *findings, path string, raw json.RawMessage)

type fields map[string]reader

// object reads the members of an object. What no field is known for goes to
// extra, with a warning. False where the value is no object.
func (f *findings) object(path string, raw json.RawMessage, known fields, extra *map[string]json.RawMessage) bool {
	return f.members(path, raw, func(key string, value json.RawMessage) {
		read, ok := known[key]
		if !ok {
			if *extra == nil {
				*extra = map[string]json.RawMessage{}
			}
			(*extra)[key] = value
			f.warn(join(path, key), "is not known to this version; it is kept and has no effect")
			return
		}
		if string(value) != "null" {
			read(f, join(path, key), value)
		}
	})
}

// members calls take for each member in the order of the text. The text is
// valid JSON. Keys are compared exactly, and one that comes twice is a
// problem: of two values for one field, neither can be trusted.
func (f *findings) members(path string, raw json.RawMessage, take func(key string, value json.RawMessage)) bool {
	if kind(raw) != "an object" {
		f.wrongType(path, "an object", raw)
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token() // the opening brace
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		key, ok := tok.(string)
		var value json.RawMessage
		if err == nil && ok {
			err = dec.Decode(&value)
		}
		if err != nil || !ok {
			f.problem(path, "cannot be read: %v", err)
			return false
		}
		if seen[key] {
			f.problem(join(path, key), "is given twice")
			continue
		}
		seen[key] = true
		take(key, value)
	}
	return true
}

// elements calls take for each element of an array.
func (f *findings) elements(path string, raw json.RawMessage, want string, take func(path string, value json.RawMessage)) {
	var values []json.RawMessage
	if kind(raw) != "an array" || json.Unmarshal(raw, &values) != nil {
		f.wrongType(path, want, raw)
		return
	}
	for i, v := range values {
		take(index(path, i), v)
	}
}

func (f *findings) wrongType(path, want string, raw json.RawMessage) {
	f.problem(path, "must be %s, not %s", want, kind(raw))
}

func str(to *string) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		if kind(raw) != "a string" || json.Unmarshal(raw, to) != nil {
			f.wrongType(path, "a string", raw)
		}
	}
}

func boolean(to *bool) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		if json.Unmarshal(raw, to) != nil {
			f.wrongType(path, "true or false", raw)
		}
	}
}

func integer(to **int) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		var n int32 // far beyond any sensible bound, the same on every machine
		if json.Unmarshal(raw, &n) != nil {
			if kind(raw) == "a number" {
				f.problem(path, "must be a whole number, not %s", raw)
			} else {
				f.wrongType(path, "a whole number", raw)
			}
			return
		}
		v := int(n)
		*to = &v
	}
}

func strs(to *[]string) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		f.elements(path, raw, "an array of strings", func(path string, value json.RawMessage) {
			var s string
			str(&s)(f, path, value)
			*to = append(*to, s)
		})
	}
}

func strMap(to *map[string]string) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		m := map[string]string{}
		f.members(path, raw, func(key string, value json.RawMessage) {
			var s string
			str(&s)(f, join(path, key), value)
			m[key] = s
		})
		*to = m
	}
}

// rawObject keeps an object as it was written, digits of numbers included.
func rawObject(to *json.RawMessage) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		if kind(raw) != "an object" {
			f.wrongType(path, "an object", raw)
			return
		}
		*to = raw
	}
}

func steps(to *[]Step) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		f.elements(path, raw, "an array of steps", func(path string, value json.RawMessage) {
			var s Step
			f.object(path, value, fields{"name": str(&s.Name), "run": str(&s.Run), "cwd": str(&s.Cwd)}, &s.Extra)
			if s.Name == "" {
				s.Name = fmt.Sprintf("step %d", len(*to)+1)
			}
			*to = append(*to, s)
		})
	}
}

func resources(to **Resources) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		r := &Resources{}
		if f.object(path, raw, fields{"cpu": str(&r.CPU), "memory": str(&r.Memory)}, &r.Extra) {
			*to = r
		}
	}
}

func checkpoint(to **Checkpoint) reader {
	return func(f *findings, path string, raw json.RawMessage) {
		c := &Checkpoint{Enabled: true}
		switch kind(raw) {
		case "true or false":
			boolean(&c.Enabled)(f, path, raw)
		case "an object":
			f.object(path, raw, fields{
				"enabled": boolean(&c.Enabled),
				"paths":   strs(&c.Paths),
				"exclude": strs(&c.Exclude),
				"retain":  integer(&c.Retain),
			}, &c.Extra)
		default:
			f.wrongType(path, "true, false or an object", raw)
			return
		}
		*to = c
	}
}

// kind names a JSON value's type as a person would.
func kind(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// syntaxMessage says in which line and column the JSON breaks.
func syntaxMessage(data []byte, err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return "is not JSON: " + err.Error()
	}
	before := data[:min(int(syntax.Offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Sprintf("is not JSON: line %d, column %d: %s", line, column, syntax.Error())
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
