package local

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alineod/alineod/internal/runtime"
)

// below returns a path as one below the sandbox's home directory. Nothing else
// of this machine is copied in or out; links that lead out are refused by
// os.Root.
func (l *Local) below(id, p string) (string, error) {
	rel := p
	if filepath.IsAbs(p) {
		var err error
		if rel, err = filepath.Rel(l.home(id), p); err != nil {
			return "", fmt.Errorf("path %q: %w: %w", p, runtime.ErrInvalid, err)
		}
	}
	rel = filepath.Clean(rel)
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("path %q is not in the sandbox's home: %w", p, runtime.ErrInvalid)
	}
	return rel, nil
}

// open opens a sandbox's home directory, of one that runs or does not.
func (l *Local) open(id, p string) (_ *os.Root, rel string, err error) {
	if _, err := l.record(id); err != nil {
		return nil, "", err
	}
	if rel, err = l.below(id, p); err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(l.home(id))
	return root, rel, err
}

// CopyOut implements runtime.Runtime. The path is in the home directory; a
// relative one starts there.
func (l *Local) CopyOut(ctx context.Context, id, p string) (io.ReadCloser, error) {
	root, rel, err := l.open(id, p)
	if err == nil {
		if _, err = root.Lstat(rel); err != nil {
			err = errors.Join(fmt.Errorf("%w: %w", runtime.ErrInvalid, err), root.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("copying %s from %s: %w", p, id, err)
	}
	name := path.Base(filepath.ToSlash(rel))
	if rel == "." {
		name = "home"
	}
	r, w := io.Pipe()
	// A reader that is never closed must not keep Close from returning.
	unhook := context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	unhookStop := context.AfterFunc(l.stop, func() { w.CloseWithError(l.stop.Err()) })
	l.wg.Go(func() {
		defer unhook()
		defer unhookStop()
		defer root.Close()
		tw := tar.NewWriter(w)
		err := (&packer{root: root, tw: tw, links: make(map[inode]string)}).walk(rel, name)
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err) // nil is EOF
	})
	return r, nil
}

type packer struct {
	root  *os.Root
	tw    *tar.Writer
	links map[inode]string
}

// walk writes the entry at rel under the given name, and what is below it.
func (p *packer) walk(rel, name string) error {
	info, err := p.root.Lstat(rel)
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = p.root.Readlink(rel); err != nil {
			return err
		}
	}
	if info.Mode()&(fs.ModeSocket|fs.ModeDevice|fs.ModeIrregular) != 0 {
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Format = name, tar.FormatPAX // for times below the second
	if info.IsDir() {
		h.Name += "/"
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && info.Mode().IsRegular() {
		id := inode{st.Dev, st.Ino}
		if first, again := p.links[id]; again {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(h)
		}
		p.links[id] = name
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	switch {
	case info.Mode().IsRegular():
		return p.content(rel, h.Size)
	case info.IsDir():
		return p.below(rel, name)
	}
	return nil
}

func (p *packer) below(rel, name string) error {
	d, err := p.root.Open(rel)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, n := range names {
		err := p.walk(filepath.Join(rel, n), name+"/"+n)
		// The sandbox may be at work: what went meanwhile is left out.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (p *packer) content(rel string, size int64) error {
	// A pipe that has taken the file's place must not be waited at.
	f, err := p.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(p.tw, f, size)
	return err
}

// CopyIn implements runtime.Runtime. The path is in the home directory; a
// relative one starts there. An archive with anything but files, directories
// and links, or with a name that leads out, is refused at that entry.
func (l *Local) CopyIn(ctx context.Context, id, p string, archive io.Reader) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copying into %s of %s: %w", p, id, err)
		}
	}()
	root, rel, err := l.open(id, p)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.OpenRoot(rel)
	if err != nil {
		return fmt.Errorf("%w: %w", runtime.ErrInvalid, err)
	}
	defer dir.Close()
	var dirs []*tar.Header
	for tr := tar.NewReader(archive); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h.Name = path.Clean(h.Name)
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("name %q leads out: %w", h.Name, runtime.ErrInvalid)
		}
		if err := unpack(dir, h, tr); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir && h.Name != "." {
			dirs = append(dirs, h)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := dress(dir, dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

// unpack makes one entry, in place of what is there unless both are directories.
func unpack(dir *os.Root, h *tar.Header, content io.Reader) error {
	if h.Name == "." {
		return nil
	}
	if parent := path.Dir(h.Name); parent != "." {
		if err := dir.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	there, err := dir.Lstat(h.Name)
	if err == nil && !(there.IsDir() && h.Typeflag == tar.TypeDir) {
		if err := dir.RemoveAll(h.Name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err == nil && there.IsDir() {
			return nil
		}
		return dir.Mkdir(h.Name, 0o700)
	case tar.TypeReg:
		f, err := dir.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		return dress(dir, h)
	case tar.TypeSymlink:
		if err := dir.Symlink(h.Linkname, h.Name); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			return dir.Lchown(h.Name, h.Uid, h.Gid)
		}
		return nil
	case tar.TypeLink:
		target := path.Clean(h.Linkname)
		if !filepath.IsLocal(target) || strings.HasPrefix(h.Linkname, "/") {
			return fmt.Errorf("link %q leads out: %w", h.Name, runtime.ErrInvalid)
		}
		return dir.Link(target, h.Name)
	}
	return fmt.Errorf("entry %q of type %q: %w", h.Name, h.Typeflag, runtime.ErrInvalid)
}

// dress gives an entry its owner, mode and time.
func dress(dir *os.Root, h *tar.Header) error {
	if os.Geteuid() == 0 {
		if err := dir.Lchown(h.Name, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if err := dir.Chmod(h.Name, h.FileInfo().Mode()); err != nil {
		return err
	}
	return dir.Chtimes(h.Name, h.ModTime, h.ModTime)
}
