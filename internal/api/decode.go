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
	"os"

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
	raw := []byte("{}")
	var inBody string
	if schema != nil {
		var err error
		if raw, err = io.ReadAll(r.Body); err != nil {
			return swarm.Idempotency{}, unread(err)
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
		if k, ok := into.(interface{ key() string }); ok {
			inBody = k.key()
		}
	}
	if !rt.changes {
		return swarm.Idempotency{}, nil
	}
	return idempotency(r, inBody, raw)
}

// unread says why a body could not be read to its end. All but its size is
// the connection's fault or the client's, never the daemon's.
func unread(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return fmt.Errorf("reading the body: %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &problem{status: http.StatusRequestTimeout, Code: "timeout", Message: "the body did not come in time"}
	}
	return invalid("unreadable_body", "reading the body: %v", err)
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

// idempotency takes the key from header or body. The hash is over the body
// without the key, with its names in order, so that neither spacing nor where
// the key stood makes another request of it. Numbers stay as they are written:
// rounded ones would make one request of two. An upload is not hashed: it is
// not at hand yet.
func idempotency(r *http.Request, inBody string, raw []byte) (swarm.Idempotency, error) {
	key := r.Header.Get(keyHeader)
	if inBody != "" {
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
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return swarm.Idempotency{}, mismatch(err)
	}
	delete(fields, keyField)
	canonical, err := json.Marshal(fields)
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
