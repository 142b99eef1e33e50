package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// tree is a way down from one directory, held open level by level. Every step
// is an openat that follows no symbolic link, so that whatever is swapped
// underneath, no access leaves the directory it began in.
//
// A tree may be deeper than there are descriptors, and than the kernel takes
// in one path. Levels far above are closed and opened again on the way back.
type tree struct {
	root  int
	names []string
	fds   []int // of names; those below low are closed
	low   int
}

const (
	maxOpen   = 128 // levels held open
	reopenNum = 64  // levels opened again at once
	openDir   = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// openTree opens a directory. Links in the path itself are followed: it comes
// from the operator, not from the archive.
func openTree(dir string) (*tree, error) {
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", dir, err)
	}
	return &tree{root: fd}, nil
}

func (t *tree) close() {
	for _, fd := range t.fds[t.low:] {
		unix.Close(fd)
	}
	unix.Close(t.root)
}

// fd returns the descriptor of the current directory. It stays valid until the
// next push or pop.
func (t *tree) fd() (int, error) {
	top := len(t.names)
	if top == 0 {
		return t.root, nil
	}
	if t.low < top {
		return t.fds[top-1], nil
	}
	at, keep := t.root, max(0, top-reopenNum)
	for i, name := range t.names {
		fd, err := openat(at, name, openDir, 0)
		if i > 0 && i <= keep {
			unix.Close(at) // only passed through
		}
		if err != nil {
			for j := keep; j < i; j++ {
				unix.Close(t.fds[j])
			}
			return -1, fmt.Errorf("opening a directory again: %w", err)
		}
		t.fds[i], at = fd, fd
	}
	t.low = keep
	return at, nil
}

func (t *tree) push(name string) error {
	at, err := t.fd()
	if err != nil {
		return err
	}
	fd, err := openat(at, name, openDir, 0)
	if err != nil {
		return err
	}
	t.names, t.fds = append(t.names, name), append(t.fds, fd)
	if len(t.fds)-t.low > maxOpen {
		unix.Close(t.fds[t.low])
		t.low++
	}
	return nil
}

func (t *tree) pop() {
	top := len(t.fds) - 1
	if t.low <= top {
		unix.Close(t.fds[top])
	}
	t.names, t.fds = t.names[:top], t.fds[:top]
	t.low = min(t.low, top)
}

// walkTo makes the directory named by names the current one. Where create is
// set, those that are missing are made.
func (t *tree) walkTo(names []string, create bool) error {
	common := 0
	for common < len(names) && common < len(t.names) && names[common] == t.names[common] {
		common++
	}
	for len(t.names) > common {
		t.pop()
	}
	for _, name := range names[common:] {
		err := t.push(name)
		if create && errors.Is(err, unix.ENOENT) {
			at, fdErr := t.fd()
			if fdErr != nil {
				return fdErr
			}
			if err = unix.Mkdirat(at, name, 0o755); err == nil {
				err = t.push(name)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in the current directory, sorted.
func (t *tree) list() ([]string, error) {
	at, err := t.fd()
	if err != nil {
		return nil, err
	}
	if _, err := unix.Seek(at, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(at, buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// empty removes all that lies in the current directory. Directories that
// cannot go because something is mounted on them stay, emptied.
func (t *tree) empty(ctx context.Context) error {
	names, err := t.list()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := t.remove(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// remove removes name from the current directory, with all that is in it.
func (t *tree) remove(ctx context.Context, name string) error {
	at, err := t.fd()
	if err != nil {
		return err
	}
	err = unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EACCES) {
		// Not ours to write in, but ours: as its owner we may change that.
		_ = unix.Fchmod(at, 0o700)
		err = unix.Unlinkat(at, name, 0)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = t.push(name)
	if errors.Is(err, unix.EACCES) {
		_ = chmodName(at, name, 0o700)
		err = t.push(name)
	}
	if err != nil {
		return err
	}
	err = t.empty(ctx)
	t.pop()
	if err != nil {
		return err
	}
	if at, err = t.fd(); err != nil {
		return err
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// chmodName changes the mode of name and never of what a link leads to:
// fchmodat alone would follow it.
func chmodName(at int, name string, mode uint32) error {
	fd, err := openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode)
}

func openat(at int, name string, flags int, mode uint32) (int, error) {
	return retry(func() (int, error) { return unix.Openat(at, name, flags, mode) })
}

// retry repeats a system call that a signal interrupted.
func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// writer writes to a descriptor, in order and at its offset.
type writer struct{ fd int }

func (w writer) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := retry(func() (int, error) { return unix.Write(w.fd, p[done:]) })
		if err != nil {
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return done, nil
}
