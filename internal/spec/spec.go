// Package spec is what an agent is to be, as its author writes it: one JSON
// object that names the harness, the model, what is installed, which limits
// hold and what is kept.
//
// Parse reads one and answers with everything that is wrong in it at once,
// each problem with the path of the field. A key it does not know is kept,
// comes out of MarshalJSON again, and is a warning and not a problem: a spec
// written for a newer alineod still runs.
//
// The package imports nothing of the rest. In particular it does not know the
// harnesses themselves, only their names; see Harnesses.
package spec

import "encoding/json"

// Harnesses are the names a spec may ask for, in alphabetical order; not to be
// changed while the program runs. Who adds a harness to internal/harness adds
// its name here; the schema and the messages follow.
var Harnesses = []string{"pi", "scripted"}

const (
	// MaxBytes bounds a spec's JSON.
	MaxBytes = 1 << 20
	// DefaultMaxRetries is how often a turn is sent again where onInterrupt
	// asks for retries and maxRetries is not given.
	DefaultMaxRetries = 3
	// DefaultMaxFailures is after how many failed turns in a row an agent is
	// blocked where maxConsecutiveFailures is not given.
	DefaultMaxFailures = 3
)

// What becomes of a turn that a crash interrupted: OnInterrupt.
const (
	// InterruptIdle, the default: the agent comes back idle, and a person or
	// a program decides whether the prompt is sent again.
	InterruptIdle = "idle"
	// InterruptRetry: the prompt is sent again, unless a tool call was in
	// flight, for that one may have done its work already.
	InterruptRetry = "retry"
	// InterruptRetryAlways: the prompt is sent again whatever was in flight.
	InterruptRetryAlways = "retry-always"
)

// What becomes of an agent whose turn has failed: OnFailure.
const (
	// FailureFail, the default: the agent takes the next prompt.
	FailureFail = "fail"
	// FailureAsk: it takes none until a person lets it go on.
	FailureAsk = "ask"
	// FailureRetry: the prompt is sent again.
	FailureRetry = "retry"
)

// Spec is what one agent is to be. The zero value of an optional field means
// that it was not given. A Spec that came from Parse is valid and is not
// changed by its methods, so it may be read from many goroutines.
type Spec struct {
	Schema      string          `json:"$schema,omitempty" jsonschema_description:"The address of the schema this spec is written against; editors use it."`
	Name        string          `json:"name" jsonschema_description:"What the agent is called in lists and logs. Default: the harness's name."`
	Title       string          `json:"title,omitempty" jsonschema_description:"One line for people."`
	Description string          `json:"description,omitempty" jsonschema_description:"Any text for people."`
	Metadata    json.RawMessage `json:"metadata,omitempty"`

	Harness        string `json:"harness" jsonschema_description:"The coding-agent CLI. Also accepted as cli."`
	HarnessVersion string `json:"harnessVersion,omitempty" jsonschema_description:"The exact version to install; default: the one this alineod was tested with. Also accepted as cliVersion."`
	Provider       string `json:"provider,omitempty" jsonschema_description:"The model's provider, in the harness's own words."`
	Model          string `json:"model,omitempty" jsonschema_description:"The model, in the harness's own words."`

	Image    string   `json:"image,omitempty" jsonschema_description:"The image the sandbox starts from. Default: the daemon's defaultImage."`
	Packages []string `json:"packages,omitempty" jsonschema_description:"Debian packages to install: NAME, NAME:ARCH or NAME=VERSION."`
	Setup    []Step   `json:"setup,omitempty" jsonschema_description:"Commands run once, after the packages, when the setup snapshot is made."`

	Env       map[string]string `json:"env,omitempty" jsonschema_description:"The harness's environment. ${NAME} stands for a variable of the daemon's environment, $$ for one dollar sign. Secrets belong in ${NAME}: the spec itself is stored."`
	Resources *Resources        `json:"resources,omitempty" jsonschema_description:"Limits; none where not given."`
	Workdir   string            `json:"workdir,omitempty" jsonschema_description:"Where the harness starts: absolute, or below the home directory. Default: the home directory."`
	User      string            `json:"user,omitempty" jsonschema_description:"Who the harness runs as: NAME or UID, with :GROUP or :GID where wanted. Default: the image's user."`

	Checkpoint  *Checkpoint `json:"checkpoint,omitempty" jsonschema_description:"Keep the home directory after each turn that ended well."`
	OnInterrupt string      `json:"onInterrupt,omitempty" jsonschema_description:"What becomes of a turn that a crash interrupted. Default: idle."`
	OnFailure   string      `json:"onFailure,omitempty" jsonschema_description:"What becomes of an agent whose turn has failed. Default: fail."`
	MaxRetries  *int        `json:"maxRetries,omitempty" jsonschema_description:"How often one turn is sent again. Default: 3."`
	MaxFailures *int        `json:"maxConsecutiveFailures,omitempty" jsonschema_description:"After how many failed turns in a row the agent waits for a person; 0: never. Default: 3."`

	SpawnDepth *int `json:"spawnDepth,omitempty" jsonschema_description:"How many levels of agents may be spawned below this one. Not given: none."`
	MaxAgents  *int `json:"maxAgents,omitempty" jsonschema_description:"How many agents may live below this one. Not given: no ceiling."`

	// Extra holds the keys this version does not know, as they were.
	Extra map[string]json.RawMessage `json:"-"`
}

