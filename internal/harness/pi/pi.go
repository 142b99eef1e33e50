// Package pi drives Pi (npm package @earendil-works/pi-coding-agent) in its
// RPC mode: JSON lines on stdin and stdout, split on LF only.
//
// What decides how a turn ended is the last assistant message: Pi answers a
// prompt with success in all cases but those it refuses before it asks the
// model. A turn is over with agent_settled, not with agent_end: retries,
// compaction and queued messages may follow the latter.
package pi

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/alineod/alineod/internal/harness"
)

// Name is the harness's name in specs.
const Name = "pi"

// DefaultVersion is installed where a spec names none. The formats read here
// moved between releases, so it is pinned.
const DefaultVersion = "1.6.0"

const npmPackage = "@earendil-works/pi-coding-agent"

// Harness implements harness.Harness.
type Harness struct{}

var _ harness.Harness = Harness{}

// Name returns "pi".
func (Harness) Name() string { return Name }

// Trusted reports false: Pi does what a model says.
func (Harness) Trusted() bool { return false }

// plainVersion is what may stand in a shell command unquoted.
var plainVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,63}$`)

// Setup checks for node 22.19 or newer and installs Pi. With an empty version
// any Pi that is there already is kept; else DefaultVersion is installed. A
// version that is none makes a step that fails and says so.
func (Harness) Setup(version string) []harness.SetupStep {
	check := "pi --version >/dev/null 2>&1"
	want := DefaultVersion
	if version != "" {
		want = version
		// An image may print warnings around the version: it has to be a whole line.
		check = `pi --version 2>/dev/null | grep -qxF '` + version + `'`
	}
	install := harness.SetupStep{
		Name:  "pi",
		Check: check,
		// Scripts of packages are not run: none builds what Pi needs here.
		Run: "npm install -g --ignore-scripts --no-audit --no-fund " + npmPackage + "@" + want,
	}
	if !plainVersion.MatchString(want) {
		install.Check = "false"
		install.Run = "echo 'harnessVersion is not a version' >&2; exit 1"
	}
	return []harness.SetupStep{
		{
			Name: "node",
			Check: `node -e 'const [a, b] = process.versions.node.split(".").map(Number);` +
				` process.exit(a > 22 || (a === 22 && b >= 19) ? 0 : 1)'`,
			Run: `echo "Pi needs node 22.19 or newer; found: $(node --version 2>&1 || true)" >&2; exit 1`,
		},
		install,
	}
}

// Launch starts RPC mode. Provider is only understood together with Model.
//
// A known session is opened with --session-id, not --session: Pi writes a
// session's file at its first assistant message, so one that was killed before
// that has none yet, and --session would refuse it for ever. The price is that
// a file which is gone gives a blank session of the same id, which
// session.started tells: no messages, not continued.
func (Harness) Launch(l harness.Launch) (harness.Command, error) {
	if l.Provider != "" && l.Model == "" {
		return harness.Command{}, errors.New("launching Pi: a provider needs a model")
	}
	args := []string{"pi", "--mode", "rpc"}
	switch {
	case l.SessionID != "" && l.Continue:
		if !plainVersion.MatchString(l.SessionID) {
			return harness.Command{}, fmt.Errorf("launching Pi: %q is no session id", l.SessionID)
		}
		args = append(args, "--session-id", l.SessionID)
	case l.Continue:
		args = append(args, "--continue")
	}
	if l.Provider != "" {
		args = append(args, "--provider", l.Provider)
	}
	if l.Model != "" {
		args = append(args, "--model", l.Model)
	}
	return harness.Command{Args: args, Env: map[string]string{"PI_TELEMETRY": "0"}}, nil
}

// NewProtocol makes the state machine of one process.
func (Harness) NewProtocol(l harness.Launch) harness.Protocol {
	return &protocol{
		launch: l,
		status: harness.Status{State: harness.StateStarting},
		orders: map[string]string{},
		asks:   map[string]ask{},
	}
}
