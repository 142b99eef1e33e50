package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// prepared is an entry with its JSON made, by the caller's goroutine.
type prepared struct {
	Event
	size int
}

func prepare(en Entry) (prepared, error) {
	if en.Event == "" {
		return prepared{}, fmt.Errorf("entry without an event name: %w", ErrInvalid)
	}
	payload, err := object(en.Payload)
	if err != nil {
		return prepared{}, fmt.Errorf("%s: payload: %w", en.Event, err)
	}
	if payload == nil {
		payload = json.RawMessage("{}")
	}
	if en.By != "" {
		by, err := json.Marshal(en.By)
		if err != nil {
			return prepared{}, fmt.Errorf("%s: by: %w: %w", en.Event, err, ErrInvalid)
		}
		sep := ","
		if string(payload) == "{}" {
			sep = ""
		}
		payload = json.RawMessage(string(payload[:len(payload)-1]) + sep + `"by":` + string(by) + "}")
	}
	body, err := object(en.Body)
	if err != nil {
		return prepared{}, fmt.Errorf("%s: body: %w", en.Event, err)
	}
	return prepared{
		Event: Event{RunID: en.RunID, AgentID: en.AgentID, SandboxID: en.SandboxID, TurnID: en.TurnID,
			Event: en.Event, Payload: payload, Body: body},
		size: len(payload) + len(body),
	}, nil
}

// object marshals v, which must come out as a JSON object; nil for nothing.
func object(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%v: %w", err, ErrInvalid)
	case bytes.Equal(b, []byte("null")):
		return nil, nil
	case b[0] != '{':
		return nil, fmt.Errorf("no JSON object: %w", ErrInvalid)
	case len(b) > MaxEntryBytes:
		return nil, fmt.Errorf("%d bytes, at most %d: %w", len(b), MaxEntryBytes, ErrInvalid)
	}
	return b, nil
}

// Data is what a client of the API sees of the event: payload and body merged
// into one JSON object, a key of the body before one of the payload, and the
// identifiers of agent, run, sandbox and turn where they are set and not in it.
// A part that cannot be read is left out.
func (e Event) Data() json.RawMessage {
	all := map[string]json.RawMessage{}
	for _, part := range [2]json.RawMessage{e.Payload, e.Body} {
		if len(part) == 0 {
			continue
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(part, &m) != nil {
			continue
		}
		for k, v := range m {
			all[k] = v
		}
	}
	for _, id := range [4][2]string{{"agentId", e.AgentID}, {"runId", e.RunID}, {"sandboxId", e.SandboxID}, {"turnId", e.TurnID}} {
		if _, there := all[id[0]]; there || id[1] == "" {
			continue
		}
		b, err := json.Marshal(id[1])
		if err != nil {
			continue
		}
		all[id[0]] = b
	}
	if _, there := all["ts"]; !there && e.TS != 0 {
		all["ts"] = json.RawMessage(strconv.FormatInt(e.TS, 10))
	}
	b, err := json.Marshal(all)
	if err != nil {
		// Its parts were all read as JSON just before.
		return json.RawMessage("{}")
	}
	return b
}
