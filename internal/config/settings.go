package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// setting is one row of the table: a key of the file and its field. The
// variable and the flag are derived from the key.
type setting struct {
	key   string
	field func(*Config) any // *string, *int, *bool, *time.Duration, *[]string
	help  string
	// secret values are masked, and have no flag: a command line can be read
	// by everyone on the machine.
	secret bool
}

// settings is the table, in the order of configs/alineod.yaml.
var settings = []setting{
	{key: "stateDir", field: func(c *Config) any { return &c.StateDir }, help: "directory of the ledger, checkpoints and sockets"},
	{key: "listen", field: func(c *Config) any { return &c.Listen }, help: "TCP address of the API"},
	{key: "socket", field: func(c *Config) any { return &c.Socket }, help: "unix socket of the API (default <stateDir>/alineod.sock)"},
	{key: "runtime", field: func(c *Config) any { return &c.Runtime }, help: "where sandboxes run: auto, docker or local"},
	{key: "defaultImage", field: func(c *Config) any { return &c.DefaultImage }, help: "image of specs that name none"},

	{key: "docker.host", field: func(c *Config) any { return &c.Docker.Host }, help: "address of the Docker Engine (default DOCKER_HOST, else its usual socket)"},
	{key: "docker.network", field: func(c *Config) any { return &c.Docker.Network }, help: "network of the sandboxes"},
	{key: "docker.transport", field: func(c *Config) any { return &c.Docker.Transport }, help: "how bridges are reached: auto, socket or exec"},

	{key: "local.allowUnsandboxed", field: func(c *Config) any { return &c.Local.AllowUnsandboxed }, help: "let real coding agents run on the bare host"},

	{key: "log.level", field: func(c *Config) any { return &c.Log.Level }, help: "debug, info, warn or error"},
	{key: "log.format", field: func(c *Config) any { return &c.Log.Format }, help: "auto, json or console"},

	{key: "checkpoints.retain", field: func(c *Config) any { return &c.Checkpoints.Retain }, help: "checkpoints kept per sandbox"},

	{key: "admission.parallelism", field: func(c *Config) any { return &c.Admission.Parallelism }, help: "sandboxes of new agents made at once (0: cores - 1)"},
	{key: "admission.timeout", field: func(c *Config) any { return &c.Admission.Timeout }, help: "how long a new agent waits for its sandbox to be made"},

	{key: "recovery.parallelism", field: func(c *Config) any { return &c.Recovery.Parallelism }, help: "agents recovered at once"},
	{key: "recovery.reconcileEvery", field: func(c *Config) any { return &c.Recovery.ReconcileEvery }, help: "time between two reconciliations"},
	{key: "recovery.orphanGrace", field: func(c *Config) any { return &c.Recovery.OrphanGrace }, help: "how long an unclaimed sandbox is kept"},

	{key: "timeouts.bridgeHello", field: func(c *Config) any { return &c.Timeouts.BridgeHello }, help: "how long a bridge may take to answer"},
	{key: "timeouts.provision", field: func(c *Config) any { return &c.Timeouts.Provision }, help: "how long making a sandbox may take"},
	{key: "timeouts.stop", field: func(c *Config) any { return &c.Timeouts.Stop }, help: "how long a harness or sandbox may take to end by itself"},
	{key: "timeouts.engine", field: func(c *Config) any { return &c.Timeouts.Engine }, help: "how long one request to the engine may take"},
	{key: "timeouts.checkpoint", field: func(c *Config) any { return &c.Timeouts.Checkpoint }, help: "how long one checkpoint may take"},
	{key: "timeouts.turnIdle", field: func(c *Config) any { return &c.Timeouts.TurnIdle }, help: "how long a harness may be silent in a turn (0: for ever)"},
	{key: "timeouts.shutdown", field: func(c *Config) any { return &c.Timeouts.Shutdown }, help: "how long requests in flight may take at the end"},

	{key: "auth.token", field: func(c *Config) any { return &c.Auth.Token }, help: "bearer token of the API", secret: true},
	{key: "auth.tokenFile", field: func(c *Config) any { return &c.Auth.TokenFile }, help: "file that holds the bearer token"},
	{key: "auth.readOnlyTokens", field: func(c *Config) any { return &c.Auth.ReadOnlyTokens }, help: "tokens that may only look", secret: true},

	{key: "metrics.listen", field: func(c *Config) any { return &c.Metrics.Listen }, help: "TCP address of a listener for /metrics alone"},
}

// EnvPrefix begins the name of every variable of the daemon.
const EnvPrefix = "ALINEOD_"

// EnvConfig names the configuration file.
const EnvConfig = EnvPrefix + "CONFIG"

// FlagConfig is the flag that names the configuration file.
const FlagConfig = "config"

// otherVars begin with EnvPrefix and are no settings. A name that ends in an
// underscore stands for all that begin with it.
var otherVars = []string{
	EnvConfig,
	EnvPrefix + "HOST",      // the address a client command talks to
	EnvPrefix + "TOKEN",     // the token a client command sends
	EnvPrefix + "FAILPOINT", // arms a crash point in builds that have them
	EnvPrefix + "TEST_",     // the test suite's own
}

// env is the setting's variable: docker.network is ALINEOD_DOCKER_NETWORK.
func (s setting) env() string { return EnvPrefix + strings.ToUpper(separate(s.key, '_')) }

// flag is the setting's flag: docker.network is --docker-network.
func (s setting) flag() string { return separate(s.key, '-') }

// separate puts sep before each capital, lowered, and for each dot.
func separate(key string, sep rune) string {
	var b strings.Builder
	for _, r := range key {
		switch {
		case r == '.':
			b.WriteRune(sep)
		case unicode.IsUpper(r):
			b.WriteRune(sep)
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// parse reads text into a field.
func parse(field any, text string) error {
	switch f := field.(type) {
	case *string:
		*f = text
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*f = n
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		*f = b
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration; write 90s, 10m or 1h30m", text)
		}
		*f = d
	case *[]string:
		*f = nil
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*f = append(*f, item)
			}
		}
	default:
		panic(fmt.Sprintf("a setting of type %T", field)) // a fault of the table
	}
	return nil
}

// format is the inverse of parse.
func format(field any) string {
	switch f := field.(type) {
	case *string:
		return *f
	case *int:
		return strconv.Itoa(*f)
	case *bool:
		return strconv.FormatBool(*f)
	case *time.Duration:
		return f.String()
	case *[]string:
		return strings.Join(*f, ",")
	}
	panic(fmt.Sprintf("a setting of type %T", field))
}
