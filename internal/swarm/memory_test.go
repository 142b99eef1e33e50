package swarm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/swarm"
)

// TestMemory: what an agent remembers outlives the daemon; a child starts with
// a copy of its parent's, and each goes its own way from there.
func TestMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := w.run(tree(1))
	set := func(id, key, value string) error {
		_, err := w.Remember(w.ctx, id, key, json.RawMessage(value), swarm.Idempotency{})
		return err
	}
	get := func(id, key string) string {
		t.Helper()
		m, err := w.Memory(w.ctx, id, key)
		if errors.Is(err, swarm.ErrNotFound) {
			return "-"
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Value)
	}
	for key, value := range map[string]string{"plan": `{"step": 1}`, "ünïcode/with slash": `"x"`, "gone": `null`} {
		if err := set(root, key, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Forget(w.ctx, root, "gone", swarm.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	child := w.mustSpawn(root, "", "")
	if err := set(root, "plan", `{"step": 2}`); err != nil {
		t.Fatal(err)
	}
	if err := set(child, "own", "1"); err != nil {
		t.Fatal(err)
	}
	w.close()
	w.open()
	w.want("parent", get(root, "plan")+get(root, "own")+get(root, "gone"), `{"step":2}--`)
	w.want("child", get(child, "plan")+get(child, "own")+get(child, "ünïcode/with slash"), `{"step":1}1"x"`)
	first, err := w.Memories(w.ctx, child, "", 2)
	if err != nil || len(first.Entries) != 2 || first.Next != "plan" {
		t.Errorf("%+v, %v", first, err)
	}
	second, err := w.Memories(w.ctx, child, first.Next, 2)
	if err != nil || len(second.Entries) != 1 || second.Next != "" {
		t.Errorf("%+v, %v", second, err)
	}

	for what, c := range map[string]struct {
		key, value string
		kind       error
	}{
		"no key":     {"", "1", swarm.ErrInvalid},
		"a long key": {strings.Repeat("ü", swarm.MemoryKey+1), "1", swarm.ErrInvalid},
		"no JSON":    {"k", "{", swarm.ErrInvalid},
		"too large":  {"k", `"` + strings.Repeat("x", swarm.MemoryValue) + `"`, swarm.ErrInvalid},
	} {
		if err := set(root, c.key, c.value); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := set(root, strings.Repeat("ü", swarm.MemoryKey), `"`+strings.Repeat("x", swarm.MemoryValue-2)+`"`); err != nil {
		t.Errorf("the largest: %v", err)
	}
	large := `"` + strings.Repeat("x", swarm.MemoryValue-2) + `"`
	var full error
	for i := 0; full == nil && i < swarm.MemoryKeys; i++ {
		full = set(child, fmt.Sprint("large", i), large)
	}
	var of *swarm.Error
	if !errors.As(full, &of) || of.Code != "memory_full" {
		t.Errorf("a full memory: %v", full)
	}
	if err := set(child, "large0", large); err != nil {
		t.Errorf("in place of one: %v", err)
	}
	idem := swarm.Idempotency{Scope: "s", Key: "k", BodyHash: "h"}
	for range 2 {
		if m, err := w.Remember(w.ctx, root, "once", json.RawMessage("1"), idem); err != nil || string(m.Value) != "1" {
			t.Errorf("%+v, %v", m, err)
		}
	}
}
