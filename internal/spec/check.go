package spec

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// The patterns below stand in the schema as well: one rule, said once. None of
// the values they let through means anything to a shell or begins with a dash,
// since they end up on command lines.
const (
	namePattern    = `^[^\x00-\x1f\x7f\s]([^\x00-\x1f\x7f]{0,126}[^\x00-\x1f\x7f\s])?$`
	versionPattern = `^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`
	// wordPattern is of providers and models: `anthropic`, `gpt-5:high`,
	// `org/model@2026-01-01`, `sonnet[1m]`.
	wordPattern    = `^[0-9A-Za-z][0-9A-Za-z._:/@+\[\]~-]{0,255}$`
	imagePattern   = `^[0-9A-Za-z][0-9A-Za-z._:/@-]{0,511}$`
	packagePattern = `^[a-z0-9][a-z0-9+.-]*[a-z0-9+.](:[a-z0-9]+(-[a-z0-9]+)*)?(=[0-9A-Za-z][0-9A-Za-z.+~:-]*)?$`
	envNamePattern = `^[A-Za-z_][A-Za-z0-9_]{0,255}$`
	userPattern    = `^([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31})(:([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31}))?$`
	cpuPattern     = `^([0-9]{1,7}m|[0-9]{1,4}(\.[0-9]{1,3})?)$`
	memoryPattern  = `^[0-9]{1,16}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)?$`

	maxRetain  = 100
	maxRetries = 100
	maxFails   = 1000
	maxBudget  = 1_000_000
	maxPath    = 4096
)

var (
	nameRE    = regexp.MustCompile(namePattern)
	versionRE = regexp.MustCompile(versionPattern)
	wordRE    = regexp.MustCompile(wordPattern)
	imageRE   = regexp.MustCompile(imagePattern)
	packageRE = regexp.MustCompile(packagePattern)
	envNameRE = regexp.MustCompile(envNamePattern)
	userRE    = regexp.MustCompile(userPattern)
	cpuRE     = regexp.MustCompile(cpuPattern)
	memoryRE  = regexp.MustCompile(memoryPattern)
)

// interrupts are the values of onInterrupt.
var interrupts = []string{InterruptIdle, InterruptRetry, InterruptRetryAlways}

// failures are the values of onFailure.
var failures = []string{FailureFail, FailureAsk, FailureRetry}

// check finds what is wrong with values of the right type, in the order of the
// fields.
func (f *findings) check(s *Spec) {
	if s.Name != "" {
		f.match("name", s.Name, nameRE, "is not a name: 1 to 128 characters on one line, no space at either end")
	}
	if strings.ContainsAny(s.Title, "\r\n") {
		f.problem("title", "must be one line; description takes more")
	}
	f.checkHarness(s)
	if s.Image != "" {
		f.match("image", s.Image, imageRE, "is not the name of an image")
	}
	for i, p := range s.Packages {
		f.match(index("packages", i), p, packageRE, "is not a Debian package: NAME, NAME:ARCH or NAME=VERSION")
	}
	for i, st := range s.Setup {
		at := index("setup", i)
		if strings.TrimSpace(st.Run) == "" && !f.has(at) && !f.has(at+".run") {
			f.problem(at+".run", "is required")
		}
		f.noNUL(at+".run", st.Run)
		f.place(at+".cwd", st.Cwd)
	}
	f.checkEnv(s.Env)
	if r := s.Resources; r != nil {
		if _, err := parseCPU(r.CPU); r.CPU != "" && err != nil {
			f.problem("resources.cpu", "%v", err)
		}
		if _, err := parseMemory(r.Memory); r.Memory != "" && err != nil {
			f.problem("resources.memory", "%v", err)
		}
	}
	f.place("workdir", s.Workdir)
	if s.User != "" {
		f.match("user", s.User, userRE, "is not a user: NAME or UID, then :GROUP or :GID where wanted")
	}
	if s.Checkpoint != nil {
		f.checkCheckpoint(s.Checkpoint)
	}
	f.oneOf("onInterrupt", s.OnInterrupt, interrupts)
	f.oneOf("onFailure", s.OnFailure, failures)
	f.between("maxRetries", s.MaxRetries, 0, maxRetries)
	f.between("maxConsecutiveFailures", s.MaxFailures, 0, maxFails)
	f.between("spawnDepth", s.SpawnDepth, 0, maxBudget)
	f.between("maxAgents", s.MaxAgents, 0, maxBudget)
}

// oneOf wants one of some values, or none.
func (f *findings) oneOf(path, value string, of []string) {
	if value != "" && !slices.Contains(of, value) {
		f.problem(path, "is %q; must be one of %s", value, strings.Join(of, ", "))
	}
}

