package runtimetest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/runtime"
)

func testDialAndKick(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	info := p.create()
	id := info.SandboxID
	if tr := p.Transport(); tr != "socket" && tr != "exec" {
		t.Errorf("Transport: %q", tr)
	}
	if (p.JournalDir(id) == "") != (p.Transport() == "exec") {
		t.Errorf("JournalDir %q with transport %q", p.JournalDir(id), p.Transport())
	}
	one, two := p.talk(id), p.talk(id)
	defer one.Close()
	defer two.Close()
	for range 2 {
		for _, conn := range []io.ReadWriteCloser{one, two} {
			if err := s.opts.Talk(conn); err != nil {
				t.Fatalf("two streams at once: %v", err)
			}
		}
	}

	p.must("Kick", p.Kick(ctx, id))
	// The bridge that served it is dead, so the stream ends.
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, one)
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a stream outlives its bridge")
	}
	p.talk(id).Close()
	p.wantState(id, runtime.StateRunning)

	// Kicks in a row leave one bridge, not none.
	for range 3 {
		p.must("Kick", p.Kick(ctx, id))
	}
	p.talk(id).Close()

	// A closed stream reads no more, and closing it again is harmless.
	conn := p.talk(id)
	p.must("Close", conn.Close())
	conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a closed stream can be read")
	}

	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if conn, err := p.Dial(canceled, id); err == nil {
		conn.Close() // a connection made at once is no fault
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("Dial with an ended context: %v", err)
	}
}

func testExec(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	info := p.create()
	id := info.SandboxID
	dir := s.opts.Dir(info)

	var out, errOut bytes.Buffer
	code, err := p.Exec(ctx, id, runtime.ExecRequest{
		Args:    []string{"sh", "-c", `echo "$GREETING $NAME"; pwd; cat; echo complaint >&2; exit 7`},
		Env:     map[string]string{"NAME": "world"},
		Workdir: dir, Stdin: strings.NewReader("from outside\n"),
		Stdout: &out, Stderr: &errOut,
	})
	p.must("Exec", err)
	if want := "good morning world\n" + dir + "\nfrom outside\n"; code != 7 || out.String() != want || errOut.String() != "complaint\n" {
		t.Errorf("exit code %d, output %q, errors %q; want 7, %q, %q", code, out.String(), errOut.String(), want, "complaint\n")
	}

	// Much output, in order.
	out.Reset()
	code, err = p.Exec(ctx, id, runtime.ExecRequest{
		Args: []string{"sh", "-c", `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done`}, Stdout: &out,
	})
	p.must("Exec", err)
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if code != 0 || out.String() != want.String() {
		t.Errorf("much output: exit code %d, %d bytes, want %d", code, out.Len(), want.Len())
	}

	if code, err := p.Exec(ctx, id, runtime.ExecRequest{Args: []string{"no-such-command"}}); err != nil || (code != 126 && code != 127) {
		t.Errorf("a command that is not there: %d, %v; want 126 or 127", code, err)
	}
	if _, err := p.Exec(ctx, id, runtime.ExecRequest{}); !errors.Is(err, runtime.ErrInvalid) {
		t.Errorf("no command: %v, want ErrInvalid", err)
	}
	if out, _ := p.sh(id, "kill -TERM $$"); out != "" {
		t.Errorf("a command ended by a signal wrote %q", out)
	}
	if _, code := p.sh(id, "kill -TERM $$"); code != 143 {
		t.Errorf("a command ended by SIGTERM: exit code %d, want 143", code)
	}
}

func testExecInterrupted(t *testing.T, s *suite) {
	p := s.start(t)
	info := p.create()
	id := info.SandboxID
	// It says who it is, then waits with a child for ever.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := p.Exec(ctx, id, runtime.ExecRequest{
			Args: []string{"sh", "-c", `echo $$; sleep 1000 & wait`}, Stdout: w,
		})
		w.CloseWithError(io.EOF)
		done <- err
	}()
	var pid int
	if _, err := fmt.Fscan(r, &pid); err != nil {
		t.Fatalf("reading the command's pid: %v", err)
	}
	go io.Copy(io.Discard, r)
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted Exec: %v, want context.Canceled", err)
		}
	case <-time.After(patience):
		t.Fatal("Exec goes on after its context's end")
	}
	if out, _ := p.sh(id, fmt.Sprintf("kill -0 %d 2>/dev/null && cat /proc/%d/status; true", pid, pid)); out != "" && !strings.Contains(out, "zombie") {
		t.Errorf("the command lives on:\n%s", out)
	}
}

