package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// treeCopy copies a directory with all that makes it what it is: modes, owners
// (for root), times, links of both kinds, holes and extended attributes.
// Sockets and devices are left out: they mean nothing in a copy.
type treeCopy struct {
	ctx   context.Context
	bytes int64
	links map[inode]string // files of several names, by their first copy
	dirs  []copiedDir
}

type inode struct{ dev, ino uint64 }

type copiedDir struct {
	path string
	st   *syscall.Stat_t
}

// copyTree copies the directory src to dst, which must not exist, and returns
// the size of the regular files.
func copyTree(ctx context.Context, src, dst string) (int64, error) {
	c := &treeCopy{ctx: ctx, links: make(map[inode]string)}
	err := filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		return c.entry(path, filepath.Join(dst, rel), e)
	})
	if err != nil {
		return 0, fmt.Errorf("copying %s: %w", src, err)
	}
	// Last and from within, for making an entry changes its directory's time,
	// and a directory may be one that nothing can be written into.
	for i := len(c.dirs) - 1; i >= 0; i-- {
		if err := finish(c.dirs[i].path, c.dirs[i].st); err != nil {
			return 0, fmt.Errorf("copying %s: %w", src, err)
		}
	}
	return c.bytes, nil
}

func (c *treeCopy) entry(src, dst string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: no state", src)
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		if err := os.Mkdir(dst, 0o700); err != nil {
			return err
		}
		c.dirs = append(c.dirs, copiedDir{dst, st})
		return copyAttributes(src, dst)
	case fs.ModeSocket, fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice, fs.ModeIrregular:
		return nil
	}
	if st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := c.links[id]; ok {
			return os.Link(first, dst)
		}
		c.links[id] = dst
	}
	switch info.Mode().Type() {
	case 0:
		n, err := copyFile(src, dst)
		if err != nil {
			return err
		}
		c.bytes += n
	case fs.ModeSymlink:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, dst); err != nil {
			return err
		}
	case fs.ModeNamedPipe:
		if err := unix.Mkfifo(dst, 0o600); err != nil {
			return err
		}
	}
	if err := copyAttributes(src, dst); err != nil {
		return err
	}
	return finish(dst, st)
}

// finish gives a copy its owner, mode and times, in this order: a change of
// the owner takes the set-id bits away.
func finish(dst string, st *syscall.Stat_t) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: dst, Err: err}
		}
	}
	times := []unix.Timespec{
		{Sec: st.Atim.Sec, Nsec: st.Atim.Nsec},
		{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec},
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: dst, Err: err}
	}
	return nil
}

// copyFile copies the content: as a clone that shares its blocks where the
// file system has that, else the parts between the holes.
func copyFile(src, dst string) (_ int64, err error) {
	// Not following a link, nor waiting at a pipe, that has taken its place.
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return 0, err
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return st.Size(), nil
	}
	if err := out.Truncate(st.Size()); err != nil {
		return 0, err
	}
	for at := int64(0); at < st.Size(); {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if err != nil {
			return 0, &os.PathError{Op: "seek", Path: src, Err: err}
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return 0, &os.PathError{Op: "seek", Path: src, Err: err}
		}
		if _, err := in.Seek(data, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.CopyN(out, in, hole-data); err != nil {
			return 0, err
		}
		at = hole
	}
	return st.Size(), nil
}

// copyAttributes copies the extended attributes, as far as they may be set.
func copyAttributes(src, dst string) error {
	size, err := unix.Llistxattr(src, nil)
	if errors.Is(err, unix.ENOTSUP) || (err == nil && size == 0) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: src, Err: err}
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(src, names); err != nil {
		return &os.PathError{Op: "listxattr", Path: src, Err: err}
	}
	for _, name := range splitZero(names[:size]) {
		size, err := unix.Lgetxattr(src, name, nil)
		if err != nil {
			continue // not ours to read, or gone
		}
		value := make([]byte, size)
		if size, err = unix.Lgetxattr(src, name, value); err != nil {
			continue
		}
		err = unix.Lsetxattr(dst, name, value[:size], 0)
		// Some name spaces are the kernel's or root's own.
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP) {
			return &os.PathError{Op: "setxattr " + name, Path: dst, Err: err}
		}
	}
	return nil
}

func splitZero(b []byte) (names []string) {
	for start, i := 0, 0; i < len(b); i++ {
		if b[i] == 0 {
			names = append(names, string(b[start:i]))
			start = i + 1
		}
	}
	return names
}
