package api

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/spec"
)

// checker compares a decoded body with the schema of its type and names
// everything that is wrong with it. It knows the keywords that the request
// types use: type, required, additionalProperties, enum, bounds and base64.
// Names are compared exactly, and an absent optional field may be null.
type checker struct {
	registry huma.Registry
	problems []spec.Problem
}

func (c *checker) add(path, format string, args ...any) {
	c.problems = append(c.problems, spec.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (c *checker) check(path string, s *huma.Schema, v any) {
	for s.Ref != "" {
		s = c.registry.SchemaFromRef(s.Ref)
	}
	if s.Type == "" {
		return // raw JSON, passed through
	}
	if !isType(s.Type, v) {
		c.add(path, "must be %s, not %s", article(s.Type), article(typeOf(v)))
		return
	}
	switch v := v.(type) {
	case map[string]any:
		c.object(path, s, v)
	case []any:
		c.length(path, "items", len(v), s.MinItems, s.MaxItems)
		for i, item := range v {
			c.check(fmt.Sprintf("%s[%d]", path, i), s.Items, item)
		}
	case string:
		c.length(path, "characters", utf8.RuneCountInString(v), s.MinLength, s.MaxLength)
		if s.ContentEncoding == "base64" {
			if _, err := base64.StdEncoding.DecodeString(v); err != nil {
				c.add(path, "must be base64")
			}
		}
	case float64:
		if s.Minimum != nil && v < *s.Minimum {
			c.add(path, "must not be less than %v", *s.Minimum)
		}
		if s.Maximum != nil && v > *s.Maximum {
			c.add(path, "must not be more than %v", *s.Maximum)
		}
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		c.add(path, "must be one of %s", oneOf(s.Enum))
	}
}

func (c *checker) object(path string, s *huma.Schema, m map[string]any) {
	for _, name := range s.Required {
		if m[name] == nil {
			c.add(join(path, name), "is required")
		}
	}
	extra, _ := s.AdditionalProperties.(*huma.Schema)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at, value := join(path, name), m[name]
		switch field, known := s.Properties[name]; {
		case known && value != nil:
			c.check(at, field, value)
		case known:
		case extra != nil:
			c.check(at, extra, value)
		default:
			c.add(at, "is not a known field")
		}
	}
}

func (c *checker) length(path, of string, n int, low, high *int) {
	if low != nil && n < *low {
		c.add(path, "must have at least %d %s", *low, of)
	}
	if high != nil && n > *high {
		c.add(path, "must have at most %d %s", *high, of)
	}
}

// isType is written for what encoding/json decodes into any.
func isType(want string, v any) bool {
	got := typeOf(v)
	if want == huma.TypeInteger {
		// Beyond 2^53 a float64 no longer says which integer was written.
		f, ok := v.(float64)
		return ok && f == math.Trunc(f) && math.Abs(f) <= 1<<53
	}
	return got == want
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return huma.TypeBoolean
	case float64:
		return huma.TypeNumber
	case string:
		return huma.TypeString
	case []any:
		return huma.TypeArray
	}
	return huma.TypeObject
}

func article(typ string) string {
	switch typ {
	case "null":
		return typ
	case huma.TypeInteger, huma.TypeArray, huma.TypeObject:
		return "an " + typ
	}
	return "a " + typ
}

func oneOf(values []any) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = fmt.Sprint(v)
	}
	return strings.Join(names, ", ")
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
