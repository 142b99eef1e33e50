package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Unpack replaces what stands in the home and at the paths with exactly what
// the archive holds: what it does not hold is gone.
//
// The archive is a stream, so it is judged entry by entry, each before it has
// an effect; nothing is touched before the first entry was found good. If
// Unpack fails after that, the home is half written and of no use: the caller
// throws the sandbox away. Whatever the archive says, nothing outside the home
// and the paths is changed.
//
// The home directory itself and mount points are emptied and filled, not made
// anew. Owners that may not be set (an unprivileged unpack) and attributes
// that the file system refuses are counted, not errors; a file whose owner
// could not be set loses its setuid bit.
func Unpack(ctx context.Context, r io.Reader, o UnpackOptions) (Stats, error) {
	home, paths, err := roots(o.Home, o.Paths)
	if err != nil {
		return Stats{}, err
	}
	lim := o.Limits.withDefaults()
	u := &unpacker{
		ctx: ctx, d: newDecoder(ctx, r, lim), c: newChecker(lim),
		home: home, paths: paths, buf: make([]byte, 256<<10),
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()),
	}
	defer u.close()
	err = u.run()
	return u.stats, err
}

type unpacker struct {
	ctx   context.Context
	d     *decoder
	c     *checker
	home  string
	paths []string
	// trees are that of the home and those of the paths' parents, in their
	// order; nil before prepare.
	trees    []*tree
	dirs     []*entry
	stats    Stats
	buf      []byte
	uid, gid uint32
}

func (u *unpacker) close() {
	for _, t := range u.trees {
		t.close()
	}
}

func (u *unpacker) run() error {
	for {
		e, err := u.d.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		skip, err := u.c.check(e)
		if err != nil {
			return err
		}
		if skip {
			continue
		}
		if err := u.place(e); err != nil {
			if errors.Is(err, ErrUnsafe) || errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooBig) {
				return err
			}
			return fmt.Errorf("unpacking %s: %w", short(e.name), err)
		}
	}
	if err := u.c.complete(); err != nil {
		return err
	}
	return u.finishDirs()
}

// place gives an entry its effect.
func (u *unpacker) place(e *entry) error {
	at, names, err := u.locate(e.name)
	if err != nil || at == nowhere {
		return err
	}
	if u.trees == nil {
		if err := u.prepare(); err != nil {
			return err
		}
	}
	return u.placeIn(u.trees[at], names, e)
}