// entry is one of an archive.
type entry struct {
	Name, Content, Link string
	Mode                int64
	Time                int64
}

func readTar(t *testing.T, r io.Reader) (entries []entry) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatalf("reading an archive: %v", err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatalf("reading %s: %v", h.Name, err)
		}
		entries = append(entries, entry{h.Name, string(content), h.Linkname, h.Mode & 0o7777, h.ModTime.Unix()})
	}
}

func writeTar(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.Name, Mode: e.Mode, ModTime: time.Unix(e.Time, 0), Size: int64(len(e.Content)), Typeflag: tar.TypeReg}
		switch {
		case e.Link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		case strings.HasSuffix(e.Name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func testCopy(t *testing.T, s *suite) {
	p := s.start(t)
	ctx := t.Context()
	info := p.create()
	id, dir := info.SandboxID, s.opts.Dir(info)
	const when = 1_600_000_000
	tree := []entry{
		{"box/", "", "", 0o750, when},
		{"box/script", "#!/bin/sh\necho hello\n", "", 0o755, when},
		{"box/link", "", "script", 0o777, when},
	}
	check := func(state string) {
		t.Helper()
		r, err := p.CopyOut(ctx, id, dir+"/box")
		p.must("CopyOut from a "+state+" sandbox", err)
		defer r.Close()
		got := make(map[string]entry)
		for _, e := range readTar(t, r) {
			if e.Link != "" {
				e.Time = when // a link's own time is not restored everywhere
			}
			got[strings.TrimSuffix(e.Name, "/")] = e
		}
		for _, want := range tree {
			e := got[strings.TrimSuffix(want.Name, "/")]
			e.Name = want.Name
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("from a %s sandbox, %s (-want +got):\n%s", state, want.Name, diff)
			}
		}
		if len(got) != len(tree) {
			t.Errorf("from a %s sandbox: %v", state, got)
		}
	}
	p.must("CopyIn", p.CopyIn(ctx, id, dir, writeTar(t, tree...)))
	check("running")
	if out, code := p.sh(id, dir+"/box/link"); out != "hello\n" || code != 0 {
		t.Errorf("running the copied script: %q, exit code %d", out, code)
	}
	// What is there already is replaced.
	tree[1].Content = "#!/bin/sh\necho goodbye\n"
	p.must("second CopyIn", p.CopyIn(ctx, id, dir, writeTar(t, tree...)))
	if out, _ := p.sh(id, dir+"/box/script"); out != "goodbye\n" {
		t.Errorf("running the replaced script: %q", out)
	}
	if p.Capabilities().StoppedArchive {
		p.must("Stop", p.Stop(ctx, id, 0))
		check("stopped")
		p.must("CopyIn into a stopped one", p.CopyIn(ctx, id, dir, writeTar(t, tree...)))
	}

	// A path that is not there does not mean that the sandbox is gone.
	if _, err := p.CopyOut(ctx, id, dir+"/nothing"); !errors.Is(err, runtime.ErrInvalid) || errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("CopyOut of nothing: %v, want ErrInvalid", err)
	}
	if err := p.CopyIn(ctx, id, dir+"/nothing", writeTar(t, tree...)); !errors.Is(err, runtime.ErrInvalid) || errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("CopyIn to nowhere: %v, want ErrInvalid", err)
	}
}

