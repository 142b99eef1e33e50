package docker

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/alineod/alineod/internal/ids"
	"github.com/alineod/alineod/internal/runtime"
)

// Labels on containers; labelInstance is on committed images too.
const (
	labelInstance   = "alineo.instance"
	labelRun        = "alineo.run"
	labelAgent      = "alineo.agent"
	labelSandbox    = "alineo.sandbox"
	labelGeneration = "alineo.generation"
	labelImage      = "alineo.image"
)

const namePrefix = "alineo-"

// containerName is the name of a sandbox's container.
func containerName(id string) string { return namePrefix + id }

func (d *Docker) containerLabels(req runtime.CreateRequest) map[string]string {
	return map[string]string{
		labelInstance:   d.opts.Instance,
		labelRun:        req.RunID,
		labelAgent:      req.AgentID,
		labelSandbox:    req.SandboxID,
		labelGeneration: strconv.Itoa(req.Generation),
		labelImage:      req.Image,
	}
}

// ours reads the labels of a container called name. It is ours only if its
// name, its sandbox label and its instance agree: someone may have started a
// container by hand from an image we committed, and that one inherits labels.
func (d *Docker) ours(name string, labels map[string]string) (runtime.Labels, bool) {
	id := strings.TrimPrefix(name, "/"+namePrefix)
	if labels[labelInstance] != d.opts.Instance || labels[labelSandbox] != id || !ids.Valid(ids.Sandbox, id) {
		return runtime.Labels{}, false
	}
	generation, err := strconv.Atoi(labels[labelGeneration])
	if err != nil {
		return runtime.Labels{}, false
	}
	return runtime.Labels{
		SandboxID: id, RunID: labels[labelRun], AgentID: labels[labelAgent], Generation: generation,
	}, true
}

// stateOf translates the engine's word. A container that is being removed, or
// whose removal failed, counts as gone.
func stateOf(s container.ContainerState) (_ runtime.State, gone bool) {
	switch s {
	case container.StateCreated:
		return runtime.StateCreated, false
	case container.StateRunning, container.StateRestarting:
		return runtime.StateRunning, false
	case container.StatePaused:
		return runtime.StatePaused, false
	case container.StateRemoving, container.StateDead:
		return "", true
	}
	return runtime.StateStopped, false
}

// exitedForm is how the engine's list tells an exit code; it has no field for
// it. An inspection of each container would be a round trip for each.
var exitedForm = regexp.MustCompile(`^Exited \((\d+)\)`)

// List implements runtime.Runtime. It leaves StartedAt, FinishedAt and
// OOMKilled zero: the engine's list does not tell them, Inspect does.
func (d *Docker) List(ctx context.Context) ([]runtime.Info, error) {
	var found []container.Summary
	err := d.call(ctx, "listing containers", func(ctx context.Context) (err error) {
		found, err = d.cli.ContainerList(ctx, container.ListOptions{
			All:     true,
			Filters: filters.NewArgs(filters.Arg("label", labelInstance+"="+d.opts.Instance)),
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	infos := make([]runtime.Info, 0, len(found))
	for _, c := range found {
		if len(c.Names) == 0 {
			continue // it is being made or removed at this moment
		}
		labels, ok := d.ours(c.Names[0], c.Labels)
		state, gone := stateOf(c.State)
		if !ok || gone {
			continue
		}
		info := runtime.Info{
			Labels: labels, State: state, Handle: c.ID, Image: c.Labels[labelImage],
			CreatedAt: time.Unix(c.Created, 0).UTC(),
		}
		if m := exitedForm.FindStringSubmatch(c.Status); m != nil {
			info.ExitCode, _ = strconv.Atoi(m[1]) // digits, and never many
		}
		d.known.Store(labels.SandboxID, true)
		infos = append(infos, info)
	}
	return infos, nil
}

// Inspect implements runtime.Runtime.
func (d *Docker) Inspect(ctx context.Context, id string) (runtime.Info, error) {
	info, _, err := d.inspect(ctx, id)
	return info, err
}

// inspect also returns what the engine said. A container that bears the name
// but is not ours is ErrNotFound: this instance has no such sandbox.
func (d *Docker) inspect(ctx context.Context, id string) (runtime.Info, container.InspectResponse, error) {
	info, raw, owned, err := d.look(ctx, id)
	if err == nil && !owned {
		err = fmt.Errorf("inspecting %s: %w", id, runtime.ErrNotFound)
	}
	return info, raw, err
}

// look inspects the container of a sandbox's name and says whether it is ours.
func (d *Docker) look(ctx context.Context, id string) (info runtime.Info, raw container.InspectResponse, owned bool, err error) {
	doing := "inspecting " + id
	if !ids.Valid(ids.Sandbox, id) {
		return info, raw, false, fmt.Errorf("%s: %w", doing, runtime.ErrNotFound)
	}
	err = d.call(ctx, doing, func(ctx context.Context) (err error) {
		raw, err = d.cli.ContainerInspect(ctx, containerName(id))
		return err
	})
	if err != nil {
		return info, raw, false, err
	}
	if raw.ContainerJSONBase == nil || raw.State == nil || raw.Config == nil {
		return info, raw, false, fmt.Errorf("%s: the engine's answer lacks the state or the configuration", doing)
	}
	// A lookup by name also matches the beginning of another container's id.
	labels, owned := d.ours(raw.Name, raw.Config.Labels)
	state, gone := stateOf(raw.State.Status)
	if gone {
		return info, raw, owned, fmt.Errorf("%s: %s: %w", doing, raw.State.Status, runtime.ErrNotFound)
	}
	if owned {
		d.known.Store(id, true)
	}
	info = runtime.Info{
		Labels: labels, State: state, Handle: raw.ID, Image: raw.Config.Labels[labelImage],
		ExitCode: raw.State.ExitCode, OOMKilled: raw.State.OOMKilled,
		CreatedAt: parseTime(raw.Created), StartedAt: parseTime(raw.State.StartedAt),
		FinishedAt: parseTime(raw.State.FinishedAt),
	}
	return info, raw, owned, nil
}

// parseTime reads the engine's times; its zero time, and anything unreadable,
// is Go's.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}

// running returns the container's id if the sandbox runs and is not frozen.
func (d *Docker) running(ctx context.Context, id string) (handle string, err error) {
	info, err := d.Inspect(ctx, id)
	switch {
	case err != nil:
		return "", err
	case info.State == runtime.StatePaused:
		return "", errPaused(id)
	case info.State != runtime.StateRunning:
		return "", fmt.Errorf("sandbox %s is %s: %w", id, info.State, runtime.ErrNotRunning)
	}
	return info.Handle, nil
}
