package checkpoint

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/alineod/alineod/internal/archive"
	"github.com/alineod/alineod/internal/failpoint"
)

// FileStore keeps each archive as one zstd-compressed tar that any tar opens:
// AGENT/SANDBOX/TURN-RANDOM.tar.zst below its directory. A home is a secret
// (it holds the harness's keys), so nobody but the daemon's user may look.
type FileStore struct {
	root   *os.Root
	limits archive.Limits
	// mu keeps a directory from being removed as empty between its making and
	// the first file in it.
	mu     sync.Mutex
	writes map[string]bool // names of Puts in progress, temporary and final
}

// FileOptions are the settings of a FileStore. The zero value is a good one.
type FileOptions struct {
	// Limits bound what one archive may be.
	Limits archive.Limits
}

const (
	suffix    = ".tar.zst"
	tmpSuffix = ".tmp"
	// maxWindow bounds the memory a reader spends on an archive. Level 1
	// writes windows of 4 MiB.
	maxWindow = 8 << 20
)

var refForm = regexp.MustCompile(`^a_[0-9a-f]{8,64}/s_[0-9a-f]{8,64}/[0-9]{6,19}-[0-9a-f]{8}\.tar\.zst(\.tmp)?$`)

// NewFileStore opens the store in dir, which it makes where it is missing.
func NewFileStore(dir string, o FileOptions) (*FileStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the checkpoint store: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the checkpoint store: %w", err)
	}
	return &FileStore{root: root, limits: o.Limits, writes: map[string]bool{}}, nil
}

// Close releases the store's directory. Checkpoints that are open stay so.
func (s *FileStore) Close() error { return s.root.Close() }

// Put implements Store.
func (s *FileStore) Put(ctx context.Context, m Meta, r io.Reader) (Stored, error) {
	if err := m.validate(); err != nil {
		return Stored{}, err
	}
	var random [4]byte
	rand.Read(random[:])
	ref := fmt.Sprintf("%s/%s/%06d-%x%s", m.AgentID, m.SandboxID, m.Turn, random, suffix)
	stored, err := s.put(ctx, ref, r)
	if err != nil {
		return Stored{}, fmt.Errorf("storing %s: %w", ref, full(err))
	}
	return stored, nil
}

// put keeps the one invariant of the store: under a reference without the
// temporary suffix stands a whole, verified archive that is on the disk. Write,
// sync, rename, sync the directories; in that order.
func (s *FileStore) put(ctx context.Context, ref string, r io.Reader) (_ Stored, err error) {
	tmp := ref + tmpSuffix
	f, err := s.create(tmp)
	if err != nil {
		return Stored{}, err
	}
	name := tmp
	defer func() {
		f.Close()
		s.mu.Lock()
		delete(s.writes, tmp)
		delete(s.writes, ref)
		s.mu.Unlock()
		if err != nil {
			// The caller's context may have ended; cleaning up must not.
			err = errors.Join(err, s.remove(name))
		}
	}()
	stored, err := s.compress(ctx, f, r)
	if err != nil {
		return Stored{}, err
	}
	if err := f.Sync(); err != nil {
		return Stored{}, err
	}
	if err := f.Close(); err != nil {
		return Stored{}, err
	}
	failpoint.Hit("checkpoint.written")
	if err := s.root.Rename(tmp, ref); err != nil {
		return Stored{}, err
	}
	name = ref
	failpoint.Hit("checkpoint.renamed")
	for dir := path.Dir(ref); ; dir = path.Dir(dir) {
		if err := s.syncDir(dir); err != nil {
			return Stored{}, err
		}
		if dir == "." {
			break
		}
	}
	stored.Ref = ref
	return stored, nil
}

// create makes the temporary file and the directories above it.
func (s *FileStore) create(tmp string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.root.MkdirAll(path.Dir(tmp), 0o700); err != nil {
		return nil, errors.Join(err, s.removeDirs(tmp))
	}
	f, err := s.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(err, s.removeDirs(tmp))
	}
	s.writes[tmp] = true
	s.writes[strings.TrimSuffix(tmp, tmpSuffix)] = true
	return f, nil
}

