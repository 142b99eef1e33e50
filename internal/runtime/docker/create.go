package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/runtime"
)

const (
	// minMemory is the engine's own lower bound.
	minMemory = 6 << 20
	// settleTimeout is how long a call that changes something may go on after
	// its caller has left, so that what it made can be found and removed.
	settleTimeout = 10 * time.Second
	// nameTries bounds the attempts to get a name that a container in removal
	// still holds.
	nameTries = 5
)

// Create implements runtime.Runtime.
func (d *Docker) Create(ctx context.Context, req runtime.CreateRequest) (runtime.Info, error) {
	if err := req.Check(); err != nil {
		return runtime.Info{}, err
	}
	if req.Image == "" {
		return runtime.Info{}, fmt.Errorf("creating %s: no image: %w", req.SandboxID, runtime.ErrInvalid)
	}
	if req.MemoryBytes != 0 && req.MemoryBytes < minMemory {
		return runtime.Info{}, fmt.Errorf("creating %s: memory %d: below %d: %w", req.SandboxID, req.MemoryBytes, minMemory, runtime.ErrInvalid)
	}
	unlock, err := d.locks.Lock(ctx, req.SandboxID)
	if err != nil {
		return runtime.Info{}, err
	}
	defer unlock()

	for range nameTries {
		info, raw, owned, err := d.look(ctx, req.SandboxID)
		switch {
		case err == nil && !owned, err == nil && info.Labels != req.Labels:
			return runtime.Info{}, fmt.Errorf("creating %s: container %s: %w", req.SandboxID, raw.ID, runtime.ErrForeign)
		case err == nil:
			return d.adopt(ctx, info)
		case !errors.Is(err, runtime.ErrNotFound):
			return runtime.Info{}, err
		case raw.ContainerJSONBase != nil && !owned:
			return runtime.Info{}, fmt.Errorf("creating %s: container %s: %w", req.SandboxID, raw.ID, runtime.ErrForeign)
		case raw.ContainerJSONBase != nil:
			// Ours, and half removed: it holds the name until it is gone.
			if err := d.removeContainer(ctx, raw.ID); err != nil {
				return runtime.Info{}, err
			}
		}
		info, err = d.create(ctx, req)
		if !cerrdefs.IsConflict(err) {
			return info, err
		}
	}
	return runtime.Info{}, fmt.Errorf("creating %s: its name stays taken: %w", req.SandboxID, runtime.ErrForeign)
}

// adopt takes over a container that an earlier Create made.
func (d *Docker) adopt(ctx context.Context, info runtime.Info) (runtime.Info, error) {
	if info.State == runtime.StateRunning || info.State == runtime.StatePaused {
		return info, nil
	}
	if err := d.start(ctx, info); err != nil {
		// One that never ran holds nothing that could be lost.
		if info.State == runtime.StateCreated {
			err = errors.Join(err, d.discard(ctx, info.SandboxID))
		}
		return runtime.Info{}, err
	}
	return d.Inspect(ctx, info.SandboxID)
}

