package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// refPrefix marks the reference of an image that is a directory.
const refPrefix = "local:"

// imageRecord is what image.json holds. The image is the directory
// <state>/local-images/<name>-<n>; of a name the greatest n counts.
type imageRecord struct {
	Instance  string
	Name      string
	Labels    map[string]string
	Bytes     int64
	CreatedAt time.Time

	number int
	dir    string
}

const imageFile = "image.json"

func (l *Local) imagesDir() string { return filepath.Join(l.opts.StateDir, "local-images") }

func (r imageRecord) image() runtime.Image {
	return runtime.Image{Ref: refPrefix + r.Name, Labels: r.Labels, Bytes: r.Bytes, CreatedAt: r.CreatedAt}
}

// imageRecords reads all images, of every instance and number.
func (l *Local) imageRecords() ([]imageRecord, error) {
	entries, err := os.ReadDir(l.imagesDir())
	if err != nil {
		return nil, err
	}
	var found []imageRecord
	for _, e := range entries {
		name, n, ok := cutLast(e.Name(), "-")
		number, err := strconv.Atoi(n)
		if !ok || err != nil || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		rec := imageRecord{number: number, dir: filepath.Join(l.imagesDir(), e.Name())}
		err = readRecord(filepath.Join(rec.dir, imageFile), &rec)
		if err == nil && rec.Name != name {
			err = fmt.Errorf("it says %q", rec.Name)
		}
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				l.log.Error("image set aside", zap.String("image", e.Name()), zap.Error(err))
			}
			continue
		}
		found = append(found, rec)
	}
	return found, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// newest returns the newest image of a reference, of this instance.
func (l *Local) newest(ref string) (imageRecord, error) {
	var best imageRecord
	found, err := l.imageRecords()
	if err != nil {
		return best, fmt.Errorf("image %q: %w", ref, err)
	}
	for _, r := range found {
		if r.Instance == l.opts.Instance && refPrefix+r.Name == ref && r.number > best.number {
			best = r
		}
	}
	if best.dir == "" {
		return best, fmt.Errorf("image %q: %w", ref, runtime.ErrNotFound)
	}
	return best, nil
}

func lockName(ref string) string { return "image " + ref }

// fill makes a home directory out of an image.
func (l *Local) fill(ctx context.Context, home, ref string) error {
	unlock, err := l.locks.Lock(ctx, lockName(ref))
	if err != nil {
		return err
	}
	defer unlock()
	img, err := l.newest(ref)
	if err != nil {
		return err
	}
	_, err = copyTree(ctx, filepath.Join(img.dir, "home"), home)
	return err
}

// Commit implements runtime.Runtime: a copy of the home directory. A sandbox
// that runs is frozen for as long as that takes.
func (l *Local) Commit(ctx context.Context, id, name string, labels map[string]string) (_ runtime.Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("committing %s: %w", id, err)
		}
	}()
	if err := runtime.CheckName(name); err != nil {
		return runtime.Image{}, err
	}
	unlock, err := l.locks.Lock(ctx, id)
	if err != nil {
		return runtime.Image{}, err
	}
	defer unlock()
	if _, err := l.record(id); err != nil {
		return runtime.Image{}, err
	}
	if first, alive := l.firstProcess(id); alive && l.frozenFor(id) == "" {
		if err := l.freeze(ctx, id, first, frozenCommit); err != nil {
			return runtime.Image{}, err
		}
		defer func() { err = errors.Join(err, l.thaw(id, first.PID)) }()
	}
	aside := filepath.Join(l.imagesDir(), l.newName(name)+"."+ids.New("x"))
	if err := os.Mkdir(aside, 0o755); err != nil {
		return runtime.Image{}, err
	}
	rec := imageRecord{
		Instance: l.opts.Instance, Name: name, Labels: maps.Clone(labels), CreatedAt: l.clock.Now().UTC(), dir: aside,
	}
	rec.Bytes, err = copyTree(ctx, l.home(id), filepath.Join(aside, "home"))
	if err == nil {
		err = writeRecord(filepath.Join(aside, imageFile), rec)
	}
	if err == nil {
		// The name must not be there before the files are.
		err = syncFileSystem(aside)
	}
	if err == nil {
		failpoint.Hit("local.commit")
		err = l.publishImage(ctx, rec)
	}
	if err != nil {
		return runtime.Image{}, errors.Join(err, removeTree(aside))
	}
	return rec.image(), nil
}

// syncFileSystem makes all that was written durable, in one call for however
// many files.
func syncFileSystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// publishImage puts a finished image in its place and lets those go that it
// takes the place of.
func (l *Local) publishImage(ctx context.Context, rec imageRecord) error {
	unlock, err := l.locks.Lock(ctx, lockName(rec.image().Ref))
	if err != nil {
		return err
	}
	defer unlock()
	found, err := l.imageRecords()
	if err != nil {
		return err
	}
	next := 1
	for _, r := range found {
		if r.Name == rec.Name {
			next = max(next, r.number+1)
		}
	}
	if err := os.Rename(rec.dir, filepath.Join(l.imagesDir(), rec.Name+"-"+strconv.Itoa(next))); err != nil {
		return err
	}
	if err := runtime.SyncDir(l.imagesDir()); err != nil {
		return err
	}
	return l.dropImages(found, rec.Name)
}

// dropImages deletes those of found that are of this instance and name. The
// caller holds the image's lock.
func (l *Local) dropImages(found []imageRecord, name string) error {
	var errs []error
	for _, r := range found {
		if r.Instance == l.opts.Instance && r.Name == name {
			errs = append(errs, l.discard(r.dir, name))
		}
	}
	return errors.Join(errs...)
}

// Image implements runtime.Runtime.
func (l *Local) Image(_ context.Context, ref string) (runtime.Image, error) {
	rec, err := l.newest(ref)
	if err != nil {
		return runtime.Image{}, err
	}
	return rec.image(), nil
}

// Images implements runtime.Runtime.
func (l *Local) Images(context.Context) ([]runtime.Image, error) {
	found, err := l.imageRecords()
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	newest := make(map[string]imageRecord)
	for _, r := range found {
		if r.Instance == l.opts.Instance && r.number > newest[r.Name].number {
			newest[r.Name] = r
		}
	}
	images := make([]runtime.Image, 0, len(newest))
	for _, r := range newest {
		images = append(images, r.image())
	}
	return images, nil
}

// RemoveImage implements runtime.Runtime.
func (l *Local) RemoveImage(ctx context.Context, ref string) error {
	unlock, err := l.locks.Lock(ctx, lockName(ref))
	if err != nil {
		return err
	}
	defer unlock()
	found, err := l.imageRecords()
	if err == nil {
		name, ours := strings.CutPrefix(ref, refPrefix)
		if !ours {
			return nil // there are no others
		}
		err = l.dropImages(found, name)
	}
	if err != nil {
		return fmt.Errorf("removing image %q: %w", ref, err)
	}
	return nil
}
