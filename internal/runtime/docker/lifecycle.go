package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

func zapImage(ref string) zap.Field { return zap.String("image", ref) }

// Start implements runtime.Runtime.
func (d *Docker) Start(ctx context.Context, id string) error {
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	info, err := d.Inspect(ctx, id)
	if err != nil || info.State == runtime.StateRunning || info.State == runtime.StatePaused {
		return err
	}
	return d.start(ctx, info)
}

// Stop implements runtime.Runtime. The engine freezes nothing for longer: a
// paused sandbox is let go first, for it could not hear the signal.
func (d *Docker) Stop(ctx context.Context, id string, grace time.Duration) error {
	info, err := d.Inspect(ctx, id)
	if err != nil || info.State == runtime.StateStopped || info.State == runtime.StateCreated {
		return err
	}
	if info.State == runtime.StatePaused {
		if err := d.Unpause(ctx, id); err != nil {
			return err
		}
	}
	// The engine counts in whole seconds; a part of one is one, since none at
	// all would be SIGKILL without warning.
	seconds := int((grace + time.Second - 1) / time.Second)
	bounded, cancel := context.WithTimeout(ctx, grace+d.opts.CallTimeout)
	defer cancel()
	err = d.cli.ContainerStop(bounded, info.Handle, container.StopOptions{Timeout: &seconds})
	return explain(ctx, "stopping "+id, err)
}

// Pause implements runtime.Runtime.
func (d *Docker) Pause(ctx context.Context, id string) error {
	return d.freeze(ctx, "pausing "+id, id, runtime.StatePaused, d.cli.ContainerPause)
}

// Unpause implements runtime.Runtime.
func (d *Docker) Unpause(ctx context.Context, id string) error {
	return d.freeze(ctx, "unpausing "+id, id, runtime.StateRunning, d.cli.ContainerUnpause)
}

// freeze brings a live sandbox into the wanted state. The engine calls it an
// error if the sandbox is in that state already.
func (d *Docker) freeze(ctx context.Context, doing, id string, want runtime.State, change func(context.Context, string) error) error {
	info, err := d.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if info.State == want {
		return nil
	}
	if info.State != runtime.StateRunning && info.State != runtime.StatePaused {
		return fmt.Errorf("%s: %s: %w", doing, info.State, runtime.ErrNotRunning)
	}
	err = d.call(ctx, doing, func(ctx context.Context) error { return change(ctx, info.Handle) })
	if err == nil || errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	// Another may have done it, or it ended, between the look and the change.
	now, lookErr := d.Inspect(ctx, id)
	switch {
	case lookErr != nil:
		return lookErr
	case now.State == want:
		return nil
	case now.State != runtime.StateRunning && now.State != runtime.StatePaused:
		return fmt.Errorf("%s: %s: %w", doing, now.State, runtime.ErrNotRunning)
	}
	return err
}

// Remove implements runtime.Runtime.
func (d *Docker) Remove(ctx context.Context, id string) error {
	if !ids.Valid(ids.Sandbox, id) {
		return fmt.Errorf("removing %q: %w", id, runtime.ErrInvalid)
	}
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return d.removeOurs(ctx, id)
}

// removeOurs removes a sandbox's container and directory, if they are ours.
// The caller holds the sandbox's lock.
func (d *Docker) removeOurs(ctx context.Context, id string) error {
	_, raw, owned, err := d.look(ctx, id)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return err
	}
	if raw.ContainerJSONBase != nil {
		if !owned {
			return nil // none of ours bears the id, and its directory is not ours either
		}
		if err := d.removeContainer(ctx, raw.ID); err != nil {
			return err
		}
		failpoint.Hit("docker.removed")
	}
	return d.removeDir(id)
}

// removeContainer removes a container with its volumes and waits until it is
// gone, also where another has begun that already.
func (d *Docker) removeContainer(ctx context.Context, handle string) error {
	doing := "removing container " + handle
	err := d.call(ctx, doing, func(ctx context.Context) error {
		return d.cli.ContainerRemove(ctx, handle, container.RemoveOptions{Force: true, RemoveVolumes: true})
	})
	switch {
	case err == nil, errors.Is(err, runtime.ErrNotFound):
		return nil
	case !cerrdefs.IsConflict(err):
		return err
	}
	err = d.call(ctx, doing, func(ctx context.Context) error {
		gone, failed := d.cli.ContainerWait(ctx, handle, container.WaitConditionRemoved)
		select {
		case <-gone:
			return nil
		case err := <-failed:
			return err
		}
	})
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	return err
}

// removeDir deletes the host directory of a sandbox.
func (d *Docker) removeDir(id string) error {
	if !ids.Valid(ids.Sandbox, id) {
		return fmt.Errorf("removing directory of %q: %w", id, runtime.ErrInvalid)
	}
	d.known.Delete(id)
	if err := os.RemoveAll(d.sandboxDir(id)); err != nil {
		return fmt.Errorf("removing directory of %s: %w", id, err)
	}
	return nil
}

// Kick implements runtime.Runtime.
func (d *Docker) Kick(ctx context.Context, id string) error {
	handle, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	err = d.call(ctx, "signalling "+id, func(ctx context.Context) error {
		return d.cli.ContainerKill(ctx, handle, "SIGUSR1")
	})
	if cerrdefs.IsConflict(err) {
		return fmt.Errorf("%w: %w", runtime.ErrNotRunning, err)
	}
	return err
}
