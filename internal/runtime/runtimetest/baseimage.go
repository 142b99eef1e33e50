package runtimetest

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// requireEnv set to "require" makes a missing engine a failure.
const requireEnv = "ALINEOD_TEST_DOCKER"

// Engine returns a client of the Docker Engine that DOCKER_HOST names, or
// skips the test, and says so, where none answers.
func Engine(t *testing.T) *client.Client {
	t.Helper()
	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err == nil {
		t.Cleanup(func() { cli.Close() })
		_, err = cli.Ping(t.Context())
	}
	if err == nil {
		return cli
	}
	if os.Getenv(requireEnv) == "require" {
		t.Fatalf("%s=require, and no Docker Engine answers: %v", requireEnv, err)
	}
	t.Skipf("NOT TESTED: no Docker Engine answers (%s=require makes this a failure): %v", requireEnv, err)
	return nil
}

// The recipe of the base image. Its entry point, its user and its working
// directory are ones that a sandbox must not keep.
var (
	baseChanges = []string{
		"ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		`ENTRYPOINT ["/bin/false"]`,
		`CMD ["never"]`,
		"USER agent",
		"WORKDIR /tmp",
		"LABEL alineo.test=base",
	}
	baseFiles = []tarFile{
		{name: "bin/", mode: 0o755},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, content: "root:x:0:\nagent:x:1000:\n"},
		{name: "home/", mode: 0o755},
		{name: "home/agent/", mode: 0o755, uid: 1000},
		{name: "root/", mode: 0o700},
		{name: "run/", mode: 0o755},
		{name: "tmp/", mode: 0o1777},
	}
	baseCommands = strings.Fields("sh cat chmod cp dd echo env grep head id kill ln ls mkdir mv ps pwd rm sleep stat tail tar test touch tr true false")
)

type tarFile struct {
	name, content, link string
	mode                int64
	uid                 int
}

// BaseImage returns the reference of a small image with a shell and the usual
// commands, made of Debian's busybox-static. It stays with the engine, named
// by the hash of its recipe, so only the first test ever makes it.
func BaseImage(t *testing.T) string {
	t.Helper()
	cli := Engine(t)
	recipe := sha256.Sum256(fmt.Appendf(nil, "%q %v %q", baseChanges, baseFiles, baseCommands))
	ref := "alineo-test/base:" + hex.EncodeToString(recipe[:8])
	_, err := cli.ImageInspect(t.Context(), ref)
	if err == nil {
		return ref
	}
	if !cerrdefs.IsNotFound(err) {
		t.Fatalf("looking for the base image: %v", err)
	}
	if err := makeBaseImage(t.Context(), cli, ref, t.TempDir()); err != nil {
		t.Fatalf("making the base image: %v", err)
	}
	return ref
}

func makeBaseImage(ctx context.Context, cli *client.Client, ref, dir string) error {
	busybox, err := fetchBusybox(ctx, dir)
	if err != nil {
		return err
	}
	files := append(append([]tarFile{}, baseFiles...), tarFile{name: "bin/busybox", mode: 0o755, content: string(busybox)})
	for _, c := range baseCommands {
		files = append(files, tarFile{name: "bin/" + c, link: "busybox"})
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeImage(w, files)
		w.CloseWithError(err)
		written <- err
	}()
	answer, err := cli.ImageImport(ctx, image.ImportSource{Source: r, SourceName: "-"}, ref, image.ImportOptions{Changes: baseChanges})
	if err == nil {
		_, err = io.Copy(io.Discard, answer)
		err = errors.Join(err, answer.Close())
	}
	r.CloseWithError(io.ErrClosedPipe)
	<-written
	if err != nil {
		return err
	}
	_, err = cli.ImageInspect(ctx, ref)
	return err
}

func writeImage(w io.Writer, files []tarFile) error {
	tw := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.WriteString(tw, f.content); err != nil {
			return err
		}
	}
	return tw.Close()
}

// fetchBusybox takes the program out of Debian's package, without installing it.
func fetchBusybox(ctx context.Context, dir string) ([]byte, error) {
	for _, args := range [][]string{
		{"apt-get", "download", "busybox-static"},
		{"sh", "-c", "dpkg-deb -x busybox-static_*.deb ."},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	// Older packages have it in /bin, newer ones in /usr/bin.
	for _, path := range []string{"bin/busybox", "usr/bin/busybox"} {
		if data, err := os.ReadFile(filepath.Join(dir, path)); err == nil {
			return data, nil
		}
	}
	return nil, errors.New("the package busybox-static has no program busybox")
}
