package archive

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// PackOptions say what Pack reads.
type PackOptions struct {
	// Home is the absolute path of the home directory. A symbolic link there
	// is followed; below it none is.
	Home string
	// Paths are more absolute paths, of files or directories outside the home.
	// What does not exist is left out. A path below another one is part of it.
	Paths []string
	// Exclude are patterns (ValidatePattern) relative to the home, in addition
	// to DefaultExcludes.
	Exclude []string
	// OnSkip, where set, is told each thing that was left out or that changed
	// though nobody asked for it (Skipped.Lost), by its name in the archive.
	OnSkip func(name string, err error)
}

// UnpackOptions say what Unpack replaces.
type UnpackOptions struct {
	// Home is the absolute path of the home directory. It is made where it is
	// missing.
	Home string
	// Paths are those the archive was packed with. One that the archive does
	// not hold is removed.
	Paths  []string
	Limits Limits
}

// roots checks home and paths and brings them into their plain form, without
// paths that lie in others.
func roots(home string, paths []string) (string, []string, error) {
	bad := func(p, why string) (string, []string, error) {
		return "", nil, fmt.Errorf("%w: %q %s", ErrOptions, p, why)
	}
	if !filepath.IsAbs(home) {
		return bad(home, "is no absolute path")
	}
	home = filepath.Clean(home)
	clean := make([]string, 0, len(paths))
	for _, p := range paths {
		if !filepath.IsAbs(p) {
			return bad(p, "is no absolute path")
		}
		c := filepath.Clean(p)
		switch {
		case strings.ContainsRune(c, 0):
			return bad(p, "contains a zero byte")
		case within(home, c):
			return bad(p, "contains the home directory")
		case within(c, home):
			return bad(p, "lies in the home directory")
		}
		clean = append(clean, c)
	}
	slices.Sort(clean)
	var out []string
	for _, p := range clean {
		if !slices.ContainsFunc(out, func(o string) bool { return within(p, o) }) {
			out = append(out, p)
		}
	}
	return home, out, nil
}

// within reports whether p is dir or lies below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
