package docker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/docker"
	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

func name(id string) string { return "alineo-" + id }

// TestContainer: what container a request amounts to, as the engine tells it.
func TestContainer(t *testing.T) {
	t.Parallel()
	cli := runtimetest.Engine(t)
	cfg := testConfig(t)
	d := open(t, cfg, nil)
	base := runtimetest.BaseImage(t)
	req := runtime.CreateRequest{
		Labels: labels(), Image: base, Env: map[string]string{"A": "b"},
		CPUMillis: 1500, MemoryBytes: 128 << 20,
		Bridge: runtime.Bridge{Workdir: "project"},
	}
	if _, err := d.Create(t.Context(), req); err != nil {
		t.Fatalf("Create: %v", err)
	}
	c, err := cli.ContainerInspect(t.Context(), name(req.SandboxID))
	if err != nil {
		t.Fatal(err)
	}
	// The user is the image's, since the request has none.
	wantCommand := []string{
		"/usr/local/lib/alineo/alineod", "bridge", "init",
		"--sandbox", req.SandboxID, "--dir", "/run/alineo", "--user", "agent", "--workdir", "project",
	}
	if diff := cmp.Diff(wantCommand, append([]string{c.Path}, c.Args...)); diff != "" {
		t.Errorf("command line (-want +got):\n%s", diff)
	}
	for k, want := range map[string]string{
		"alineo.instance": cfg.Instance, "alineo.run": req.RunID, "alineo.agent": req.AgentID,
		"alineo.sandbox": req.SandboxID, "alineo.generation": "1",
	} {
		if got := c.Config.Labels[k]; got != want {
			t.Errorf("label %s: %q, want %q", k, got, want)
		}
	}
	h := c.HostConfig
	if c.Config.User != "0:0" || c.Config.WorkingDir != "/" || h.NanoCPUs != 1_500_000_000 || h.Memory != 128<<20 || h.MemorySwap != 128<<20 {
		t.Errorf("user %q, directory %q, CPU %d, memory %d, swap %d", c.Config.User, c.Config.WorkingDir, h.NanoCPUs, h.Memory, h.MemorySwap)
	}
	if h.NetworkMode != "none" || !h.RestartPolicy.IsNone() || h.Privileged || strings.Join(h.SecurityOpt, " ") != "no-new-privileges" || h.LogConfig.Config["max-size"] == "" {
		t.Errorf("host configuration: %+v", h)
	}
	for _, m := range c.Mounts {
		if m.Destination == "/usr/local/lib/alineo/alineod" && m.RW {
			t.Error("the executable is mounted writable")
		}
	}
	if d.Transport() != docker.TransportSocket {
		t.Errorf("auto chose %q for an engine on this machine", d.Transport())
	}
}

// TestFailedStart: a container that cannot be started does not stay, nor does
// its directory.
func TestFailedStart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	for _, transport := range []string{docker.TransportSocket, docker.TransportExec} {
		d := open(t, cfg, func(o *docker.Options) {
			o.Transport, o.Network = transport, "alineo-test-no-such-network"
		})
		req := runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t)}
		_, err := d.Create(t.Context(), req)
		if err == nil || errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("%s: Create on a network that is not there: %v, want an error that blames neither engine nor image", transport, err)
		}
		if infos, err := d.List(t.Context()); err != nil || len(infos) != 0 {
			t.Errorf("%s: after a failed Create: %+v, %v", transport, infos, err)
		}
		if _, err := os.Stat(filepath.Join(cfg.StateDir, "sandboxes", req.SandboxID)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: directory after a failed Create: %v", transport, err)
		}
	}
}

