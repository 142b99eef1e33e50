package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// MarshalJSON writes the spec with the keys it did not know, in a fixed order:
// equal specs give equal bytes.
func (s Spec) MarshalJSON() ([]byte, error) {
	type plain Spec
	return withExtra(plain(s), s.Extra)
}

// MarshalJSON writes the step with the keys that were not known.
func (s Step) MarshalJSON() ([]byte, error) {
	type plain Step
	return withExtra(plain(s), s.Extra)
}

// MarshalJSON writes the limits with the keys that were not known.
func (r Resources) MarshalJSON() ([]byte, error) {
	type plain Resources
	return withExtra(plain(r), r.Extra)
}

// MarshalJSON writes true or false where nothing more is said.
func (c Checkpoint) MarshalJSON() ([]byte, error) {
	if len(c.Paths) == 0 && len(c.Exclude) == 0 && c.Retain == nil && len(c.Extra) == 0 {
		return json.Marshal(c.Enabled)
	}
	type plain Checkpoint
	return withExtra(plain(c), c.Extra)
}

// withExtra appends the members of extra, sorted, to the object v marshals to.
func withExtra(v any, extra map[string]json.RawMessage) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil || len(extra) == 0 {
		return data, err
	}
	out := bytes.NewBuffer(bytes.TrimSuffix(data, []byte("}")))
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, fmt.Errorf("writing key %q: %w", key, err)
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(extra[key])
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
