package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/alineod/alineod/internal/runtime"
)

// call runs one call to the engine that should be answered at once, and gives
// its error a kind.
func (d *Docker) call(ctx context.Context, doing string, f func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, d.opts.CallTimeout)
	defer cancel()
	return explain(ctx, doing, f(bounded))
}

// explain wraps an error of the engine's client with what was being done and
// with its kind. ctx is the caller's own: where that ended, the error is the
// caller's doing and says nothing of the engine.
func explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("%s: %w", doing, ctxErr)
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("%s: %w: %w", doing, kind, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// kindOf returns the kind of the contract an error belongs to, or nil.
func kindOf(err error) error {
	var netErr *net.OpError
	switch {
	case cerrdefs.IsNotFound(err):
		return runtime.ErrNotFound
	case cerrdefs.IsInvalidArgument(err):
		return runtime.ErrInvalid
	// What follows is silence. An engine that answers with an error of its own
	// (status 500) has answered: that stays without a kind.
	case client.IsErrConnectionFailed(err),
		cerrdefs.IsUnavailable(err),
		errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE),
		errors.As(err, &netErr):
		return runtime.ErrUnreachable
	}
	return nil
}

// errPaused answers what a frozen sandbox cannot do.
func errPaused(id string) error {
	return fmt.Errorf("sandbox %s: %w", id, runtime.ErrPaused)
}
