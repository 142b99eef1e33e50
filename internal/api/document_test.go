package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/ledger"
)

// TestExamples holds every example of the document to its schema, and demands
// one of every body and answer in JSON.
func TestExamples(t *testing.T) {
	t.Parallel()
	var calls []any
	h := newHandler(t, options(working(&calls)))
	doc := document(t, h)
	var examples int
	try := func(at ...string) {
		t.Helper()
		if doc.At(append(at, "schema")...) == nil {
			return
		}
		example := doc.At(append(at, "example")...)
		if example == nil {
			t.Errorf("no example at %s", strings.Join(at, " "))
			return
		}
		examples++
		if err := doc.Validate(example, append(at, "schema")...); err != nil {
			t.Errorf("example at %s: %v", strings.Join(at, " "), err)
		}
	}
	for _, route := range doc.Routes() {
		method, path, _ := strings.Cut(route, " ")
		at := []string{"paths", path, strings.ToLower(method)}
		try(append(slices.Clone(at), "requestBody", "content", "application/json")...)
		codes, _ := doc.At(append(slices.Clone(at), "responses")...).(map[string]any)
		success := 0
		for code := range codes {
			content := append(slices.Clone(at), "responses", code, "content", "application/json")
			if code == "default" || doc.At(append(content, "example")...) == nil && len(codes) > 2 {
				continue // one of several good answers has it
			}
			success++
			try(content...)
		}
		if success == 0 {
			t.Errorf("%s has no answer with an example", route)
		}
	}
	if examples < 60 {
		t.Errorf("%d examples, which can not be all", examples)
	}
}

// TestCatalog: every public event of the ledger is documented, with an example
// that fits, and no other is.
func TestCatalog(t *testing.T) {
	t.Parallel()
	var calls []any
	doc := document(t, newHandler(t, options(working(&calls))))
	file, err := parser.ParseFile(token.NewFileSet(), "../ledger/events.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	public := map[string]bool{"message.updated": true, "tool.updated": true, "queue.updated": true}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		if name, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(name, ".") && ledger.Public(name) {
			public[name] = true
		}
		return true
	})
	kinds := doc.Kinds()
	if len(kinds) != len(public) {
		t.Errorf("%d events are documented, there are %d", len(kinds), len(public))
	}
	for name, at := range kinds {
		if !public[name] {
			t.Errorf("%q is documented and no event", name)
		}
		examples, _ := doc.At(append(at, "examples")...).([]any)
		if len(examples) != 1 {
			t.Errorf("%s has %d examples", name, len(examples))
			continue
		}
		if err := doc.Validate(examples[0], "components", "schemas", "Event"); err != nil {
			t.Errorf("example of %s: %v", name, err)
		}
	}
	for _, wrong := range []struct {
		seq        int64
		name, data string
	}{
		{0, "turn.started", `{"turn":1}`}, // without an id
		{1, "turn.started", `{"turn":"1"}`},
		{1, "agent.unheard_of", `{}`},
	} {
		if doc.Event(wrong.seq, wrong.name, []byte(wrong.data)) == nil {
			t.Errorf("%v passes", wrong)
		}
	}
}