// compress copies the archive into f and verifies every byte of it on its way.
func (s *FileStore) compress(ctx context.Context, f io.Writer, r io.Reader) (Stored, error) {
	sum := &summer{w: f, h: sha256.New()}
	// Two blocks in flight: one is matched while the other is written. More
	// would only take memory, as checkpoints of many agents are taken at a time.
	enc, err := zstd.NewWriter(sum, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return Stored{}, err
	}
	stats, err := archive.Verify(ctx, io.TeeReader(r, enc), s.limits)
	if closeErr := enc.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return Stored{}, err
	}
	return Stored{SHA256: hex.EncodeToString(sum.h.Sum(nil)), Bytes: sum.n, Files: stats.Files}, nil
}

// summer writes, counts and hashes.
type summer struct {
	w io.Writer
	h hash.Hash
	n int64
}

func (s *summer) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.h.Write(p[:n])
	s.n += int64(n)
	return n, err
}

func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func (s *FileStore) syncDir(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// open opens the stored file of a whole checkpoint.
func (s *FileStore) open(ref string) (*os.File, error) {
	if !refForm.MatchString(ref) || strings.HasSuffix(ref, tmpSuffix) {
		return nil, fmt.Errorf("%w: reference %q", ErrInvalid, ref)
	}
	f, err := s.root.Open(ref)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() == 0) {
		// An empty file would read as an empty stream, without any error.
		err = ErrDamaged
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Open implements Store.
func (s *FileStore) Open(ctx context.Context, ref string) (io.ReadCloser, error) {
	f, err := s.open(ref)
	if err != nil {
		return nil, fmt.Errorf("opening checkpoint %s: %w", ref, err)
	}
	dec, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("opening checkpoint %s: %w", ref, err)
	}
	return &reader{ctx: ctx, ref: ref, file: f, dec: dec}, nil
}

// reader is an open checkpoint.
type reader struct {
	ctx  context.Context
	ref  string
	file *os.File
	dec  *zstd.Decoder
	some bool // anything was read
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.dec.Read(p)
	r.some = r.some || n > 0
	if err == nil || err == io.EOF && r.some {
		return n, err
	}
	var failed *fs.PathError
	if errors.As(err, &failed) { // the file could not be read: that is no verdict
		return n, err
	}
	return n, fmt.Errorf("%w: reading %s: %w", ErrDamaged, r.ref, noEOF(err))
}

// noEOF keeps a reader of the tar from taking damage for the end of a stream.
// A stream that ends without a byte is damage too: zstd skips frames whose first
// bytes were flipped into those of a comment.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("cut short")
	}
	return err
}

func (r *reader) Close() error {
	r.dec.Close()
	return r.file.Close()
}

// Verify implements Store. It compares the hash of the whole file, which finds
// a short one as well.
func (s *FileStore) Verify(ctx context.Context, ref, want string) error {
	f, err := s.open(ref)
	if err != nil {
		return fmt.Errorf("verifying checkpoint %s: %w", ref, err)
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("verifying checkpoint %s: %w", ref, err)
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("verifying checkpoint %s: %w: its hash is %s, not %s", ref, ErrDamaged, got, want)
	}
	return nil
}

// Remove implements Store.
func (s *FileStore) Remove(ctx context.Context, ref string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !refForm.MatchString(ref) {
		return fmt.Errorf("%w: reference %q", ErrInvalid, ref)
	}
	if err := s.remove(ref); err != nil {
		return fmt.Errorf("removing checkpoint %s: %w", ref, err)
	}
	return nil
}

// remove removes a file, and the directories above it that it leaves empty.
func (s *FileStore) remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.removeDirs(name)
}

func (s *FileStore) removeDirs(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		err := s.root.Remove(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
			return nil
		default:
			return err
		}
	}
	return nil
}

// List implements Store. Files that are not of the store's making are left
// out, so that Sweep never touches them.
func (s *FileStore) List(ctx context.Context) ([]string, error) {
	var refs []string
	err := fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) && name != "." {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		busy := s.writes[name]
		s.mu.Unlock()
		if !d.IsDir() && !busy && refForm.MatchString(name) {
			refs = append(refs, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing checkpoints: %w", err)
	}
	slices.Sort(refs)
	return refs, nil
}
