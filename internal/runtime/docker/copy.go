package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

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
	err = d.cli.CopyToContainer(ctx, info.Handle, dir, archive, container.CopyToContainerOptions{AllowOverwriteDirWithFile: true})
	return d.explainPath(ctx, id, fmt.Sprintf("copying into %s of %s", dir, id), err)
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
