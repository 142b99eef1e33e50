package archive

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
)

// checker judges the entries of one archive, each before it has any effect.
// Unpack and Verify share it, so that what one takes the other takes.
type checker struct {
	lim     Limits
	entries int64
	// seen holds each name as a hash of 128 bits under random seeds: nobody
	// can construct two names that collide, and memory does not depend on
	// the names' lengths.
	seen  map[[2]uint64]kind
	seeds [2]maphash.Seed
}

type kind uint8

const (
	kindImplied kind = iota + 1 // a directory no entry has named so far
	kindDir
	kindOther // anything a hard link may point to
)

func newChecker(lim Limits) *checker {
	return &checker{
		lim:   lim,
		seen:  map[[2]uint64]kind{},
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
	}
}

func (c *checker) key(name string) [2]uint64 {
	return [2]uint64{maphash.String(c.seeds[0], name), maphash.String(c.seeds[1], name)}
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUnsafe}, args...)...)
}

// check judges e, and brings its names into their plain form. Entries for
// which it answers skip stand for nothing.
func (c *checker) check(e *entry) (skip bool, err error) {
	switch e.typ {
	case typeReg, typeLink, typeSymlink, typeDir, typeFifo:
	case '3', '4':
		return false, refused("%q is a device node", short(e.name))
	default:
		return false, malformed("%q is of unknown type %q", short(e.name), string(e.typ))
	}
	if e.typ == typeDir && e.name == "." {
		return true, c.count()
	}
	if e.name, err = c.plain(e.name); err != nil {
		return false, err
	}
	if e.typ != typeDir && !strings.Contains(e.name, "/") {
		return false, refused("%q is no directory", e.name)
	}
	if e.apparent > c.lim.MaxFile {
		return false, fmt.Errorf("%w: %q is %d bytes long", ErrTooBig, short(e.name), e.apparent)
	}
	if err := c.checkLink(e); err != nil {
		return false, err
	}
	if err := c.parents(e.name); err != nil {
		return false, err
	}
	k := c.key(e.name)
	switch was := c.seen[k]; {
	case was == kindImplied && e.typ == typeDir:
		c.seen[k] = kindDir
		return false, nil
	case was != 0:
		return false, refused("%q comes twice", short(e.name))
	}
	if c.seen[k] = kindOther; e.typ == typeDir {
		c.seen[k] = kindDir
	}
	return false, c.count()
}

func (c *checker) checkLink(e *entry) (err error) {
	switch e.typ {
	case typeSymlink:
		// It may lead anywhere: a home is full of links to /usr. Nobody here
		// follows it.
		if e.link == "" || strings.ContainsRune(e.link, 0) {
			return malformed("the symbolic link %q has no valid target", short(e.name))
		}
		if len(e.link) > c.lim.MaxPath {
			return fmt.Errorf("%w: the target of %q is %d bytes long", ErrTooBig, short(e.name), len(e.link))
		}
	case typeLink:
		if e.link, err = c.plain(e.link); err != nil {
			return fmt.Errorf("hard link %q: %w", short(e.name), err)
		}
		if c.seen[c.key(e.link)] != kindOther {
			return refused("the hard link %q leads to no file of the archive before it", short(e.name))
		}
	default:
		e.link = ""
	}
	return nil
}

// plain checks a name and takes "./" from its beginning.
func (c *checker) plain(name string) (string, error) {
	if len(name) > c.lim.MaxPath {
		return "", fmt.Errorf("%w: a name of %d bytes", ErrTooBig, len(name))
	}
	name = strings.TrimPrefix(name, "./")
	if strings.ContainsRune(name, 0) {
		return "", refused("a name contains a zero byte")
	}
	for i := 0; ; i++ {
		part, _, _ := strings.Cut(name[i:], "/")
		switch {
		case part == "" || part == "." || part == "..":
			return "", refused("the name %q is not plain", short(name))
		case len(part) > maxName:
			return "", fmt.Errorf("%w: a name of %d bytes", ErrTooBig, len(part))
		case i == 0 && part != homeDir && part != rootDir:
			return "", refused("%q lies neither in %s nor in %s", short(name), homeDir, rootDir)
		}
		if i += len(part); i == len(name) {
			return name, nil
		}
	}
}

// parents makes sure that all that stands above name are directories. It goes
// up only to the first known one: what stands above that is known too.
func (c *checker) parents(name string) error {
	for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
		k := c.key(name[:i])
		switch c.seen[k] {
		case kindDir, kindImplied:
			return nil
		case kindOther:
			return refused("%q is used as a directory and is none", short(name[:i]))
		}
		c.seen[k] = kindImplied
		if err := c.count(); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) count() error {
	if c.entries++; c.entries > c.lim.MaxEntries {
		return fmt.Errorf("%w: more than %d entries", ErrTooBig, c.lim.MaxEntries)
	}
	return nil
}

// complete says at the end whether anything was missing.
func (c *checker) complete() error {
	if c.seen[c.key(homeDir)] == 0 {
		return malformed("it holds no %s", homeDir)
	}
	return nil
}

// Verify reads an archive to the end of r and makes all the checks of Unpack,
// without writing anything. It is what the daemon trusts instead of a sandbox.
func Verify(ctx context.Context, r io.Reader, l Limits) (Stats, error) {
	l = l.withDefaults()
	d, c := newDecoder(ctx, r, l), newChecker(l)
	var st Stats
	for {
		e, err := d.next()
		if errors.Is(err, io.EOF) {
			return st, c.complete()
		}
		if err != nil {
			return st, err
		}
		skip, err := c.check(e)
		if err != nil {
			return st, err
		}
		if skip {
			continue
		}
		if e.sparse {
			if err := d.segments(e, func(segment) {}); err != nil {
				return st, err
			}
		}
		st.add(e, d.left)
	}
}

// add counts one entry with n bytes of content.
func (s *Stats) add(e *entry, n int64) {
	if e.typ == typeDir {
		s.Dirs++
		return
	}
	s.Files++
	s.Bytes += n
}
