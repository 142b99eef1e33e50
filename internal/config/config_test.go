package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/alineod/alineod/internal/config"
)

const token = "0123456789abcdef"

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "alineod.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

// problems returns the fields of err's problems and their texts.
func problems(t *testing.T, err error) map[string]string {
	t.Helper()
	var e *config.Error
	if !errors.As(err, &e) || !errors.Is(err, config.ErrInvalid) {
		t.Fatalf("err = %v, want a *config.Error of kind ErrInvalid", err)
	}
	out := map[string]string{}
	for _, p := range e.Problems {
		out[p.Field] += p.String()
		if !strings.Contains(err.Error(), p.Field) {
			t.Errorf("the error's text does not name %s", p.Field)
		}
	}
	return out
}

func origin(t *testing.T, c *config.Config, key string) config.Setting {
	t.Helper()
	for _, s := range c.Describe() {
		if s.Key == key {
			return s
		}
	}
	t.Fatalf("Describe does not tell of %s", key)
	return config.Setting{}
}

// TestShippedFileIsTheDefaults holds configs/alineod.yaml to its first line.
func TestShippedFileIsTheDefaults(t *testing.T) {
	t.Parallel()
	const file = "../../configs/alineod.yaml"
	got, err := config.Load(config.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	want, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(values(want), values(got)); diff != "" {
		t.Errorf("(-default +file):\n%s", diff)
	}

	// Each setting stands there, and the lines that are commented out are
	// keys that would be taken as well.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range want.Describe() {
		name := s.Key[strings.LastIndex(s.Key, ".")+1:]
		if !regexp.MustCompile(`(?m)^ *(# )?` + name + `:`).Match(text) {
			t.Errorf("%s does not tell of %s", file, s.Key)
		}
	}
	active := regexp.MustCompile(`(?m)^( *)# ([a-zA-Z]+: (/|unix:|""|127).*|host: .*)$`).ReplaceAll(text, []byte("$1$2"))
	active = regexp.MustCompile(`(?m)^ *tokenFile: .*$`).ReplaceAll(active, nil) // a file of that name is not here
	c, err := config.Load(config.Sources{File: write(t, string(active))})
	if err != nil {
		t.Fatal(err)
	}
	if c.Docker.Host == "" || c.Metrics.Listen == "" || !strings.Contains(origin(t, c, "stateDir").Source, "alineod.yaml:") {
		t.Errorf("the commented values were not taken: %v", c.Describe())
	}
}