// create makes and starts the container. Its error is a conflict if the name
// was taken meanwhile.
func (d *Docker) create(ctx context.Context, req runtime.CreateRequest) (_ runtime.Info, err error) {
	if err := d.CheckStateDir(ctx); err != nil { // settles the transport
		return runtime.Info{}, err
	}
	base, err := d.baseImage(ctx, req.Image)
	if err != nil {
		return runtime.Info{}, err
	}
	cfg, host, err := d.configs(req, base)
	if err != nil {
		return runtime.Info{}, err
	}
	if d.Transport() == TransportSocket {
		if err := os.MkdirAll(d.sandboxDir(req.SandboxID), 0o755); err != nil {
			return runtime.Info{}, fmt.Errorf("creating %s: %w", req.SandboxID, err)
		}
	}
	failpoint.Hit("docker.create")

	// The engine goes on with a creation whose caller has left. Its end is
	// awaited, so that what it made does not appear after the clean-up.
	var made container.CreateResponse
	settled, cancel := settle(ctx)
	err = d.call(settled, "creating container of "+req.SandboxID, func(ctx context.Context) (err error) {
		made, err = d.cli.ContainerCreate(ctx, cfg, host, nil, nil, containerName(req.SandboxID))
		return err
	})
	cancel()
	if cerrdefs.IsConflict(err) {
		return runtime.Info{}, err // the directory is that of the one that holds the name
	}
	failpoint.Hit("docker.created")
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = d.start(ctx, runtime.Info{Labels: req.Labels, Handle: made.ID, State: runtime.StateCreated})
	}
	if err == nil {
		var info runtime.Info
		info, err = d.Inspect(ctx, req.SandboxID)
		if err == nil && info.State == runtime.StateRunning {
			return info, nil
		}
		if err == nil {
			err = fmt.Errorf("its first process ended at once with exit code %d: %s", info.ExitCode, d.lastWords(ctx, info.Handle))
		}
	}
	if errors.Is(err, runtime.ErrNotFound) {
		// Not the image, which was there a moment ago: a network, say. The
		// kind would have the caller make an image anew.
		err = errors.New(err.Error())
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = errors.Join(ctxErr, err)
	}
	return runtime.Info{}, errors.Join(
		fmt.Errorf("creating %s: %w", req.SandboxID, err), d.discard(ctx, req.SandboxID))
}

// lastWords is what a container wrote last, for an error's text.
func (d *Docker) lastWords(ctx context.Context, handle string) string {
	said := &tail{max: 512}
	_ = d.call(ctx, "reading the log of "+handle, func(ctx context.Context) error {
		log, err := d.cli.ContainerLogs(ctx, handle, container.LogsOptions{ShowStdout: true, ShowStderr: true, Tail: "5"})
		if err != nil {
			return err
		}
		defer log.Close()
		_, err = stdcopy.StdCopy(said, said, log)
		return err
	})
	return said.String()
}

// settle returns a context that outlives ctx by settleTimeout at most.
func settle(ctx context.Context) (context.Context, context.CancelFunc) {
	settled, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(settleTimeout, cancel)
		context.AfterFunc(settled, func() { timer.Stop() })
	})
	return settled, func() { unhook(); cancel() }
}

// discard removes what a failed creation left, though its caller may be gone.
// A container of that name that is another's stays.
func (d *Docker) discard(ctx context.Context, id string) error {
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := d.removeOurs(fresh, id); err != nil {
		return fmt.Errorf("clearing away: %w", err)
	}
	return nil
}

// start starts a container. In exec mode one that never ran is first given
// the executable: the creation may have been cut short before that.
func (d *Docker) start(ctx context.Context, info runtime.Info) error {
	id := info.SandboxID
	if d.Transport() == TransportSocket {
		// The engine would refuse to mount what is not there.
		if err := os.MkdirAll(d.sandboxDir(id), 0o755); err != nil {
			return fmt.Errorf("starting %s: %w", id, err)
		}
	} else if info.State == runtime.StateCreated {
		if err := d.copyBinary(ctx, id, info.Handle); err != nil {
			return err
		}
	}
	// Starts beyond that many only make each other slower, up to the point
	// where the engine's slowness is taken for its silence.
	select {
	case d.starts <- struct{}{}:
		defer func() { <-d.starts }()
	case <-ctx.Done():
		return fmt.Errorf("starting %s: %w", id, ctx.Err())
	}
	settled, cancel := settle(ctx)
	defer cancel()
	err := d.call(settled, "starting "+id, func(ctx context.Context) error {
		return d.cli.ContainerStart(ctx, info.Handle, container.StartOptions{})
	})
	failpoint.Hit("docker.started")
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// baseImage describes the image a sandbox is made from.
func (d *Docker) baseImage(ctx context.Context, ref string) (image.InspectResponse, error) {
	var base image.InspectResponse
	inspect := func() error {
		return d.call(ctx, "inspecting image "+ref, func(ctx context.Context) (err error) {
			base, err = d.cli.ImageInspect(ctx, ref)
			return err
		})
	}
	err := inspect()
	if errors.Is(err, runtime.ErrNotFound) && d.opts.Pull {
		if err := d.pull(ctx, ref); err != nil {
			return base, err
		}
		err = inspect()
	}
	return base, err
}

// pull fetches an image. It takes as long as it takes: ctx is its bound.
func (d *Docker) pull(ctx context.Context, ref string) error {
	doing := "pulling image " + ref
	d.log.Info("pulling image", zapImage(ref))
	stream, err := d.cli.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return explain(ctx, doing, err)
	}
	defer stream.Close()
	// The answer's status was sent before the work began: failure is in the stream.
	for messages := json.NewDecoder(stream); ; {
		var m struct {
			Error string `json:"error"`
		}
		switch err := messages.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return explain(ctx, doing, err)
		case m.Error != "":
			return fmt.Errorf("%s: %s", doing, m.Error)
		}
	}
}

