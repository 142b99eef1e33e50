package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/docker/docker/api/types/container"

	"github.com/alineod/alineod/internal/runtime"
)

// CopyOut implements runtime.Runtime.
func (d *Docker) CopyOut(ctx context.Context, id, file string) (io.ReadCloser, error) {
	if !path.IsAbs(file) {
		return nil, fmt.Errorf("copying from %s: path %q is not absolute: %w", id, file, runtime.ErrInvalid)
	}
	info, err := d.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	// No bound but the caller's: the archive is as long as it is.
	archive, _, err := d.cli.CopyFromContainer(ctx, info.Handle, file)
	if err != nil {
		return nil, d.explainPath(ctx, id, fmt.Sprintf("copying %s from %s", file, id), err)
	}
	return archive, nil
}

// CopyIn implements runtime.Runtime.
func (d *Docker) CopyIn(ctx context.Context, id, dir string, archive io.Reader) error {
	if !path.IsAbs(dir) {
		return fmt.Errorf("copying into %s: path %q is not absolute: %w", id, dir, runtime.ErrInvalid)
	}
	info, err := d.Inspect(ctx, id)
	if err != nil {
		return err
	}
	source := &sourceReader{r: archive}
	err = d.cli.CopyToContainer(ctx, info.Handle, dir, source, container.CopyToContainerOptions{AllowOverwriteDirWithFile: true})
	if readErr := source.err(); err != nil && readErr != nil && ctx.Err() == nil {
		// The engine's client takes it for a failed connection.
		return fmt.Errorf("copying into %s of %s: reading the archive: %w", dir, id, readErr)
	}
	return d.explainPath(ctx, id, fmt.Sprintf("copying into %s of %s", dir, id), err)
}

// sourceReader remembers the error of the reader it passes on.
type sourceReader struct {
	r io.Reader
	// The connection may still be reading when its request has failed.
	mu     sync.Mutex
	failed error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = err
	}
	return n, err
}

func (s *sourceReader) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// explainPath tells a missing path from a missing sandbox: the engine has one
// word for both, and ErrNotFound would have the sandbox taken for gone.
func (d *Docker) explainPath(ctx context.Context, id, doing string, err error) error {
	err = explain(ctx, doing, err)
	if !errors.Is(err, runtime.ErrNotFound) {
		return err
	}
	if _, lookErr := d.Inspect(ctx, id); lookErr != nil {
		return lookErr
	}
	return fmt.Errorf("%s: no such path: %w", doing, runtime.ErrInvalid)
}
