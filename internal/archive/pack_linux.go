package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Pack writes an archive of the home and the paths to w.
//
// What changes meanwhile never breaks the stream: a file that shrinks is
// filled up with zeros, one that grows is cut at the size it had, one that
// vanishes is left out; each is counted. Sockets and device nodes are left
// out. Pack ends early with an error when w fails, when the context ends (its
// cause) or when the home itself cannot be read; what was written is then no
// whole archive and every reader says so.
func Pack(ctx context.Context, w io.Writer, o PackOptions) (Stats, error) {
	home, paths, err := roots(o.Home, o.Paths)
	if err != nil {
		return Stats{}, err
	}
	exclude, err := parsePatterns(append(DefaultExcludes(), o.Exclude...))
	if err != nil {
		return Stats{}, err
	}
	p := &packer{
		ctx: ctx, w: bufio.NewWriterSize(w, 256<<10), onSkip: o.OnSkip,
		links: map[inode]string{}, buf: make([]byte, 256<<10), attrs: make([]byte, 64<<10),
	}
	if err := p.packHome(home, exclude); err != nil {
		return p.stats, fmt.Errorf("packing %s: %w", home, err)
	}
	for _, path := range paths {
		if err := p.packPath(path); err != nil {
			return p.stats, fmt.Errorf("packing %s: %w", path, err)
		}
	}
	p.w.Write(zeros[:])
	p.w.Write(zeros[:])
	if err := p.w.Flush(); err != nil {
		return p.stats, fmt.Errorf("writing the archive: %w", err)
	}
	return p.stats, nil
}

type packer struct {
	ctx     context.Context
	w       *bufio.Writer
	onSkip  func(string, error)
	exclude []pattern // of the tree at work
	stats   Stats
	links   map[inode]string // first name of files with several
	buf     []byte
	attrs   []byte
	header  []byte
}

type inode struct{ dev, ino uint64 }

func (p *packer) packHome(home string, exclude []pattern) error {
	t, err := openTree(home)
	if err != nil {
		return err
	}
	defer t.close()
	p.exclude = exclude
	return p.packDir(t, homeDir)
}

func (p *packer) packPath(path string) error {
	t, err := openTree(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.close()
	p.exclude = nil
	var st unix.Stat_t
	err = unix.Fstatat(t.root, filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return p.packEntry(t, filepath.Base(path), rootDir+path)
}

// lost counts and reports what is missing. Other errors than those of a tree
// in motion, or without permission, end the pack: an archive that lacks a file
// for an I/O error would pass for a good one.
func (p *packer) lost(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ENXIO), errors.Is(err, unix.ESTALE):
		p.stats.Skipped.Vanished++
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		p.stats.Skipped.Unreadable++
	case errors.Is(err, errChanged):
		p.stats.Skipped.Changed++
	default:
		return fmt.Errorf("%s: %w", short(name), err)
	}
	if p.onSkip != nil {
		p.onSkip(name, err)
	}
	return nil
}

var errChanged = errors.New("changed while it was read")