func (u *unpacker) placeIn(t *tree, names []string, e *entry) error {
	if e.typ == typeDir {
		u.stats.add(e, 0)
		u.dirs = append(u.dirs, e)
		return u.makeDir(t, names)
	}
	base := names[len(names)-1]
	if err := t.walkTo(names[:len(names)-1], true); err != nil {
		return err
	}
	at, err := t.fd()
	if err != nil {
		return err
	}
	u.stats.add(e, 0)
	switch e.typ {
	case typeReg:
		return u.makeFile(at, base, e, u.content)
	case typeLink:
		return u.makeLink(at, base, e)
	case typeSymlink:
		if err := unix.Symlinkat(e.link, at, base); err != nil {
			return err
		}
		return u.finish(at, base, -1, e)
	default:
		if err := unix.Mknodat(at, base, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		return u.finish(at, base, -1, e)
	}
}

// nowhere is where a directory above a path is: it belongs to the sandbox.
const nowhere = -1

// locate finds the tree an entry belongs to, by its index, and its names there.
func (u *unpacker) locate(name string) (int, []string, error) {
	if name == homeDir {
		return 0, nil, nil
	}
	if rel, ok := strings.CutPrefix(name, homeDir+"/"); ok {
		return 0, strings.Split(rel, "/"), nil
	}
	abs := strings.TrimPrefix(name, rootDir)
	above := abs == ""
	for i, p := range u.paths {
		if within(abs, p) {
			rel := strings.TrimPrefix(abs[len(filepath.Dir(p)):], "/")
			return i + 1, strings.Split(rel, "/"), nil
		}
		above = above || within(p, abs)
	}
	if !above {
		return nowhere, nil, refused("%q lies in none of the paths to be unpacked", short(name))
	}
	return nowhere, nil, nil
}

// prepare opens the roots, all of them before the archive has any say on the
// file system, and clears them.
func (u *unpacker) prepare() error {
	if err := os.MkdirAll(u.home, 0o755); err != nil {
		return err
	}
	dirs := []string{u.home}
	for _, p := range u.paths {
		parent := filepath.Dir(p)
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		dirs = append(dirs, parent)
	}
	for _, d := range dirs {
		t, err := openTree(d)
		if err != nil {
			return err
		}
		u.trees = append(u.trees, t)
	}
	if err := u.trees[0].empty(u.ctx); err != nil {
		return fmt.Errorf("emptying %s: %w", u.home, err)
	}
	dropXattrs(u.trees[0].root)
	for i, p := range u.paths {
		if err := u.trees[i+1].remove(u.ctx, filepath.Base(p)); err != nil {
			return fmt.Errorf("removing %s: %w", p, err)
		}
	}
	return nil
}

// makeDir makes a directory that only its maker may use until finishDirs.
func (u *unpacker) makeDir(t *tree, names []string) error {
	if len(names) == 0 {
		return nil
	}
	last := len(names) - 1
	if err := t.walkTo(names[:last], true); err != nil {
		return err
	}
	at, err := t.fd()
	if err != nil {
		return err
	}
	err = unix.Mkdirat(at, names[last], 0o700)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	// Implied by an earlier entry, or a mount point. Anything else that is no
	// directory does not let us in.
	return t.push(names[last])
}

// makeFile makes a regular file and lets fill write it.
func (u *unpacker) makeFile(at int, base string, e *entry, fill func(int, *entry) error) error {
	fd, err := openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = fill(fd, e)
	if err == nil {
		err = u.finish(at, base, fd, e)
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	return err
}

// content writes what the archive holds of a file.
func (u *unpacker) content(fd int, e *entry) error {
	if !e.sparse {
		u.stats.Bytes += e.size
		return u.copy(fd, e.size)
	}
	var segs []segment
	if err := u.d.segments(e, func(s segment) { segs = append(segs, s) }); err != nil {
		return err
	}
	if err := unix.Ftruncate(fd, e.apparent); err != nil {
		return err
	}
	for _, s := range segs {
		if _, err := unix.Seek(fd, s.off, 0); err != nil {
			return err
		}
		if err := u.copy(fd, s.n); err != nil {
			return err
		}
		u.stats.Bytes += s.n
	}
	return nil
}

func (u *unpacker) copy(fd int, n int64) error {
	_, err := io.CopyBuffer(writer{fd}, io.LimitReader(u.d, n), u.buf)
	return err
}

// makeLink makes a hard link. Where the two names came to lie on different
// file systems it makes a copy.
func (u *unpacker) makeLink(at int, base string, e *entry) error {
	which, names, err := u.locate(e.link)
	if err != nil {
		return err
	}
	if which == nowhere || len(names) == 0 {
		return refused("the hard link %q leads out", short(e.name))
	}
	t := u.trees[which]
	// The target's directory may lie in the same tree, whose descriptor at
	// would then move: hold it.
	at, err = unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	last := len(names) - 1
	if err := t.walkTo(names[:last], false); err != nil {
		return err
	}
	from, err := t.fd()
	if err != nil {
		return err
	}
	err = unix.Linkat(from, names[last], at, base, 0)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	src, err := openat(from, names[last], unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(src), names[last])
	defer file.Close()
	return u.makeFile(at, base, e, func(fd int, _ *entry) error {
		_, err := io.CopyBuffer(writer{fd}, file, u.buf)
		return err
	})
}

// finishDirs gives the directories their modes and times, children before
// their parents: nothing is written below them any more.
func (u *unpacker) finishDirs() error {
	slices.SortFunc(u.dirs, func(a, b *entry) int { return strings.Compare(b.name, a.name) })
	for _, e := range u.dirs {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		which, names, err := u.locate(e.name)
		if err != nil {
			return err
		}
		t := u.trees[which]
		if err := t.walkTo(names, false); err != nil {
			return fmt.Errorf("unpacking %s: %w", short(e.name), err)
		}
		fd, err := t.fd()
		if err != nil {
			return err
		}
		if err := u.finish(fd, ".", fd, e); err != nil {
			return fmt.Errorf("unpacking %s: %w", short(e.name), err)
		}
	}
	return nil
}

func dropXattrs(fd int) {
	buf := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return
	}
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		if keptXattr(name) {
			_ = unix.Fremovexattr(fd, name)
		}
	}
}
