package spec_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/spec"
)

// The package imports nothing of the rest, so what it repeats of the rest is
// compared here.

func TestHarnessesAreThoseThereAre(t *testing.T) {
	t.Parallel()
	names := slices.Clone(registry.Names())
	slices.Sort(names)
	if diff := cmp.Diff(names, spec.Harnesses); diff != "" {
		t.Errorf("spec.Harnesses (-registry +spec):\n%s", diff)
	}
}

func TestPatternsAreThoseOfTheArchive(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		"node_modules", "work/build", "/tmp", "bin/", "work/**/target", "**", "*.log", "[a-z]x", `\!x`, "a b", "ü*", "...", "a.",
		"", "/", "//", "a//b", ".", "..", "a/../b", "./a", "!a", "a**", "**a/b", "[", `a\`, "a\x00b",
	} {
		doc, err := json.Marshal(map[string]any{"harness": "pi", "checkpoint": map[string]any{"exclude": []string{p}}})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = spec.Parse(doc)
		if want := archive.ValidatePattern(p); (err == nil) != (want == nil) {
			t.Errorf("%q: Parse says %v, the archive %v", p, err, want)
		}
	}
}