// Step is one command of the setup.
type Step struct {
	// Name is for people. Parse fills in "step N" where none is given.
	Name string `json:"name,omitempty" jsonschema_description:"What the step is called in a diagnosis. Default: step N."`
	// Run is a shell script.
	Run string `json:"run" jsonschema_description:"A shell script."`
	// Cwd is absolute or below the home directory; empty: the home directory.
	Cwd string `json:"cwd,omitempty" jsonschema_description:"Where it runs: absolute, or below the home directory. Default: the home directory."`

	Extra map[string]json.RawMessage `json:"-"`
}

// Resources are a sandbox's limits, as Kubernetes writes them.
type Resources struct {
	CPU    string `json:"cpu,omitempty" jsonschema_description:"Cores: 500m, 2 or 1.5."`
	Memory string `json:"memory,omitempty" jsonschema_description:"Bytes: 512Mi, 2Gi, 1G or a plain number; at least 6Mi."`

	Extra map[string]json.RawMessage `json:"-"`
}

// Checkpoint says whether the home directory is kept after each turn, and what
// goes with it. In JSON it is an object or just true or false.
type Checkpoint struct {
	Enabled bool     `json:"enabled" jsonschema_description:"Default: true."`
	Paths   []string `json:"paths,omitempty" jsonschema_description:"Absolute paths outside the home directory that are kept as well."`
	Exclude []string `json:"exclude,omitempty" jsonschema_description:"Patterns of what is left out: a name at any depth, or a path below the home directory."`
	// Retain is how many are kept per sandbox; nil: the daemon's setting.
	Retain *int `json:"retain,omitempty" jsonschema_description:"How many are kept per sandbox. Default: the daemon's checkpoints.retain."`

	Extra map[string]json.RawMessage `json:"-"`
}

// Checkpointing says whether the agent's home is kept after each turn.
func (s *Spec) Checkpointing() bool { return s.Checkpoint != nil && s.Checkpoint.Enabled }

// Retain is how many checkpoints are kept per sandbox; def where the spec does
// not say.
func (s *Spec) Retain(def int) int {
	if s.Checkpoint == nil || s.Checkpoint.Retain == nil {
		return def
	}
	return *s.Checkpoint.Retain
}

// Interrupt is OnInterrupt with its default filled in.
func (s *Spec) Interrupt() string {
	if s.OnInterrupt == "" {
		return InterruptIdle
	}
	return s.OnInterrupt
}

// Retries is how often one interrupted turn may be sent again: 0 unless
// OnInterrupt asks for it.
func (s *Spec) Retries() int {
	if s.Interrupt() == InterruptIdle {
		return 0
	}
	return orInt(s.MaxRetries, DefaultMaxRetries)
}

// FailureRetries is how often one failed turn may be sent again: 0 unless
// OnFailure asks for it.
func (s *Spec) FailureRetries() int {
	if s.OnFailure != FailureRetry {
		return 0
	}
	return orInt(s.MaxRetries, DefaultMaxRetries)
}

// Breaks reports whether an agent is blocked after so many failed turns in a
// row.
func (s *Spec) Breaks(failures int) bool {
	most := orInt(s.MaxFailures, DefaultMaxFailures)
	return most > 0 && failures >= most
}

func orInt(n *int, def int) int {
	if n == nil {
		return def
	}
	return *n
}

// WithDefaults returns a copy in which an image and a harness version that the
// spec leaves open are those given. It shares everything else with s. Take the
// SetupHash of the copy: else a new default would go unnoticed by snapshots
// that were made with the old one.
func (s *Spec) WithDefaults(image, harnessVersion string) *Spec {
	c := *s
	if c.Image == "" {
		c.Image = image
	}
	if c.HarnessVersion == "" {
		c.HarnessVersion = harnessVersion
	}
	return &c
}
