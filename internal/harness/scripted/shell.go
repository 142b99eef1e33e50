package scripted

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxOutput bounds, in bytes, what is kept of a command's output: its end,
	// which is where errors stand.
	maxOutput = 32 << 10
	// outputDelay is how long after the command's own end its output is still
	// read. Something it left in the background may hold the pipe for ever.
	outputDelay = 250 * time.Millisecond
)

// shell runs a command to its end, in a process group of its own. ctx ending
// kills the group. A kill of this process does not: the command goes on, as
// those of other coding agents do.
func shell(ctx context.Context, command string, progress func(string)) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputDelay
	out := &tail{progress: progress}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case errors.As(err, &exit):
		err = fmt.Errorf("command failed: %w", exit)
	case err != nil:
		err = fmt.Errorf("running the command: %w", err)
	}
	return out.String(), err
}

// tail keeps the end of what is written to it.
type tail struct {
	progress func(string)

	mu       sync.Mutex // exec may still copy when the delay is over
	buf      []byte
	dropped  int
	reported int
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Progress is for onlookers: its sum is bounded as the result is.
	if n := min(len(p), maxOutput-w.reported); n > 0 {
		w.progress(strings.ToValidUTF8(string(p[:n]), "\uFFFD"))
		w.reported += n
	}
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - maxOutput; over > 0 {
		w.dropped += over
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.TrimRight(strings.ToValidUTF8(string(w.buf), "\uFFFD"), "\n")
	if w.dropped > 0 {
		text = fmt.Sprintf("(%d bytes left out)\n%s", w.dropped, text)
	}
	return text
}
