package swarm

import (
	"slices"
	"testing"
)

// TestAllowed: the table names only states there are, nothing leads out of the
// final ones, and every other agent can be stopped.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for action, states := range allowed {
		for _, s := range states {
			if !slices.Contains(States(), s) {
				t.Errorf("%s is allowed in %q, which is no state", action, s)
			}
			if isFinal(s) {
				t.Errorf("%s is allowed in %s, which is final", action, s)
			}
		}
	}
	for _, s := range States() {
		if may(actStop, s) == isFinal(s) {
			t.Errorf("stop while %s: %v", s, may(actStop, s))
		}
		if may(actRevive, s) && may(actPrompt, s) {
			t.Errorf("%s takes prompts and needs reviving", s)
		}
	}
}