func (f *findings) checkHarness(s *Spec) {
	switch {
	case s.Harness == "":
		if !f.has("harness") && !f.has("cli") {
			f.problem("harness", "is required: one of %s", strings.Join(Harnesses, ", "))
		}
	case !slices.Contains(Harnesses, s.Harness):
		f.problem(f.key("harness"), "is %q; must be one of %s", s.Harness, strings.Join(Harnesses, ", "))
	}
	if s.HarnessVersion != "" {
		f.match(f.key("harnessVersion"), s.HarnessVersion, versionRE, "is not an exact version, as 1.6.0")
	}
	if s.Provider != "" {
		f.match("provider", s.Provider, wordRE, "is not the name of a provider")
	}
	if s.Model != "" {
		f.match("model", s.Model, wordRE, "is not the name of a model")
	}
}

func (f *findings) checkEnv(env map[string]string) {
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at := join("env", name)
		switch {
		case !envNameRE.MatchString(name):
			f.problem(at, "is not the name of a variable: letters, digits and _, no digit first")
		case name == "HOME":
			// Checkpoints hold the sandbox's home. A harness that was sent
			// elsewhere would keep its session where none of them looks.
			f.problem(at, "cannot be set: it is the sandbox's to say, and what checkpoints hold")
		}
		f.noNUL(at, env[name])
		if _, problem := split(env[name]); problem != "" {
			f.problem(at, "%s", problem)
		}
	}
}

// unkept are trees that are the kernel's or alineod's, not the agent's.
var unkept = []string{"/proc", "/sys", "/dev", "/run/alineo"}

func (f *findings) checkCheckpoint(c *Checkpoint) {
	for i, p := range c.Paths {
		at := index("checkpoint.paths", i)
		switch {
		case !strings.HasPrefix(p, "/"):
			if !f.has(at) {
				f.problem(at, "must be absolute; the home directory is kept anyway")
			}
		case path.Clean(p) == "/":
			f.problem(at, "cannot be the whole file system")
		case slices.ContainsFunc(unkept, func(dir string) bool {
			return path.Clean(p) == dir || strings.HasPrefix(path.Clean(p), dir+"/")
		}):
			f.problem(at, "lies in %s, which no checkpoint can hold", p)
		default:
			f.place(at, p)
		}
	}
	for i, p := range c.Exclude {
		at := index("checkpoint.exclude", i)
		if f.has(at) {
			continue
		}
		if why := checkPattern(p); why != "" {
			f.problem(at, "%q %s", p, why)
		}
	}
	f.between("checkpoint.retain", c.Retain, 1, maxRetain)
}

// checkPattern says what is wrong with a pattern of what a checkpoint leaves
// out; empty where nothing is. The rules are those of the archive that applies
// it, which a test holds this to: what is accepted here must not fail there,
// after a turn.
func checkPattern(p string) string {
	switch {
	case p == "":
		return "is empty"
	case len(p) > maxPath:
		return "is too long"
	case strings.ContainsRune(p, 0):
		return "contains a NUL character"
	case p[0] == '!':
		return "negates, which is not possible"
	}
	body := strings.TrimPrefix(strings.TrimSuffix(p, "/"), "/")
	for name := range strings.SplitSeq(body, "/") {
		switch name {
		case "":
			return "has an empty name between slashes"
		case ".", "..":
			return "must not contain . or .. as a name"
		case "**":
			continue
		}
		if strings.Contains(name, "**") {
			return "has ** that is not a whole name"
		}
		if _, err := path.Match(name, ""); err != nil {
			return "has an unfinished [ or \\"
		}
	}
	return ""
}

// place checks a path of the sandbox: absolute, or below the home directory.
func (f *findings) place(at, p string) {
	if len(p) > maxPath {
		f.problem(at, "is longer than %d bytes", maxPath)
	}
	f.noNUL(at, p)
	if slices.Contains(strings.Split(p, "/"), "..") {
		f.problem(at, "must not contain ..")
	}
}

func (f *findings) noNUL(at, s string) {
	if strings.ContainsRune(s, 0) {
		f.problem(at, "must not contain a NUL character")
	}
}

func (f *findings) match(at, value string, re *regexp.Regexp, message string) {
	if !f.has(at) && !re.MatchString(value) {
		f.problem(at, "%q %s", value, message)
	}
}

func (f *findings) between(at string, n *int, low, high int) {
	if n != nil && (*n < low || *n > high) {
		f.problem(at, "is %d; must be from %d to %d", *n, low, high)
	}
}
