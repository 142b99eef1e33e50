package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/alineod/alineod/internal/runtime"
)

// ErrStateDir: this program runs in a container, and the engine knows the state
// directory by another path or not at all, so that what is mounted from it into
// sandboxes would be something else.
var ErrStateDir = errors.New("the state directory has another path outside this container")

// CheckStateDir holds the state directory against what the engine says of the
// container this program runs in, if it runs in one of that engine's and the
// transport mounts it. Errors: ErrStateDir, runtime.ErrUnreachable. Once it has
// held, it asks no more.
func (d *Docker) CheckStateDir(ctx context.Context) error {
	if d.stateDirHolds.Load() {
		return nil
	}
	if err := d.settleTransport(ctx); err != nil {
		return err
	}
	if d.Transport() == TransportSocket {
		f, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return fmt.Errorf("reading this program's mounts: %w", err)
		}
		self, err := ownContainer(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("reading this program's mounts: %w", err)
		}
		if self != "" {
			if err := d.checkMounts(ctx, self); err != nil {
				return err
			}
		}
	}
	d.stateDirHolds.Store(true)
	return nil
}

func (d *Docker) checkMounts(ctx context.Context, self string) error {
	var raw container.InspectResponse
	err := d.call(ctx, "asking for this program's own container", func(ctx context.Context) (err error) {
		raw, err = d.cli.ContainerInspect(ctx, self)
		return err
	})
	if errors.Is(err, runtime.ErrNotFound) {
		return nil // a container of another engine: this one cannot tell
	}
	if err != nil {
		return err
	}
	return placed(d.opts.StateDir, raw.Mounts)
}

// ofContainer finds a container's id in the file that the engine mounts over
// /etc/hostname.
var ofContainer = regexp.MustCompile(`/containers/([0-9a-f]{64})/`)

// ownContainer is the id of the container whose mounts these are, in the format
// of proc_pid_mountinfo(5); empty where it is none.
func ownContainer(mountinfo io.Reader) (string, error) {
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		switch root, point := fields[3], fields[4]; point {
		case "/etc/hostname", "/etc/hosts", "/etc/resolv.conf":
			if m := ofContainer.FindStringSubmatch(root); m != nil {
				return m[1], nil
			}
		}
	}
	return "", lines.Err()
}

// placed says whether dir is the same directory outside, by the mount that is
// nearest above it.
func placed(dir string, mounts []container.MountPoint) error {
	var nearest *container.MountPoint
	for i, m := range mounts {
		if within(dir, m.Destination) && (nearest == nil || len(m.Destination) > len(nearest.Destination)) {
			nearest = &mounts[i]
		}
	}
	if nearest == nil {
		return fmt.Errorf("%w: %s is not mounted from the host; start the container with -v %s:%s", ErrStateDir, dir, dir, dir)
	}
	outside := filepath.Join(nearest.Source, strings.TrimPrefix(dir, filepath.Clean(nearest.Destination)))
	if outside != dir {
		return fmt.Errorf("%w: %s is %s on the host; start the container with -v %s:%s", ErrStateDir, dir, outside, dir, dir)
	}
	return nil
}

func within(path, dir string) bool {
	dir = filepath.Clean(dir)
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
