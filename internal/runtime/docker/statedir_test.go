package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

func TestOwnContainer(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0a", 32)
	for name, c := range map[string]struct{ mountinfo, want string }{
		"container": {"745 713 0:57 / / rw - overlay overlay rw\n" +
			"760 745 254:0 /lib/docker/containers/" + id + "/hostname /etc/hostname rw,relatime - ext4 /dev/vda rw\n", id},
		"host, with a container's mounts": {"30 1 254:0 / / rw - ext4 /dev/vda rw\n" +
			"90 30 0:57 / /var/lib/docker/containers/" + id + "/mounts/shm rw - tmpfs shm rw\n", ""},
		"another engine's files": {"31 30 254:0 /overlay-containers/x/userdata/hostname /etc/hostname rw - ext4 /dev/vda rw\n", ""},
		"nothing":                {"", ""},
	} {
		got, err := ownContainer(strings.NewReader(c.mountinfo))
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestPlaced(t *testing.T) {
	t.Parallel()
	bind := func(pairs ...string) (all []container.MountPoint) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, container.MountPoint{Source: pairs[i], Destination: pairs[i+1]})
		}
		return all
	}
	const dir = "/var/lib/alineod"
	for name, c := range map[string]struct {
		mounts []container.MountPoint
		says   string // empty: it is well placed
	}{
		"same path":           {bind(dir, dir), ""},
		"a directory above":   {bind("/var/lib", "/var/lib/"), ""},
		"the whole host":      {bind("/", "/"), ""},
		"another path":        {bind("/srv/state", dir), "is /srv/state on the host"},
		"another path above":  {bind("/srv", "/var/lib"), "is /srv/alineod on the host"},
		"a root elsewhere":    {bind("/srv", "/"), "is /srv/var/lib/alineod on the host"},
		"a named volume":      {bind("/var/lib/docker/volumes/v/_data", dir), "is /var/lib/docker/volumes/v/_data on the host"},
		"the nearest decides": {bind("/var/lib", "/var/lib", "/srv", dir), "is /srv on the host"},
		"a name that begins alike": {bind("/var/lib/alineo", "/var/lib/alineo"),
			"is not mounted"},
		"no mount": {nil, "is not mounted"},
	} {
		err := placed(dir, c.mounts)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrStateDir) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
