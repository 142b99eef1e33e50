package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/swarm"
)

const (
	keyHeader = "Idempotency-Key"
	keyField  = "idempotencyKey"
	keyLimit  = 255
)

// decode reads a JSON body into the value that into points to, after naming
// everything in it that its schema does not have. No body is the empty object.
// A nil schema is a route without a body; what is sent to it is not read.
func decode(registry huma.Registry, schema *huma.Schema, rt route, r *http.Request, into any) (swarm.Idempotency, error) {
	var fields map[string]any
	if schema != nil {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return swarm.Idempotency{}, fmt.Errorf("reading the body: %w", err)
		}
		if len(bytes.TrimSpace(raw)) == 0 {
			raw = []byte("{}")
		}
		if err := check(registry, schema, raw); err != nil {
			return swarm.Idempotency{}, err
		}
		if err := json.Unmarshal(raw, into); err != nil {
			// The schema comes from the type that is decoded into: what passed
			// one and not the other is a number too large for its field.
			return swarm.Idempotency{}, mismatch(err)
		}
		if fields, err = object(raw); err != nil {
			return swarm.Idempotency{}, mismatch(err)
		}
	}
	if !rt.changes {
		return swarm.Idempotency{}, nil
	}
	return idempotency(r, fields)
}

func check(registry huma.Registry, schema *huma.Schema, raw []byte) error {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return mismatch(err)
	}
	c := checker{registry: registry}
	c.check("", schema, v)
	if len(c.problems) == 0 {
		return nil
	}
	p := invalid("invalid_body", "%s", c.problems[0])
	if n := len(c.problems); n > 1 {
		p.Message = fmt.Sprintf("%s, and %d more", p.Message, n-1)
	}
	p.Fields = c.problems
	return p
}

func mismatch(err error) *problem {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return invalid("malformed_json", "the body is not JSON: %v, at byte %d", err, syntax.Offset)
	case errors.As(err, &typ) && typ.Field != "":
		c := checker{}
		c.add(typ.Field, "must be %s, not %s", typ.Type, typ.Value)
		p := invalid("invalid_body", "%s", c.problems[0])
		p.Fields = c.problems
		return p
	}
	return invalid("malformed_json", "the body is not JSON: %v", err)
}

// object decodes with numbers as they are written: a hash over rounded ones
// would take two bodies for one.
func object(raw []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var m map[string]any
	err := d.Decode(&m)
	return m, err
}

// idempotency takes the key from header or body. The hash is over the body
// without the key, with its names in order, so that neither spacing nor where
// the key stood makes another request of it.
func idempotency(r *http.Request, fields map[string]any) (swarm.Idempotency, error) {
	key := r.Header.Get(keyHeader)
	if inBody, _ := fields[keyField].(string); inBody != "" {
		if key != "" && key != inBody {
			return swarm.Idempotency{}, invalid("invalid_key", "the header %s and the field %s differ", keyHeader, keyField)
		}
		key = inBody
	}
	if key == "" {
		return swarm.Idempotency{}, nil
	}
	if len(key) > keyLimit {
		return swarm.Idempotency{}, invalid("invalid_key", "an idempotency key has at most %d bytes", keyLimit)
	}
	rest := make(map[string]any, len(fields))
	for name, value := range fields {
		if name != keyField {
			rest[name] = value
		}
	}
	canonical, err := json.Marshal(rest)
	if err != nil {
		return swarm.Idempotency{}, fmt.Errorf("hashing the body: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return swarm.Idempotency{
		Scope:    r.Method + " " + r.URL.Path,
		Key:      key,
		BodyHash: hex.EncodeToString(sum[:]),
	}, nil
}
