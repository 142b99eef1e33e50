package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// reflected redacts a value that the encoder would marshal by reflection: it
// is marshalled, read back and searched. Numbers keep their digits.
func (c *redactingCore) reflected(v any) any {
	switch v := v.(type) {
	case time.Time, time.Duration:
		return v
	case fmt.Stringer:
		return c.redactor.String(v.String())
	}
	data, err := json.Marshal(v)
	if err != nil {
		return c.redactor.String(fmt.Sprintf("%+v", v))
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var plain any
	if err := dec.Decode(&plain); err != nil {
		return c.redactor.String(string(data))
	}
	return c.numbers(plain)
}

// numbers is value for what encoding/json read.
func (c *redactingCore) numbers(v any) any {
	if n, ok := v.(json.Number); ok {
		return json.RawMessage(n)
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[c.redactor.String(key)] = c.numbers(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = c.numbers(item)
		}
		return out
	}
	return c.value(v)
}