// TestForeignContainers: whatever else bears our names or inherits our labels
// is neither seen nor touched.
func TestForeignContainers(t *testing.T) {
	t.Parallel()
	cli := runtimetest.Engine(t)
	cfg := testConfig(t)
	d := open(t, cfg, nil)
	ctx := t.Context()
	byHand := func(containerName, image string) string {
		t.Helper()
		made, err := cli.ContainerCreate(ctx, &container.Config{
			Image: image, Entrypoint: []string{"/bin/true"}, Labels: map[string]string{"alineo.test": cfg.Instance},
		}, &container.HostConfig{NetworkMode: "none"}, nil, nil, containerName)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cli.ContainerRemove(context.Background(), made.ID, container.RemoveOptions{Force: true}); err != nil {
				t.Errorf("a container of someone else is gone: %v", err)
			}
		})
		return made.ID
	}
	t.Run("group", func(t *testing.T) {
		req := runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t)}
		ctx := t.Context()
		if _, err := d.Create(ctx, req); err != nil {
			t.Fatal(err)
		}
		img, err := d.Commit(ctx, req.SandboxID, "ours", nil)
		if err != nil {
			t.Fatal(err)
		}
		// It has the instance's label, from the image.
		inherits, err := cli.ContainerCreate(ctx, &container.Config{Image: img.Ref, Entrypoint: []string{"/bin/true"}},
			&container.HostConfig{NetworkMode: "none"}, nil, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		infos, err := d.List(ctx)
		if err != nil || len(infos) != 1 || infos[0].SandboxID != req.SandboxID {
			t.Errorf("List: %+v, %v; want only ours", infos, err)
		}
		if err := cli.ContainerRemove(ctx, inherits.ID, container.RemoveOptions{}); err != nil {
			t.Errorf("removing what was made by hand: %v", err)
		}
	})
	taken := labels()
	byHand(name(taken.SandboxID), runtimetest.BaseImage(t))
	if _, err := d.Create(ctx, runtime.CreateRequest{Labels: taken, Image: runtimetest.BaseImage(t)}); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("Create where another has the name: %v, want ErrForeign", err)
	}
	if err := d.Remove(ctx, taken.SandboxID); err != nil {
		t.Errorf("Remove where another has the name: %v", err)
	}
	if _, err := d.Inspect(ctx, taken.SandboxID); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("Inspect where another has the name: %v, want ErrNotFound", err)
	}
	if err := d.RemoveImage(ctx, runtimetest.BaseImage(t)); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("RemoveImage of a base image: %v, want ErrForeign", err)
	}
}

// TestCommittedConfig: an image holds nothing of the sandbox it came from but
// its files, in either transport.
func TestCommittedConfig(t *testing.T) {
	t.Parallel()
	cli := runtimetest.Engine(t)
	for _, transport := range []string{docker.TransportSocket, docker.TransportExec} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			cfg := testConfig(t)
			d := open(t, cfg, func(o *docker.Options) { o.Transport = transport })
			req := runtime.CreateRequest{
				Labels: labels(), Image: runtimetest.BaseImage(t),
				Env: map[string]string{"PROXY": "value-to-forget", "PATH": "/value-to-forget"},
			}
			if _, err := d.Create(ctx, req); err != nil {
				t.Fatal(err)
			}
			var before string
			for range 2 {
				img, err := d.Commit(ctx, req.SandboxID, "clean", nil)
				if err != nil {
					t.Fatal(err)
				}
				got, err := cli.ImageInspect(ctx, img.Ref)
				if err != nil {
					t.Fatal(err)
				}
				if before != "" {
					if _, err := cli.ImageInspect(ctx, before); err == nil {
						t.Errorf("the image that lost its name, %s, is still there", before)
					}
				}
				before = got.ID
				if all := strings.Join(got.Config.Env, " "); strings.Contains(all, "value-to-forget") || !strings.Contains(all, "PATH=/usr/sbin") {
					t.Errorf("environment of the image: %v", got.Config.Env)
				}
				if len(got.Config.Entrypoint) != 0 || got.Config.User != "agent" || got.Config.Labels["alineo.instance"] != cfg.Instance {
					t.Errorf("entry point %v, user %q, labels %v", got.Config.Entrypoint, got.Config.User, got.Config.Labels)
				}
				for k, v := range got.Config.Labels {
					if strings.Contains(v, req.SandboxID) || strings.Contains(v, req.AgentID) {
						t.Errorf("label %s of the image: %q", k, v)
					}
				}
				// The executable has megabytes; the base image has one or two.
				base, err := d.Image(ctx, req.Image)
				if err != nil {
					t.Fatal(err)
				}
				if img.Bytes > base.Bytes+100<<10 {
					t.Errorf("image of %d bytes on a base of %d", img.Bytes, base.Bytes)
				}
			}
		})
	}
}