// packEntry writes the entry called base in the current directory of t.
func (p *packer) packEntry(t *tree, base, name string) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	at, err := t.fd()
	if err != nil {
		return p.lost(name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return p.lost(name, err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if p.excluded(t, base, isDir) {
		p.stats.Skipped.Excluded++
		return nil
	}
	if isDir {
		if err := t.push(base); err != nil {
			if errors.Is(err, unix.EACCES) {
				if err := p.write(newEntry(name, &st)); err != nil {
					return err
				}
			}
			return p.lost(name, err)
		}
		defer t.pop()
		return p.packDir(t, name)
	}
	first, linked := p.links[inode{st.Dev, st.Ino}]
	if linked && st.Nlink > 1 {
		e := newEntry(name, &st)
		e.typ, e.link, e.size, e.apparent = typeLink, first, 0, 0
		return p.write(e)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.packFile(at, base, name)
	case unix.S_IFLNK:
		return p.packSymlink(at, base, name, &st)
	case unix.S_IFIFO:
		p.remember(name, &st)
		return p.write(newEntry(name, &st))
	case unix.S_IFSOCK:
		p.stats.Skipped.Sockets++
	default:
		p.stats.Skipped.Devices++
	}
	return nil
}

func (p *packer) excluded(t *tree, base string, isDir bool) bool {
	if len(p.exclude) == 0 {
		return false
	}
	rel := append(t.names, base)
	for _, x := range p.exclude {
		if x.matches(rel, isDir) {
			return true
		}
	}
	return false
}

// remember notes the first name of a file that has several.
func (p *packer) remember(name string, st *unix.Stat_t) {
	if st.Nlink > 1 {
		p.links[inode{st.Dev, st.Ino}] = name
	}
}

// packDir writes the current directory of t and all that is in it.
func (p *packer) packDir(t *tree, name string) error {
	fd, err := t.fd()
	if err != nil {
		return p.lost(name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", short(name), err)
	}
	e := newEntry(name, &st)
	if e.xattrs, err = p.readXattrs(fd); err != nil {
		return fmt.Errorf("%s: %w", short(name), err)
	}
	if err := p.write(e); err != nil {
		return err
	}
	names, err := t.list()
	if err != nil {
		return p.lost(name, err)
	}
	for _, n := range names {
		if err := p.packEntry(t, n, name+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) packSymlink(at int, base, name string, st *unix.Stat_t) error {
	e := newEntry(name, st)
	n, err := retry(func() (int, error) { return unix.Readlinkat(at, base, p.buf) })
	if err != nil {
		if errors.Is(err, unix.EINVAL) { // no symbolic link any more
			err = unix.ENOENT
		}
		return p.lost(name, err)
	}
	e.link = string(p.buf[:n])
	p.remember(name, st)
	return p.write(e)
}

// packFile writes a regular file. It is opened first and looked at then, so
// that header and content are of one and the same file.
func (p *packer) packFile(at int, base, name string) error {
	// O_NONBLOCK: a fifo put in its place must not stop the pack for ever.
	fd, err := openat(at, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.lost(name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return p.lost(name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return p.lost(name, unix.ENOENT)
	}
	e := newEntry(name, &st)
	if e.xattrs, err = p.readXattrs(fd); err != nil {
		return fmt.Errorf("%s: %w", short(name), err)
	}
	segs, sparse, err := findSegments(fd, &st)
	if err != nil {
		return fmt.Errorf("%s: %w", short(name), err)
	}
	var sparseMap []byte
	if sparse {
		var total int64
		sparseMap, total = encodeMap(segs)
		e.sparse, e.size = true, int64(len(sparseMap))+total
	}
	if err := p.write(e); err != nil {
		return err
	}
	p.remember(name, &st)
	if _, err := p.w.Write(sparseMap); err != nil {
		return err
	}
	changed, content := false, int64(0)
	for _, s := range segs {
		short, err := p.copy(fd, s)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		changed = changed || short
		content += s.n
	}
	p.stats.Bytes += content
	if _, err := p.w.Write(zeros[:padding(e.size)]); err != nil {
		return err
	}
	var after unix.Stat_t
	if err := unix.Fstat(fd, &after); err != nil {
		return fmt.Errorf("%s: %w", short(name), err)
	}
	if changed || after.Size != st.Size || after.Mtim != st.Mtim {
		return p.lost(name, errChanged)
	}
	return nil
}

// copy copies one stretch of a file, and writes zeros for what is gone.
func (p *packer) copy(fd int, s segment) (short bool, err error) {
	for s.n > 0 {
		if p.ctx.Err() != nil {
			return short, context.Cause(p.ctx)
		}
		chunk := p.buf[:min(s.n, int64(len(p.buf)))]
		n := 0
		if !short {
			n, err = retry(func() (int, error) { return unix.Pread(fd, chunk, s.off) })
			if err != nil {
				return short, err
			}
		}
		if n == 0 {
			short = true
			clear(chunk)
			n = len(chunk)
		}
		if _, err := p.w.Write(chunk[:n]); err != nil {
			return short, err
		}
		s.off, s.n = s.off+int64(n), s.n-int64(n)
	}
	return short, nil
}

// write writes the header of e and counts it.
func (p *packer) write(e *entry) error {
	p.header = appendHeader(p.header[:0], e)
	if _, err := p.w.Write(p.header); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	p.stats.add(e, 0)
	return nil
}

func newEntry(name string, st *unix.Stat_t) *entry {
	e := &entry{
		name: name, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid,
		mtime: timespec{int64(st.Mtim.Sec), int64(st.Mtim.Nsec)},
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.typ = typeDir
	case unix.S_IFLNK:
		e.typ = typeSymlink
	case unix.S_IFIFO:
		e.typ = typeFifo
	default:
		e.typ = typeReg
		e.size, e.apparent = st.Size, st.Size
	}
	return e
}

// readXattrs returns the attributes to keep. A file system without attributes
// has none; what does not fit into one header is left out and counted.
func (p *packer) readXattrs(fd int) ([]xattr, error) {
	n, err := retry(func() (int, error) { return unix.Flistxattr(fd, p.attrs) })
	if err != nil || n == 0 {
		return nil, ignoreNoXattrs(err)
	}
	var out []xattr
	room := maxRecords - 16<<10 // what the other records may take
	for _, name := range strings.Split(strings.TrimSuffix(string(p.attrs[:n]), "\x00"), "\x00") {
		if !keptXattr(name) {
			p.stats.Skipped.Xattrs++
			continue
		}
		n, err := retry(func() (int, error) { return unix.Fgetxattr(fd, name, p.buf) })
		if err != nil {
			if err := ignoreNoXattrs(err); err != nil {
				return nil, err
			}
			continue
		}
		if room -= n + 3*len(name) + 64; room < 0 {
			p.stats.Skipped.Xattrs++
			continue
		}
		out = append(out, xattr{name, string(p.buf[:n])})
	}
	return out, nil
}

func ignoreNoXattrs(err error) error {
	switch {
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENODATA),
		errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.E2BIG):
		return nil
	}
	return err
}
