package archive

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// maxPattern bounds one pattern, in bytes.
const maxPattern = 4096

// DefaultExcludes are the package caches that recovery.md keeps out of every
// checkpoint: what a package manager can fetch again is not worth storing
// after each turn. They are relative to the home directory and in the syntax
// of ValidatePattern.
func DefaultExcludes() []string {
	return []string{
		"/.npm",
		"/.cache",
		"/.cargo/registry/cache", "/.cargo/registry/src", "/.cargo/registry/index",
		"/.cargo/git/db", "/.cargo/git/checkouts",
		"/go/pkg/mod",
		"__pycache__",
	}
}

// ValidatePattern reports whether a pattern of PackOptions.Exclude is valid.
// The error says why not and wraps ErrOptions.
//
// A pattern names files and directories below the home; an excluded directory
// is left out with all that is in it. A pattern without a slash matches a name
// at any depth (node_modules). One with a slash is relative to the home
// directory (work/build); a slash at its beginning says only that (/tmp
// matches ~/tmp and no deeper one). A slash at its end matches directories
// only. Within a name * matches any characters, ? one character, [a-z] one of
// a set, and \ takes away the meaning of the next. The name ** matches any
// number of directories, also none: work/**/target. There is no negation.
func ValidatePattern(p string) error {
	_, err := parsePattern(p)
	return err
}

// pattern is a parsed pattern: one name after the other.
type pattern struct {
	names   []string
	dirOnly bool
}

const anyDepth = "**"

func parsePattern(p string) (pattern, error) {
	bad := func(why string) (pattern, error) {
		return pattern{}, fmt.Errorf("%w: pattern %q %s", ErrOptions, p, why)
	}
	switch {
	case p == "":
		return bad("is empty")
	case len(p) > maxPattern:
		return pattern{}, fmt.Errorf("%w: a pattern is longer than %d bytes", ErrOptions, maxPattern)
	case strings.ContainsRune(p, 0):
		return bad("contains a zero byte")
	case p[0] == '!':
		return bad(`negates, which is not supported; a name that begins with ! is written \!`)
	}
	body, dirOnly := strings.CutSuffix(p, "/")
	body, anchored := strings.CutPrefix(body, "/")
	names := strings.Split(body, "/")
	for _, n := range names {
		switch n {
		case "":
			return bad("has an empty name")
		case ".", "..":
			return bad("has a name that is . or ..")
		}
		if _, err := path.Match(n, ""); errors.Is(err, path.ErrBadPattern) {
			return bad("has an unfinished [ or \\")
		}
		if n != anyDepth && strings.Contains(n, anyDepth) {
			return bad("has ** that is not a whole name")
		}
	}
	if len(names) == 1 && !anchored {
		names = append([]string{anyDepth}, names...)
	}
	return pattern{names: names, dirOnly: dirOnly}, nil
}

func parsePatterns(list []string) ([]pattern, error) {
	out := make([]pattern, 0, len(list))
	for _, s := range list {
		p, err := parsePattern(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// matches reports whether the pattern matches the whole of rel. It goes back
// to the last ** only, hence its time is bounded by the product of the two
// lengths whatever the pattern.
func (p pattern) matches(rel []string, dir bool) bool {
	if p.dirOnly && !dir {
		return false
	}
	i, j := 0, 0
	star, mark := -1, 0
	for j < len(rel) {
		switch {
		case i < len(p.names) && p.names[i] == anyDepth:
			star, mark = i, j
			i++
		case i < len(p.names) && matchName(p.names[i], rel[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	if i < len(p.names) && p.names[i] == anyDepth && i > 0 && star != i {
		// "a/**" is what lies in a, not a itself.
		return false
	}
	return i == len(p.names)
}

func matchName(pat, name string) bool {
	// Most patterns are plain names: an entry is compared with each of them.
	if !strings.ContainsAny(pat, `*?[\`) {
		return pat == name
	}
	ok, err := path.Match(pat, name)
	return ok && err == nil
}
