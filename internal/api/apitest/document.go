// Package apitest holds what a daemon answers to the OpenAPI document it serves.
package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const address = "mem:///openapi.json"

// Document is an OpenAPI document as a client reads it. It is safe for
// concurrent use.
type Document struct {
	raw map[string]any

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

// Parse reads a document.
func Parse(r io.Reader) (*Document, error) {
	v, err := jsonschema.UnmarshalJSON(r)
	if err != nil {
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	raw, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the document is no object")
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(address, raw); err != nil {
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	return &Document{raw: raw, compiler: c, compiled: map[string]*jsonschema.Schema{}}, nil
}

// At follows names through the document; nil where they lead nowhere.
func (d *Document) At(names ...string) any {
	var v any = d.raw
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// Routes are the documented ones, as "GET /runs/{id}", sorted.
func (d *Document) Routes() []string {
	var found []string
	paths, _ := d.At("paths").(map[string]any)
	for path, item := range paths {
		methods, _ := item.(map[string]any)
		for method := range methods {
			found = append(found, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(found)
	return found
}

// Validate holds a value to the schema at a place of the document.
func (d *Document) Validate(v any, names ...string) error {
	s, err := d.schema(names)
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func (d *Document) schema(names []string) (*jsonschema.Schema, error) {
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	pointer := ""
	for _, name := range names {
		pointer += "/" + escape.Replace(name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.compiled[pointer]; s != nil {
		return s, nil
	}
	s, err := d.compiler.Compile(address + "#" + pointer)
	if err != nil {
		return nil, fmt.Errorf("compiling %s: %w", pointer, err)
	}
	d.compiled[pointer] = s
	return s, nil
}

// Answer holds an answer to what is documented of a route. The path is the
// document's, or one that was asked for.
func (d *Document) Answer(method, path string, code int, content string, body []byte) error {
	pattern := d.pattern(path)
	if method == http.MethodHead {
		method, body = http.MethodGet, nil
	}
	at := []string{"paths", pattern, strings.ToLower(method), "responses", strconv.Itoa(code)}
	if d.At(at...) == nil {
		at[4] = "default"
		if code < 400 {
			return fmt.Errorf("%s %s answered %d, which is not documented", method, path, code)
		}
	}
	content, _, _ = strings.Cut(content, ";")
	if code != http.StatusNoContent && d.At(append(at, "content", content)...) == nil {
		return fmt.Errorf("%s %s answered %d with %q, which is not documented", method, path, code, content)
	}
	at = append(at, "content", content, "schema")
	if d.At(at...) == nil || !strings.HasSuffix(content, "json") || body == nil {
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s %s answered no JSON: %w", method, path, err)
	}
	if err := d.Validate(v, at...); err != nil {
		return fmt.Errorf("%s %s answered otherwise than documented: %w\n%s", method, path, err, body)
	}
	return nil
}

// Event holds an event of a stream to what is documented. seq is 0 for one
// without an id.
func (d *Document) Event(seq int64, name string, data []byte) error {
	whole := map[string]any{"event": name, "data": json.RawMessage(data)}
	if seq > 0 {
		whole["id"] = seq
	}
	b, err := json.Marshal(whole)
	if err != nil {
		return fmt.Errorf("event %d %s: %w", seq, name, err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("event %d %s: %w", seq, name, err)
	}
	at, err := d.kind(name)
	if err != nil {
		return err
	}
	if err := d.Validate(v, at...); err != nil {
		return fmt.Errorf("event %d %s is otherwise than documented: %w\n%s", seq, name, err, b)
	}
	return nil
}

// Kinds are the documented events: their names, and where their schemas stand.
func (d *Document) Kinds() map[string][]string {
	found := map[string][]string{}
	kinds, _ := d.At("components", "schemas", "Event", "anyOf").([]any)
	for _, kind := range kinds {
		m, _ := kind.(map[string]any)
		ref, _ := m["$ref"].(string)
		at := []string{"components", "schemas", strings.TrimPrefix(ref, "#/components/schemas/")}
		name, _ := d.At(append(at, "title")...).(string)
		found[name] = at
	}
	return found
}

func (d *Document) kind(name string) ([]string, error) {
	at := d.Kinds()[name]
	if at == nil {
		return nil, fmt.Errorf("event %q is not documented", name)
	}
	return at, nil
}

// pattern is the documented path that a path asked for is of: the one with the
// fewest variables.
func (d *Document) pattern(path string) string {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	best, fewest := path, len(parts)+1
	paths, _ := d.At("paths").(map[string]any)
	for pattern := range paths {
		other := strings.Split(pattern, "/")
		if len(other) != len(parts) {
			continue
		}
		variables, fits := 0, true
		for i, part := range other {
			if strings.HasPrefix(part, "{") {
				variables++
			} else if part != parts[i] {
				fits = false
			}
		}
		if fits && variables < fewest {
			best, fewest = pattern, variables
		}
	}
	return best
}
