package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// SystemFile is read where no other file is named and it exists.
const SystemFile = "/etc/alineod/alineod.yaml"

// maxTokenFile bounds what is read of auth.tokenFile.
const maxTokenFile = 4096

// Sources is where a configuration is read from. The zero value gives the
// defaults of a user without a home directory.
type Sources struct {
	// File is a configuration file that must exist. The flag --config and
	// ALINEOD_CONFIG come before it.
	File string
	// OptionalFile is read where no other file is named and it exists.
	OptionalFile string
	// Environ is the environment, as os.Environ gives it.
	Environ []string
	// Flags are those RegisterFlags made, after parsing; nil for none.
	Flags *pflag.FlagSet
	// UID decides the default state directory; 0 is root.
	UID int
}

// FromProcess is where a daemon reads from: its flags, its environment, the
// system's file.
func FromProcess(flags *pflag.FlagSet) Sources {
	return Sources{OptionalFile: SystemFile, Environ: os.Environ(), Flags: flags, UID: os.Geteuid()}
}

// RegisterFlags adds --config and the flags of the settings with the given
// keys to fs; without keys, of all that may stand on a command line.
func RegisterFlags(fs *pflag.FlagSet, keys ...string) {
	fs.String(FlagConfig, "", "configuration file (default "+SystemFile+" where it exists)")
	c := Default(0, func(string) string { return "" })
	for _, s := range settings {
		if s.secret || len(keys) > 0 && !slices.Contains(keys, s.key) {
			continue
		}
		help := s.help
		if s.key == "stateDir" {
			help += " (default " + c.StateDir + ", or for other users than root the one of XDG)"
		} else if def := format(s.field(c)); def != "" && def != "false" {
			help += " (default " + def + ")"
		}
		fs.String(s.flag(), "", help)
		if _, ok := s.field(c).(*bool); ok {
			fs.Lookup(s.flag()).NoOptDefVal = "true"
		}
	}
}

// loader gathers problems while a configuration is read.
type loader struct {
	config   *Config
	problems []Problem
}

// Load reads and validates a configuration. The error is an *Error (errors.Is
// ErrInvalid) with every problem, or tells that the file cannot be read.
func Load(o Sources) (*Config, error) {
	vars := map[string]string{}
	for _, v := range o.Environ {
		if name, value, ok := strings.Cut(v, "="); ok {
			vars[name] = value
		}
	}
	l := &loader{config: Default(o.UID, func(name string) string { return vars[name] })}
	l.config.origins = map[string]string{}
	if err := l.file(o, vars); err != nil {
		return nil, err
	}
	l.environment(vars)
	l.flags(o.Flags)
	l.derive(vars)
	l.problems = append(l.problems, l.config.problems()...)
	if len(l.problems) > 0 {
		return nil, &Error{l.problems}
	}
	return l.config, nil
}

func (l *loader) problem(field, source, format string, args ...any) {
	l.problems = append(l.problems, Problem{field, source, fmt.Sprintf(format, args...)})
}

// set takes one value for a setting. A value that cannot be read is a problem
// and leaves the field as it was.
func (l *loader) set(s setting, source, text string) {
	if err := parse(s.field(l.config), text); err != nil {
		if s.secret {
			err = errors.New("cannot be read")
		}
		l.problem(s.key, source, "%v", err)
		return
	}
	l.config.origins[s.key] = source
}

// file finds the configuration file and reads it.
func (l *loader) file(o Sources, vars map[string]string) error {
	name, optional := o.File, false
	if v := vars[EnvConfig]; v != "" {
		name = v
	}
	if o.Flags != nil {
		if f := o.Flags.Lookup(FlagConfig); f != nil && f.Changed {
			name = f.Value.String()
		}
	}
	if name == "" {
		name, optional = o.OptionalFile, true
	}
	if name == "" {
		return nil
	}
	data, err := os.ReadFile(name)
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("reading the configuration file: %w", err)
	}
	l.yaml(name, data)
	return nil
}

// environment takes the variables. An empty one counts as not given: that is
// how compose files and units leave a variable out.
func (l *loader) environment(vars map[string]string) {
	known := map[string]bool{}
	for _, s := range settings {
		known[s.env()] = true
		if v := vars[s.env()]; v != "" {
			l.set(s, "environment "+s.env(), v)
		}
	}
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	var unknown []string
	for name := range vars {
		if strings.HasPrefix(name, EnvPrefix) && !known[name] && !isOther(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		l.problem(name, "environment", "is not a setting of alineod%s", hint(name, names))
	}
}

func isOther(name string) bool {
	return slices.ContainsFunc(otherVars, func(other string) bool {
		return name == other || strings.HasSuffix(other, "_") && strings.HasPrefix(name, other)
	})
}

func (l *loader) flags(fs *pflag.FlagSet) {
	if fs == nil {
		return
	}
	for _, s := range settings {
		if f := fs.Lookup(s.flag()); f != nil && f.Changed {
			l.set(s, "flag --"+s.flag(), f.Value.String())
		}
	}
}

// derive fills in what follows from other values.
func (l *loader) derive(vars map[string]string) {
	c := l.config
	// Whoever set DOCKER_HOST for the docker command means the same engine;
	// a setting of our own comes first.
	if v := vars["DOCKER_HOST"]; c.Docker.Host == "" && v != "" {
		c.Docker.Host = v
		c.origins["docker.host"] = "environment DOCKER_HOST"
	}
	for _, path := range []struct {
		key   string
		field *string
	}{{"stateDir", &c.StateDir}, {"socket", &c.Socket}, {"auth.tokenFile", &c.Auth.TokenFile}} {
		if *path.field == "" || filepath.IsAbs(*path.field) {
			continue
		}
		abs, err := filepath.Abs(*path.field)
		if err != nil {
			l.problem(path.key, c.origins[path.key], "cannot be made absolute: %v", err)
			continue
		}
		*path.field = abs
	}
	if c.Socket == "" && c.StateDir != "" {
		c.Socket = filepath.Join(c.StateDir, "alineod.sock")
	}
	l.tokenFile()
}

func (l *loader) tokenFile() {
	a := &l.config.Auth
	if a.TokenFile == "" {
		return
	}
	source := l.config.origins["auth.tokenFile"]
	if a.Token != "" {
		l.problem("auth.tokenFile", source, "auth.token is given as well; give one of them")
		return
	}
	data, err := os.ReadFile(a.TokenFile)
	switch token := strings.TrimSpace(string(data)); {
	case err != nil:
		l.problem("auth.tokenFile", source, "%v", err)
	case token == "":
		l.problem("auth.tokenFile", source, "%s is empty", a.TokenFile)
	case len(data) > maxTokenFile:
		l.problem("auth.tokenFile", source, "%s is longer than %d bytes", a.TokenFile, maxTokenFile)
	default:
		a.Token = token
		l.config.origins["auth.token"] = "file " + a.TokenFile
	}
}
