// Package registry knows all harnesses by name.
package registry

import (
	"fmt"
	"strings"

	"github.com/alineod/alineod/internal/harness"
	"github.com/alineod/alineod/internal/harness/pi"
	"github.com/alineod/alineod/internal/harness/scripted"
)

// all is in the order in which they are offered.
var all = []harness.Harness{pi.Harness{}, scripted.Harness{}}

// Get returns the harness of that name, or harness.ErrUnknown. It is safe for
// concurrent use.
func Get(name string) (harness.Harness, error) {
	for _, h := range all {
		if h.Name() == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("%w %q: known are %s", harness.ErrUnknown, name, strings.Join(Names(), ", "))
}

// Names lists the names Get knows.
func Names() []string {
	names := make([]string, len(all))
	for i, h := range all {
		names[i] = h.Name()
	}
	return names
}
