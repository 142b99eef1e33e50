package spec

import (
	"maps"
	"slices"
	"strings"
)

// segment is a piece of a value of env: text as it is, or a variable.
type segment struct {
	text string
	name string // of the variable; then text is empty
}

// split takes a value apart. problem is not empty where it is malformed.
// A dollar sign before anything but a brace or a dollar sign is just that.
func split(value string) (parts []segment, problem string) {
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			parts = append(parts, segment{text: text.String()})
			text.Reset()
		}
	}
	for value != "" {
		before, after, found := strings.Cut(value, "$")
		text.WriteString(before)
		if !found {
			break
		}
		switch {
		case strings.HasPrefix(after, "$"):
			text.WriteByte('$')
			value = after[1:]
		case strings.HasPrefix(after, "{"):
			name, rest, closed := strings.Cut(after[1:], "}")
			if !closed {
				return nil, "has a ${ without its }; write $$ for a dollar sign"
			}
			if !envNameRE.MatchString(name) {
				return nil, "refers to ${" + name + "}, which is not the name of a variable; write $$ for a dollar sign"
			}
			flush()
			parts = append(parts, segment{name: name})
			value = rest
		default:
			text.WriteByte('$')
			value = after
		}
	}
	flush()
	return parts, ""
}

// Vars lists the variables that env refers to, sorted.
func (s *Spec) Vars() []string {
	names := map[string]bool{}
	for _, value := range s.Env {
		parts, _ := split(value)
		for _, p := range parts {
			if p.name != "" {
				names[p.name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// UnsetVars lists the variables that env refers to and lookup does not know,
// sorted. One that is set to nothing is set.
func (s *Spec) UnsetVars(lookup func(string) (string, bool)) []string {
	return slices.DeleteFunc(s.Vars(), func(name string) bool {
		_, set := lookup(name)
		return set
	})
}

// ResolveEnv returns env with every ${VAR} replaced. The error is an
// *UnsetVarError that names all the variables that are not set. What it
// returns holds secrets: it goes to the bridge and nowhere else.
func (s *Spec) ResolveEnv(lookup func(string) (string, bool)) (map[string]string, error) {
	if unset := s.UnsetVars(lookup); len(unset) > 0 {
		return nil, &UnsetVarError{unset}
	}
	env := make(map[string]string, len(s.Env))
	for key, value := range s.Env {
		parts, problem := split(value)
		if problem != "" {
			return nil, &Error{[]Problem{{join("env", key), problem}}}
		}
		var b strings.Builder
		for _, p := range parts {
			b.WriteString(p.text)
			if p.name != "" {
				v, _ := lookup(p.name)
				b.WriteString(v)
			}
		}
		env[key] = b.String()
	}
	return env, nil
}

// Secrets returns the values of the variables that env refers to, for the
// redactor. It is the variables' own values, since a harness may print the
// token alone and not the header it was put into.
func (s *Spec) Secrets(lookup func(string) (string, bool)) []string {
	var values []string
	for _, name := range s.Vars() {
		if v, set := lookup(name); set && v != "" {
			values = append(values, v)
		}
	}
	return values
}