// TestTransportChanged: what was made over one transport is reached over the other.
func TestTransportChanged(t *testing.T) {
	t.Parallel()
	for _, way := range [][2]string{{docker.TransportExec, docker.TransportSocket}, {docker.TransportSocket, docker.TransportExec}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			before := open(t, cfg, func(o *docker.Options) { o.Transport = way[0] })
			info, err := before.Create(t.Context(), runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t)})
			if err != nil {
				t.Fatal(err)
			}
			after := newDocker(func(o *docker.Options) { o.Transport = way[1] })(t, cfg)
			defer after.Close()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for deadline := time.After(time.Minute); ; {
				conn, err := after.Dial(t.Context(), info.SandboxID)
				if err == nil {
					said := make([]byte, 5)
					if _, err = conn.Write([]byte("hello")); err == nil {
						_, err = conn.Read(said)
					}
					conn.Close()
					if err == nil {
						break
					}
				}
				select {
				case <-tick.C:
				case <-deadline:
					t.Fatalf("Dial: %v", err)
				}
			}
		})
	}
}

// TestDeepState: a state directory too deep for a socket's address.
func TestDeepState(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	cfg := testConfig(t)
	cfg.StateDir = filepath.Join(cfg.StateDir, strings.Repeat("deep/", 40))
	if err := os.MkdirAll(cfg.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := open(t, cfg, nil)
	info, err := d.Create(t.Context(), runtime.CreateRequest{Labels: labels(), Image: image})
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		conn, err := d.Dial(t.Context(), info.SandboxID)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("Dial: %v", err)
		}
	}
}

// TestOutOfMemory: a process killed for memory is told of and counted, and the
// sandbox runs on.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	d := open(t, testConfig(t), nil)
	ctx := t.Context()
	events := d.Events(ctx)
	req := runtime.CreateRequest{Labels: labels(), Image: runtimetest.BaseImage(t), MemoryBytes: 32 << 20}
	if _, err := d.Create(ctx, req); err != nil {
		t.Fatal(err)
	}
	// The tail of a line without an end is all of it. What a killed process held
	// is not free at once, so that the kernel may take the shell as well, but
	// never the sandbox's first process.
	code, err := d.Exec(ctx, req.SandboxID, runtime.ExecRequest{Args: []string{"sh", "-c", "tr '\\0' x </dev/zero | tail -n 1; exit 9"}})
	if err != nil || code != 9 && code != 137 {
		t.Fatalf("Exec: %d, %v; want its own exit code, or that of a killed shell", code, err)
	}
	timeout := time.After(time.Minute)
	for oom := false; !oom; {
		select {
		case ev := <-events:
			oom = ev.Type == runtime.EventOOM && ev.SandboxID == req.SandboxID
		case <-timeout:
			t.Fatal("no event of a process killed for memory")
		}
	}
	stats, err := d.Stats(ctx, req.SandboxID)
	if err != nil || (stats.OOMKills != -1 && stats.OOMKills < 1) {
		t.Errorf("Stats: %+v, %v; want a kill counted", stats, err)
	}
	if info, err := d.Inspect(ctx, req.SandboxID); err != nil || info.State != runtime.StateRunning {
		t.Errorf("Inspect: %+v, %v; want it running", info, err)
	}
}