// configs says what container a request amounts to.
func (d *Docker) configs(req runtime.CreateRequest, base image.InspectResponse) (*container.Config, *container.HostConfig, error) {
	user := req.Bridge.User
	if user == "" && base.Config != nil {
		user = base.Config.User
	}
	if user == "0:0" {
		user = "" // what a commit makes of an image without a user
	}
	init := runtime.InitCommand{SandboxID: req.SandboxID, Dir: guestDir, User: user, Workdir: req.Bridge.Workdir}
	env := make([]string, 0, len(req.Env))
	for k, v := range req.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	mounts, err := d.mounts(req.SandboxID)
	if err != nil {
		return nil, nil, err
	}
	cfg := &container.Config{
		Hostname: req.SandboxID[2:], // an underscore is none of a host name's letters
		// init and bridge are root; they run the harness as the user above.
		User:       "0:0",
		Env:        env,
		Image:      req.Image,
		WorkingDir: "/",
		Entrypoint: append([]string{guestBinary}, init.Args()...),
		Labels:     d.containerLabels(req),
		StopSignal: "SIGTERM",
		// An image's check would run commands in the sandbox that no one asked for.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if len(req.SandboxID) > 65 {
		cfg.Hostname = req.SandboxID[2:65]
	}
	host := &container.HostConfig{
		NetworkMode:   container.NetworkMode(d.opts.Network),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		// What init says is for whoever debugs it; the journal is elsewhere.
		LogConfig:   container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "1m", "max-file": "1"}},
		SecurityOpt: []string{"no-new-privileges"},
		Mounts:      mounts,
		Resources: container.Resources{
			NanoCPUs: req.CPUMillis * 1_000_000,
			Memory:   req.MemoryBytes,
			// Equal to the memory: no swap on top of it.
			MemorySwap: req.MemoryBytes,
		},
	}
	return cfg, host, nil
}

// mounts gives the container its executable and its directory.
func (d *Docker) mounts(id string) ([]mount.Mount, error) {
	if d.Transport() == TransportExec {
		// Volumes, because a commit leaves them out: neither the executable
		// nor a journal may end up in an image.
		return []mount.Mount{
			{Type: mount.TypeVolume, Target: guestDir},
			{Type: mount.TypeVolume, Target: guestBinaryDir},
		}, nil
	}
	binary, err := d.installed()
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", id, err)
	}
	return []mount.Mount{
		{Type: mount.TypeBind, Source: d.sandboxDir(id), Target: guestDir},
		{Type: mount.TypeBind, Source: binary, Target: guestBinary, ReadOnly: true},
	}, nil
}

// copyBinary puts the executable into a container.
func (d *Docker) copyBinary(ctx context.Context, id, handle string) error {
	doing := "copying the executable into " + id
	f, err := os.Open(d.opts.Binary)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "alineod", Mode: 0o755, Size: st.Size(), ModTime: st.ModTime(),
		})
		if err == nil {
			_, err = io.Copy(tw, f)
		}
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err) // nil is EOF
	}()
	err = d.call(ctx, doing, func(ctx context.Context) error {
		return d.cli.CopyToContainer(ctx, handle, guestBinaryDir, r, container.CopyToContainerOptions{})
	})
	r.CloseWithError(io.ErrClosedPipe) // let the writer go, whatever happened
	<-done
	return err
}
