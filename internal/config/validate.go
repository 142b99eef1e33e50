package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxRetain      = 100
	maxParallelism = 256
	maxDuration    = 30 * 24 * time.Hour
	// minToken: shorter ones can be guessed.
	minToken = 16
)

var (
	networkRE = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_.-]{0,127}$`)
	imageRE   = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._:/@-]{0,511}$`)
	tokenRE   = regexp.MustCompile(`^[\x21-\x7e]+$`)
)

// Validate checks the values against each other and against their bounds. The
// error is an *Error with every problem.
func (c *Config) Validate() error {
	if p := c.problems(); len(p) > 0 {
		return &Error{p}
	}
	return nil
}

// checker gathers the problems of one validation.
type checker struct {
	config *Config
	found  []Problem
}

func (c *Config) problems() []Problem {
	k := &checker{config: c}
	k.places()
	k.oneOf("runtime", c.Runtime, Auto, RuntimeDocker, RuntimeLocal)
	if !imageRE.MatchString(c.DefaultImage) {
		k.add("defaultImage", "%q is not the name of an image", c.DefaultImage)
	}
	k.docker()
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, Auto, LogJSON, LogConsole)
	k.between("checkpoints.retain", c.Checkpoints.Retain, 1, maxRetain)
	k.between("admission.parallelism", c.Admission.Parallelism, 0, maxParallelism)
	k.positive("admission.timeout", c.Admission.Timeout)
	k.between("recovery.parallelism", c.Recovery.Parallelism, 1, maxParallelism)
	k.positive("recovery.reconcileEvery", c.Recovery.ReconcileEvery)
	k.orZero("recovery.orphanGrace", c.Recovery.OrphanGrace)
	k.positive("timeouts.bridgeHello", c.Timeouts.BridgeHello)
	k.positive("timeouts.provision", c.Timeouts.Provision)
	k.positive("timeouts.stop", c.Timeouts.Stop)
	k.positive("timeouts.engine", c.Timeouts.Engine)
	k.positive("timeouts.checkpoint", c.Timeouts.Checkpoint)
	k.orZero("timeouts.turnIdle", c.Timeouts.TurnIdle)
	k.positive("timeouts.shutdown", c.Timeouts.Shutdown)
	k.auth()
	return k.found
}

func (k *checker) add(key, format string, args ...any) {
	k.found = append(k.found, Problem{key, k.config.origins[key], fmt.Sprintf(format, args...)})
}

func (k *checker) places() {
	c := k.config
	switch {
	case c.StateDir == "":
		k.add("stateDir", "is required: neither HOME nor XDG_STATE_HOME says where it could be")
	case !filepath.IsAbs(c.StateDir):
		k.add("stateDir", "%q is not absolute", c.StateDir)
	case filepath.Clean(c.StateDir) == "/":
		k.add("stateDir", "cannot be the root directory")
	case strings.ContainsAny(c.StateDir, ":,\x00"):
		// Docker separates the parts of a mount with them.
		k.add("stateDir", "%q must not contain a colon or a comma", c.StateDir)
	}
	if c.Socket != "" && !filepath.IsAbs(c.Socket) {
		k.add("socket", "%q is not absolute", c.Socket)
	}
	k.address("listen", c.Listen)
	if c.Metrics.Listen != "" {
		k.address("metrics.listen", c.Metrics.Listen)
		if c.Metrics.Listen == c.Listen && !strings.HasSuffix(c.Listen, ":0") {
			k.add("metrics.listen", "is the API's own address; leave it out, /metrics is served there")
		}
	}
}

// address checks HOST:PORT.
func (k *checker) address(key, addr string) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		k.add(key, "%q is not HOST:PORT", addr)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		k.add(key, "%q has no port from 0 to 65535", addr)
	}
}

func (k *checker) docker() {
	d := k.config.Docker
	if d.Host != "" {
		u, err := url.Parse(d.Host)
		switch {
		case err != nil || u.Scheme == "":
			k.add("docker.host", "%q is not an address, as unix:///var/run/docker.sock", d.Host)
		case !slices.Contains([]string{"unix", "tcp", "http", "https"}, u.Scheme):
			k.add("docker.host", "cannot reach an engine over %q; unix, tcp, http and https are known", u.Scheme)
		}
	}
	switch {
	case !networkRE.MatchString(d.Network):
		k.add("docker.network", "%q is not the name of a network", d.Network)
	case d.Network == "host" && k.config.Auth.Token == "":
		// An agent there reaches our loopback listener, and could start, stop
		// and read every other agent.
		k.add("docker.network", "host lets agents reach this API; set auth.token or auth.tokenFile")
	}
	k.oneOf("docker.transport", d.Transport, Auto, TransportSocket, TransportExec)
}

func (k *checker) auth() {
	c := k.config
	k.token("auth.token", c.Auth.Token)
	for _, t := range c.Auth.ReadOnlyTokens {
		switch {
		case t == "":
			k.add("auth.readOnlyTokens", "holds an empty token")
		case t == c.Auth.Token:
			k.add("auth.readOnlyTokens", "holds auth.token, which may do everything")
		default:
			k.token("auth.readOnlyTokens", t)
		}
	}
	if len(c.Auth.ReadOnlyTokens) > 0 && c.Auth.Token == "" {
		k.add("auth.readOnlyTokens", "without auth.token everyone may do everything; set it too")
	}
	if c.Auth.Token == "" && !Loopback(c.Listen) {
		k.add("listen", "%q can be reached from other machines; set auth.token or auth.tokenFile, or listen on 127.0.0.1", c.Listen)
	}
}

func (k *checker) token(key, token string) {
	switch {
	case token == "":
	case len(token) < minToken:
		k.add(key, "is shorter than %d characters", minToken)
	case !tokenRE.MatchString(token):
		k.add(key, "must be printable ASCII without spaces: it travels in a header")
	}
}

// Loopback says whether HOST:PORT can only be reached from this machine. A
// name other than localhost may mean anything, so it cannot.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (k *checker) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		k.add(key, "is %q; must be one of %s", value, strings.Join(allowed, ", "))
	}
}

func (k *checker) between(key string, n, low, high int) {
	if n < low || n > high {
		k.add(key, "is %d; must be from %d to %d", n, low, high)
	}
}

func (k *checker) positive(key string, d time.Duration) {
	if d <= 0 || d > maxDuration {
		k.add(key, "is %v; must be more than 0 and at most %v", d, maxDuration)
	}
}

func (k *checker) orZero(key string, d time.Duration) {
	if d < 0 || d > maxDuration {
		k.add(key, "is %v; must be from 0 to %v", d, maxDuration)
	}
}