func testCommit(t *testing.T, s *suite) {
	p := s.start(t)
	if !p.Capabilities().Commit {
		t.Skip("this runtime commits no images")
	}
	ctx := t.Context()
	source := p.create()
	p.sh(source.SandboxID, "echo one > "+s.opts.Dir(source)+"/note; ln -s note "+s.opts.Dir(source)+"/alias")
	p.talk(source.SandboxID).Close()
	labels := map[string]string{"alineo.setup": "abc"}
	img, err := p.Commit(ctx, source.SandboxID, "snapshot", labels)
	p.must("Commit", err)
	p.wantState(source.SandboxID, runtime.StateRunning)
	if img.Ref == "" || img.CreatedAt.IsZero() || img.Labels["alineo.setup"] != "abc" {
		t.Errorf("Commit: %+v", img)
	}

	note := func(ref string) (string, runtime.Info) {
		t.Helper()
		req := p.request()
		req.Image, req.Env = ref, nil
		info, err := p.Create(ctx, req)
		p.must("Create from the image", err)
		out, _ := p.sh(info.SandboxID, "cat "+s.opts.Dir(info)+"/alias; echo $GREETING")
		return out, info
	}
	out, child := note(img.Ref)
	if out != "one\n\n" {
		t.Errorf("in a sandbox of the image: %q, want the note and no environment of the source", out)
	}
	if child.Image != img.Ref {
		t.Errorf("made from %q, want %q", child.Image, img.Ref)
	}
	p.talk(child.SandboxID).Close()
	infos, err := p.List(ctx)
	p.must("List", err)
	if len(infos) != 2 {
		t.Errorf("List: %+v, want source and child", infos)
	}

	// The same name again: the newest wins. The source may be stopped.
	p.sh(source.SandboxID, "echo two > "+s.opts.Dir(source)+"/note")
	p.must("Stop", p.Stop(ctx, source.SandboxID, 0))
	newer, err := p.Commit(ctx, source.SandboxID, "snapshot", labels)
	p.must("second Commit", err)
	if newer.Ref != img.Ref {
		t.Errorf("the same name: %q, then %q", img.Ref, newer.Ref)
	}
	if out, _ := note(newer.Ref); out != "two\n\n" {
		t.Errorf("in a sandbox of the newer image: %q", out)
	}
	images, err := p.Images(ctx)
	p.must("Images", err)
	if len(images) != 1 || images[0].Ref != img.Ref || images[0].Labels["alineo.setup"] != "abc" {
		t.Errorf("Images: %+v, want the one", images)
	}
	if _, err := p.Image(ctx, newer.Ref); err != nil {
		t.Errorf("Image: %v", err)
	}
	if _, err := p.Commit(ctx, source.SandboxID, "../out", nil); !errors.Is(err, runtime.ErrInvalid) {
		t.Errorf("Commit under a bad name: %v, want ErrInvalid", err)
	}

	for _, info := range infos {
		p.must("Remove", p.Remove(ctx, info.SandboxID))
	}
	infos, err = p.List(ctx)
	p.must("List", err)
	for _, info := range infos {
		p.must("Remove", p.Remove(ctx, info.SandboxID))
	}
	for range 2 {
		p.must("RemoveImage", p.RemoveImage(ctx, img.Ref))
	}
	if _, err := p.Image(ctx, img.Ref); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("Image after its removal: %v, want ErrNotFound", err)
	}
}

func testStats(t *testing.T, s *suite) {
	p := s.start(t)
	info := p.create()
	p.talk(info.SandboxID).Close()
	stats, err := p.Stats(t.Context(), info.SandboxID)
	p.must("Stats", err)
	if stats.Time.IsZero() || stats.MemoryBytes <= 0 || stats.Processes < 2 || stats.CPUNanos < 0 {
		t.Errorf("Stats: %+v, want memory, and the processes of init and bridge", stats)
	}
	if stats.OOMKills > 0 {
		t.Errorf("Stats: %d killed for memory, want 0 or unknown", stats.OOMKills)
	}
	if p.Capabilities().Resources {
		req := p.request()
		req.MemoryBytes, req.CPUMillis = 64<<20, 500
		limited, err := p.Create(t.Context(), req)
		p.must("Create", err)
		stats, err := p.Stats(t.Context(), limited.SandboxID)
		p.must("Stats", err)
		if stats.MemoryLimitBytes != 64<<20 {
			t.Errorf("memory limit %d, want %d", stats.MemoryLimitBytes, 64<<20)
		}
	}
}
