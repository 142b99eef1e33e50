package registry_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/registry"
)

func TestGet(t *testing.T) {
	t.Parallel()
	for _, name := range registry.Names() {
		h, err := registry.Get(name)
		if err != nil || h.Name() != name {
			t.Errorf("Get(%q): %v, %v", name, h, err)
		}
	}
	_, err := registry.Get("emacs")
	if !errors.Is(err, harness.ErrUnknown) || !strings.Contains(err.Error(), "pi") {
		t.Errorf("Get of an unknown one: %v, want ErrUnknown that names the known", err)
	}
}

// Only what runs no model's code may run where nothing isolates it.
func TestTrusted(t *testing.T) {
	t.Parallel()
	for _, name := range registry.Names() {
		h, err := registry.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if h.Trusted() != (name == "scripted") {
			t.Errorf("%s: trusted %v", name, h.Trusted())
		}
	}
}
