package spec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/invopop/jsonschema"
)

// SchemaID names the schema. It is a name, not an address to fetch.
const SchemaID = "urn:alineod:spec"

// Schema returns the JSON Schema (2020-12) of a spec, generated from the types
// of this package. It knows the alternatives: checkpoint is a boolean or an
// object, cli and cliVersion are older names. What it cannot say, Parse still
// refuses: two names for different harnesses, amounts out of range, reserved
// variables.
func Schema() []byte { return schema() }

var schema = sync.OnceValue(func() []byte {
	r := jsonschema.Reflector{
		Anonymous:                 true,
		DoNotReference:            true,
		AllowAdditionalProperties: true, // unknown keys are kept
	}
	s := r.Reflect(Spec{})
	s.ID = SchemaID
	s.Title = "alineod agent spec"
	shape(s)
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("writing the schema of a spec: %v", err)) // a fault of this package
	}
	return append(data, '\n')
})

// shape adds what the types do not say: patterns, bounds, alternatives.
func shape(s *jsonschema.Schema) {
	prop(s, "name").Pattern = orEmpty(namePattern)
	prop(s, "title").Pattern = `^[^\r\n]*$`
	s.Properties.Set("metadata", &jsonschema.Schema{
		Type:        "object",
		Description: "Any object; alineod keeps it and does not look at it.",
	})

	names := make([]any, len(Harnesses))
	for i, h := range Harnesses {
		names[i] = h
	}
	prop(s, "harness").Enum = names
	prop(s, "harnessVersion").Pattern = orEmpty(versionPattern)
	alias(s, "harness", "cli")
	alias(s, "harnessVersion", "cliVersion")
	s.Required = nil
	s.AnyOf = []*jsonschema.Schema{{Required: []string{"harness"}}, {Required: []string{"cli"}}}

	prop(s, "provider").Pattern = orEmpty(wordPattern)
	prop(s, "model").Pattern = orEmpty(wordPattern)
	prop(s, "image").Pattern = orEmpty(imagePattern)
	prop(s, "packages").Items.Pattern = packagePattern
	prop(s, "user").Pattern = orEmpty(userPattern)
	prop(s, "workdir").Not = dots()

	step := prop(s, "setup").Items
	prop(step, "run").Pattern = `\S`
	prop(step, "cwd").Not = dots()

	env := prop(s, "env")
	env.PropertyNames = &jsonschema.Schema{
		Pattern: envNamePattern,
		Not:     &jsonschema.Schema{Const: "HOME"},
	}

	limits := prop(s, "resources")
	prop(limits, "cpu").Pattern = orEmpty(cpuPattern)
	prop(limits, "memory").Pattern = orEmpty(memoryPattern)

	shapeCheckpoint(s)

	for name, of := range map[string][]string{"onInterrupt": interrupts, "onFailure": failures} {
		values := []any{""}
		for _, v := range of {
			values = append(values, v)
		}
		prop(s, name).Enum = values
	}
	bound(prop(s, "maxConsecutiveFailures"), 0, maxFails)
	bound(prop(s, "maxRetries"), 0, maxRetries)
	bound(prop(s, "spawnDepth"), 0, maxBudget)
	bound(prop(s, "maxAgents"), 0, maxBudget)
}

func shapeCheckpoint(s *jsonschema.Schema) {
	object := *prop(s, "checkpoint")
	description := object.Description
	object.Description = ""
	object.Required = nil
	paths := prop(&object, "paths").Items
	paths.Pattern = `^/+[^/]`
	paths.Not = dots()
	exclude := prop(&object, "exclude").Items
	exclude.Pattern = `.`
	exclude.Not = dots()
	bound(prop(&object, "retain"), 1, maxRetain)
	s.Properties.Set("checkpoint", &jsonschema.Schema{
		Description: description,
		OneOf:       []*jsonschema.Schema{{Type: "boolean"}, &object},
	})
}

// prop finds a property the types are known to have.
func prop(s *jsonschema.Schema, name string) *jsonschema.Schema {
	p, ok := s.Properties.Get(name)
	if !ok {
		panic("spec has no property " + name)
	}
	return p
}

// alias adds an older name of a property.
func alias(s *jsonschema.Schema, name, old string) {
	p := *prop(s, name)
	p.Description = "An older name of " + name + "."
	s.Properties.Set(old, &p)
}

func bound(s *jsonschema.Schema, low, high int) {
	s.Minimum = json.Number(strconv.Itoa(low))
	s.Maximum = json.Number(strconv.Itoa(high))
}

// orEmpty lets the empty string through, which is a field that was not given.
func orEmpty(pattern string) string { return "^$|" + pattern }

// dots refuses a path with an element that leads upward.
func dots() *jsonschema.Schema { return &jsonschema.Schema{Pattern: `(^|/)\.\.(/|$)`} }
