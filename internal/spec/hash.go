package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// SetupHash is the name of the setup snapshot this spec needs: 32 hexadecimal
// digits over the harness, its version, the image, the packages and what the
// setup steps run and where. Nothing else: agents that differ in their model or
// their environment share one snapshot, and renaming a step rebuilds nothing.
// The order of packages does not count, the order of steps does.
func (s *Spec) SetupHash() string {
	type step struct{ Run, Cwd string }
	in := struct {
		Version                        int // of this recipe
		Harness, HarnessVersion, Image string
		Packages                       []string
		Steps                          []step
	}{Version: 1, Harness: s.Harness, HarnessVersion: s.HarnessVersion, Image: s.Image}
	in.Packages = slices.Sorted(slices.Values(s.Packages))
	in.Packages = slices.Compact(in.Packages)
	for _, st := range s.Setup {
		in.Steps = append(in.Steps, step{st.Run, st.Cwd})
	}
	data, err := json.Marshal(in)
	if err != nil {
		panic(err) // strings and slices of strings always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
