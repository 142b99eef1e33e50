package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/runtime"
)

// commitTimeout bounds a commit: 200 MB take 1.5 s, a very large sandbox
// minutes.
const commitTimeout = 15 * time.Minute

// imageRef is the reference of an image of that name.
func (d *Docker) imageRef(name string) string {
	return "alineo/" + d.opts.Instance + "/" + name + ":latest"
}

// Commit implements runtime.Runtime. The engine freezes a running sandbox for
// as long as it copies. What the request put into the sandbox's environment is
// not in the image; the entry point is none.
func (d *Docker) Commit(ctx context.Context, id, name string, labels map[string]string) (runtime.Image, error) {
	doing := "committing " + id
	if err := runtime.CheckName(name); err != nil {
		return runtime.Image{}, fmt.Errorf("%s: %w", doing, err)
	}
	unlock, err := d.locks.Lock(ctx, "image "+name)
	if err != nil {
		return runtime.Image{}, err
	}
	defer unlock()
	// One at a time: the engine freezes the container for a commit, and a second
	// one at that moment would find it thawed, or leave it frozen.
	unlockSource, err := d.locks.Lock(ctx, id)
	if err != nil {
		return runtime.Image{}, err
	}
	defer unlockSource()
	_, raw, err := d.inspect(ctx, id)
	if err != nil {
		return runtime.Image{}, err
	}
	cfg, err := d.commitConfig(ctx, raw, labels)
	if err != nil {
		return runtime.Image{}, err
	}
	ref := d.imageRef(name)
	bounded, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	_, err = d.cli.ContainerCommit(bounded, raw.ID, container.CommitOptions{Reference: ref, Pause: true, Config: cfg})
	if err != nil {
		return runtime.Image{}, explain(ctx, doing, err)
	}
	d.dropOld(ctx)
	return d.Image(ctx, ref)
}

// dropOld deletes the images that newer ones took the name of. One that a
// sandbox still stands on stays, and goes with a later call.
func (d *Docker) dropOld(ctx context.Context) {
	err := d.call(ctx, "removing old images", func(ctx context.Context) error {
		old, err := d.cli.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", labelInstance+"="+d.opts.Instance), filters.Arg("dangling", "true"))})
		if err != nil {
			return err
		}
		var errs []error
		for _, o := range old {
			_, err := d.cli.ImageRemove(ctx, o.ID, image.RemoveOptions{PruneChildren: true})
			if err != nil && !cerrdefs.IsConflict(err) && !cerrdefs.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		d.log.Warn("old images not removed", zap.Error(err))
	}
}

// commitConfig is the configuration of the new image: that of the image the
// sandbox was made from. The engine fills every field left empty, every label
// and every variable not named, from the container; hence what is to go must
// be named, and given an empty value.
func (d *Docker) commitConfig(ctx context.Context, raw container.InspectResponse, labels map[string]string) (*container.Config, error) {
	base, err := d.inspectImage(ctx, raw.Image)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return nil, err
	}
	cfg := &container.Config{
		Entrypoint:  []string{},
		WorkingDir:  "/",
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels:      map[string]string{},
	}
	for k := range raw.Config.Labels {
		if strings.HasPrefix(k, "alineo.") {
			cfg.Labels[k] = ""
		}
	}
	maps.Copy(cfg.Labels, labels)
	cfg.Labels[labelInstance] = d.opts.Instance

	var inherited []string
	if base.Config != nil {
		cfg.User = base.Config.User
		inherited = base.Config.Env
	}
	known := make(map[string]bool)
	for _, kv := range inherited {
		k, _, _ := strings.Cut(kv, "=")
		known[k] = true
	}
	cfg.Env = slices.Clone(inherited)
	for _, kv := range raw.Config.Env {
		if k, _, _ := strings.Cut(kv, "="); !known[k] {
			known[k] = true
			cfg.Env = append(cfg.Env, k+"=")
		}
	}
	return cfg, nil
}

func (d *Docker) inspectImage(ctx context.Context, ref string) (image.InspectResponse, error) {
	var found image.InspectResponse
	err := d.call(ctx, "inspecting image "+ref, func(ctx context.Context) (err error) {
		found, err = d.cli.ImageInspect(ctx, ref)
		return err
	})
	return found, err
}

// Image implements runtime.Runtime.
func (d *Docker) Image(ctx context.Context, ref string) (runtime.Image, error) {
	found, err := d.inspectImage(ctx, ref)
	if err != nil {
		return runtime.Image{}, err
	}
	img := runtime.Image{Ref: ref, Bytes: found.Size, CreatedAt: parseTime(found.Created)}
	if found.Config != nil {
		img.Labels = publicLabels(found.Config.Labels)
	}
	return img, nil
}

// publicLabels leaves out the labels that a commit had to empty.
func publicLabels(labels map[string]string) map[string]string {
	kept := make(map[string]string, len(labels))
	for k, v := range labels {
		if v != "" || !strings.HasPrefix(k, "alineo.") {
			kept[k] = v
		}
	}
	return kept
}

// Images implements runtime.Runtime.
func (d *Docker) Images(ctx context.Context) ([]runtime.Image, error) {
	var found []image.Summary
	err := d.call(ctx, "listing images", func(ctx context.Context) (err error) {
		found, err = d.cli.ImageList(ctx, image.ListOptions{
			Filters: filters.NewArgs(filters.Arg("label", labelInstance+"="+d.opts.Instance)),
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	var images []runtime.Image
	for _, f := range found {
		for _, tag := range f.RepoTags {
			// An old one has lost its name; one of another name is another's.
			if strings.HasPrefix(tag, d.imagePrefix()) {
				images = append(images, runtime.Image{
					Ref: tag, Labels: publicLabels(f.Labels), Bytes: f.Size, CreatedAt: time.Unix(f.Created, 0).UTC(),
				})
			}
		}
	}
	return images, nil
}

func (d *Docker) imagePrefix() string { return "alineo/" + d.opts.Instance + "/" }

// RemoveImage implements runtime.Runtime. An image that a sandbox still stands
// on is not removed, which is an error.
func (d *Docker) RemoveImage(ctx context.Context, ref string) error {
	found, err := d.inspectImage(ctx, ref)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	// The name and the label: a reference could also be a tag that someone
	// else gave an image of ours, or the beginning of an image's id.
	if !strings.HasPrefix(ref, d.imagePrefix()) || found.Config == nil || found.Config.Labels[labelInstance] != d.opts.Instance {
		return fmt.Errorf("removing image %s: %w", ref, runtime.ErrForeign)
	}
	err = d.call(ctx, "removing image "+ref, func(ctx context.Context) error {
		_, err := d.cli.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
		return err
	})
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return err
	}
	d.dropOld(ctx)
	return nil
}