func values(c *config.Config) map[string]string {
	out := map[string]string{}
	for _, s := range c.Describe() {
		out[s.Key] = s.Value
	}
	return out
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := write(t, "docker:\n  network: from-file\n  transport: exec\nlog: {level: debug, format: json}\nrecovery:\n  parallelism: 2\n")
	c, err := config.Load(config.Sources{
		File:    file,
		Environ: []string{"ALINEOD_DOCKER_NETWORK=from-env", "ALINEOD_LOG_LEVEL=warn", "ALINEOD_LOCAL_ALLOW_UNSANDBOXED=1", "ALINEOD_RUNTIME="},
		Flags:   flags(t, "--docker-network=from-flag", "--timeouts-stop", "3s"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][2]string{
		"docker.network":         {"from-flag", "flag --docker-network"},
		"log.level":              {"warn", "environment ALINEOD_LOG_LEVEL"},
		"docker.transport":       {"exec", file + ":3"},
		"log.format":             {"json", file + ":4"},
		"recovery.parallelism":   {"2", file + ":6"},
		"timeouts.stop":          {"3s", "flag --timeouts-stop"},
		"local.allowUnsandboxed": {"true", "environment ALINEOD_LOCAL_ALLOW_UNSANDBOXED"},
		"runtime":                {"auto", "default"}, // an empty variable is none
	} {
		if s := origin(t, c, key); s.Value != want[0] || s.Source != want[1] {
			t.Errorf("%s = %q from %q, want %q from %q", key, s.Value, s.Source, want[0], want[1])
		}
	}
	if c.Docker.Network != "from-flag" || c.Timeouts.Stop != 3*time.Second || !c.Local.AllowUnsandboxed || c.Recovery.Parallelism != 2 {
		t.Errorf("the fields do not hold what Describe tells: %+v", c)
	}
}

func TestWhichFile(t *testing.T) {
	t.Parallel()
	a, b, c := write(t, "checkpoints: {retain: 11}"), write(t, "checkpoints: {retain: 12}"), write(t, "checkpoints: {retain: 13}")
	for _, tt := range []struct {
		sources config.Sources
		want    int
	}{
		{config.Sources{File: a}, 11},
		{config.Sources{File: a, Environ: []string{"ALINEOD_CONFIG=" + b}}, 12},
		{config.Sources{Environ: []string{"ALINEOD_CONFIG=" + b}, Flags: flags(t, "--config", c)}, 13},
		{config.Sources{OptionalFile: a}, 11},
		{config.Sources{OptionalFile: a + ".none"}, 3},
		{config.Sources{File: write(t, "# nothing\n")}, 3},
		{config.Sources{File: write(t, "checkpoints:\n")}, 3},
	} {
		got, err := config.Load(tt.sources)
		if err != nil {
			t.Errorf("%+v: %v", tt.sources, err)
			continue
		}
		if got.Checkpoints.Retain != tt.want {
			t.Errorf("%+v: retain %d, want %d", tt.sources, got.Checkpoints.Retain, tt.want)
		}
	}
	if _, err := config.Load(config.Sources{File: a + ".none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is not there: %v, want os.ErrNotExist", err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	file := write(t, `
stateDirr: /x
runtime: kubernetes
docker:
  netwrok: a
  transport: [socket]
  transport: exec
recovery: 7
checkpoints:
  retain: many
timeouts:
  provision: 10
  stop: -1s
local:
  allowUnsandboxed: maybe
zebra: {a: 1}
`)
	_, err := config.Load(config.Sources{
		UID:     1000,
		File:    file,
		Environ: []string{"ALINEOD_LISTN=1", "ALINEOD_RECOVERY_PARALLELISM=x", "ALINEOD_FAILPOINT=a.b", "ALINEOD_TEST_DOCKER=require", "ALINEOD_HOST=x", "ALINEODX=1"},
		Flags:   flags(t, "--log-level=loud", "--listen=0.0.0.0:4600"),
	})
	got := problems(t, err)
	for field, part := range map[string]string{
		"stateDirr":              ":2): is not a setting of alineod; did you mean stateDir?",
		"runtime":                "must be one of auto, docker, local",
		"docker.netwrok":         "did you mean docker.network?",
		"docker.transport":       "must be a single value",
		"recovery":               "must hold keys and values",
		"recovery.parallelism":   `(environment ALINEOD_RECOVERY_PARALLELISM): "x" is not a whole number`,
		"checkpoints.retain":     `"many" is not a whole number`,
		"timeouts.provision":     `"10" is not a duration`,
		"timeouts.stop":          "more than 0",
		"local.allowUnsandboxed": "neither true nor false",
		"zebra":                  "is not a setting of alineod",
		"ALINEOD_LISTN":          "did you mean ALINEOD_LISTEN?",
		"log.level":              `(flag --log-level): is "loud"`,
		"listen":                 "can be reached from other machines",
		"stateDir":               "is required",
	} {
		if !strings.Contains(got[field], part) {
			t.Errorf("%s: %q, want something with %q", field, got[field], part)
		}
		delete(got, field)
	}
	if len(got) > 0 {
		t.Errorf("problems nobody expected: %v", got)
	}
}

func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"a: [":                               "alineod.yaml",
		"- a":                                "must hold keys and values",
		"listen: x\n---\nlisten: y\n":        "more than one document",
		"docker:\n  - a":                     "must hold keys and values",
		"docker:\n  network: {a: 1}":         "must be a single value",
		"auth:\n  readOnlyTokens: [[a]]":     "must be a list of strings",
		"log: &l {level: info}\nmetrics: *l": "must hold keys and values",
	} {
		if _, err := config.Load(config.Sources{File: write(t, text)}); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v, want something with %q", text, err, part)
		}
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args  string
		field string // empty: accepted
	}{
		{"--listen=localhost:0", ""},
		{"--listen=[::1]:4600", ""},
		{"--listen=127.1.2.3:4600", ""},
		{"--listen=4600", "listen"},
		{"--listen=127.0.0.1:99999", "listen"},
		{"--listen=:4600", "listen"},
		{"--listen=myhost:4600", "listen"},
		{"--metrics-listen=0.0.0.0:9100", ""},
		{"--metrics-listen=127.0.0.1:4600", "metrics.listen"},
		{"--state-dir=/", "stateDir"},
		{"--state-dir=/a:b", "stateDir"},
		{"--docker-host=tcp://127.0.0.1:2375", ""},
		{"--docker-host=ssh://a", "docker.host"},
		{"--docker-host=/var/run/docker.sock", "docker.host"},
		{"--docker-network=none", ""},
		{"--docker-network=host", "docker.network"},
		{"--docker-network=container:x", "docker.network"},
		{"--default-image=a b", "defaultImage"},
		{"--checkpoints-retain=0", "checkpoints.retain"},
		{"--recovery-parallelism=257", "recovery.parallelism"},
		{"--admission-parallelism=-1", "admission.parallelism"},
		{"--admission-timeout=0s", "admission.timeout"},
		{"--recovery-orphan-grace=0s", ""},
		{"--recovery-reconcile-every=0s", "recovery.reconcileEvery"},
		{"--timeouts-turn-idle=0", ""},
		{"--timeouts-turn-idle=721h", "timeouts.turnIdle"},
		{"--local-allow-unsandboxed", ""},
		{"--auth-token-file=/does/not/exist", "auth.tokenFile"},
	} {
		_, err := config.Load(config.Sources{UID: 0, Flags: flags(t, tt.args), Environ: []string{"HOME=/root"}})
		if tt.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.args, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s was accepted", tt.args)
		} else if got := problems(t, err); len(got) != 1 || got[tt.field] == "" {
			t.Errorf("%s: problems %v, want one of %s", tt.args, got, tt.field)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{
		Environ: []string{"ALINEOD_AUTH_TOKEN_FILE=" + file, "ALINEOD_AUTH_READ_ONLY_TOKENS=look-look-look-look, see-see-see-see-see"},
		Flags:   flags(t, "--listen=0.0.0.0:4600", "--docker-network=host"),
	})
	if err != nil {
		t.Fatalf("a reachable address with a token: %v", err)
	}
	if diff := cmp.Diff([]string{token, "look-look-look-look", "see-see-see-see-see"}, c.Secrets()); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	for _, s := range c.Describe() {
		if strings.Contains(s.Value, token) || strings.Contains(s.Value, "look-look") {
			t.Errorf("%s shows a secret: %s", s.Key, s.Value)
		}
	}
	if s := origin(t, c, "auth.token"); s.Value == "" || s.Source != "file "+file {
		t.Errorf("auth.token is %q from %q, want it masked, from the file", s.Value, s.Source)
	}

	for name, environ := range map[string][]string{
		"both":           {"ALINEOD_AUTH_TOKEN=" + token, "ALINEOD_AUTH_TOKEN_FILE=" + file},
		"short":          {"ALINEOD_AUTH_TOKEN=s3cret-word"},
		"spaces":         {"ALINEOD_AUTH_TOKEN=s3cret word s3cret word"},
		"only read-only": {"ALINEOD_AUTH_READ_ONLY_TOKENS=" + token},
		"the same":       {"ALINEOD_AUTH_TOKEN=" + token, "ALINEOD_AUTH_READ_ONLY_TOKENS=" + token},
	} {
		_, err := config.Load(config.Sources{Environ: environ})
		if !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		} else if strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
	}
	if f := flags(t); f.Lookup("auth-token") != nil || f.Lookup("auth-token-file") == nil {
		t.Error("a token must not be given on a command line, its file may be")
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		uid     int
		environ []string
		state   string
	}{
		{0, []string{"HOME=/root", "XDG_STATE_HOME=/x"}, "/var/lib/alineod"},
		{1000, []string{"HOME=/home/u"}, "/home/u/.local/state/alineod"},
		{1000, []string{"HOME=/home/u", "XDG_STATE_HOME=/x"}, "/x/alineod"},
		{1000, []string{"HOME=/home/u", "XDG_STATE_HOME=rel"}, "/home/u/.local/state/alineod"},
		{1000, []string{"HOME=/home/u", "ALINEOD_STATE_DIR=/s"}, "/s"},
	} {
		c, err := config.Load(config.Sources{UID: tt.uid, Environ: tt.environ})
		if err != nil {
			t.Errorf("%v: %v", tt.environ, err)
			continue
		}
		if c.StateDir != tt.state || c.Socket != tt.state+"/alineod.sock" {
			t.Errorf("uid %d, %v: state %s, socket %s; want %s", tt.uid, tt.environ, c.StateDir, c.Socket, tt.state)
		}
	}
	c, err := config.Load(config.Sources{Environ: []string{"DOCKER_HOST=unix:///d.sock"}, Flags: flags(t, "--state-dir=some/where")})
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(c.StateDir) || !strings.HasSuffix(c.StateDir, "/some/where") {
		t.Errorf("state directory %s, want an absolute one", c.StateDir)
	}
	if s := origin(t, c, "docker.host"); s.Value != "unix:///d.sock" || s.Source != "environment DOCKER_HOST" {
		t.Errorf("docker.host is %q from %q", s.Value, s.Source)
	}
}

func TestValidateAlone(t *testing.T) {
	t.Parallel()
	c := config.Default(0, func(string) string { return "" })
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	c.Runtime, c.Checkpoints.Retain = "x", -1
	if got := problems(t, c.Validate()); len(got) != 2 {
		t.Errorf("problems %v, want runtime and checkpoints.retain", got)
	}
}
