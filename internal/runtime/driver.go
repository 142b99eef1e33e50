package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alineod/alineod/internal/ids"
)

// This file holds what the drivers have in common. Nothing above them needs it.

// DefaultCallTimeout bounds one call to a runtime that should answer at once.
// A start takes half a second; thirty leave room for a loaded machine.
const DefaultCallTimeout = 30 * time.Second

// SocketName is the bridge's socket in the directory it is given, and
// JournalName its journal's directory.
const (
	SocketName  = "bridge.sock"
	JournalName = "journal"
)

// BridgeCommand is the first argument of a sandbox's own program.
const BridgeCommand = "bridge"

// InitCommand is the command line of a sandbox's first process, without the
// program's name.
type InitCommand struct {
	SandboxID string
	Dir       string // of socket and journal, as the sandbox sees it
	Home      string // empty: the user's, from the sandbox's password file
	User      string
	Workdir   string
}

// Args returns the arguments. A flag whose value is empty is left out.
func (c InitCommand) Args() []string {
	args := []string{BridgeCommand, "init"}
	for _, f := range [...]struct{ name, value string }{
		{"--sandbox", c.SandboxID},
		{"--dir", c.Dir},
		{"--home", c.Home},
		{"--user", c.User},
		{"--workdir", c.Workdir},
	} {
		if f.value != "" {
			args = append(args, f.name, f.value)
		}
	}
	return args
}

// KillableScore is the oom_score_adj of all that works in a sandbox: where
// memory runs out, the kernel takes it before the sandbox's own processes, on
// which the others depend.
const KillableScore = "500"

// RunArgs is the command line, without the program's name, by which a sandbox's
// own program runs a command as RunCommand does.
func RunArgs(command []string) []string {
	return append([]string{BridgeCommand, "run", "--"}, command...)
}

// RunCommand turns this process into a command that has the KillableScore. It
// returns only if that fails, with the exit code a shell would give.
func RunCommand(command []string) (exitCode int, err error) {
	const notFound, notExecutable = 127, 126
	if len(command) == 0 {
		return notFound, fmt.Errorf("no command: %w", ErrInvalid)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(KillableScore), 0); err != nil {
		return notExecutable, fmt.Errorf("raising oom_score_adj: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return notFound, err
	}
	return notExecutable, fmt.Errorf("running %s: %w", path, syscall.Exec(path, command, os.Environ()))
}

// instanceForm keeps an instance's name fit for a path, a label and an image
// reference at once.
var instanceForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// CheckName says whether s can name an instance or an image: lower-case
// letters, digits and single dashes between them, at most 100 bytes.
func CheckName(s string) error {
	if len(s) > 100 || !instanceForm.MatchString(s) {
		return fmt.Errorf("name %q: want lower-case letters, digits and single dashes: %w", s, ErrInvalid)
	}
	return nil
}

// Check reports what is wrong with the request, whatever the driver.
func (r CreateRequest) Check() error {
	if !ids.Valid(ids.Sandbox, r.SandboxID) {
		return fmt.Errorf("sandbox id %q: %w", r.SandboxID, ErrInvalid)
	}
	if r.CPUMillis < 0 || r.MemoryBytes < 0 {
		return fmt.Errorf("resources of %s: negative: %w", r.SandboxID, ErrInvalid)
	}
	for k, v := range r.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return fmt.Errorf("environment variable %q: %w", k, ErrInvalid)
		}
	}
	for _, s := range [...]string{r.Bridge.User, r.Bridge.Workdir, r.Image} {
		// A leading dash would be taken for a flag by what it is handed to.
		if strings.HasPrefix(s, "-") || strings.Contains(s, "\x00") {
			return fmt.Errorf("value %q: %w", s, ErrInvalid)
		}
	}
	return nil
}

// Locks is a set of locks by name. The zero value is ready for use.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token chan struct{} // holds one element while locked
	users int           // holder and waiters, guarded by Locks.mu
}

// Held reports whether somebody has, or waits for, the lock of that name.
func (l *Locks) Held(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[name] != nil
}

// Lock waits for the lock of that name and returns the way to give it back, or
// the context's error.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = make(map[string]*lock)
	}
	k := l.held[name]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.held[name] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("waiting for %s: %w", name, ctx.Err())
	}
}

// DialSocket connects with a unix socket in dir. Going through the opened
// directory keeps within the 108 bytes of a socket's address however deep the
// state directory lies.
func DialSocket(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketName))
}

// InstallBinary copies an executable to <state>/bin/<hash>/alineod, unless it
// is there already, and returns that path. A bridge runs from there, so that
// an upgrade of the daemon changes none that is running.
func InstallBinary(stateDir, binary string) (string, error) {
	path, err := installBinary(stateDir, binary)
	if err != nil {
		return "", fmt.Errorf("installing %s below %s: %w", binary, stateDir, err)
	}
	return path, nil
}

func installBinary(stateDir, binary string) (string, error) {
	src, err := os.Open(binary)
	if err != nil {
		return "", err
	}
	defer src.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, src)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(stateDir, "bin", hex.EncodeToString(sum.Sum(nil))[:16])
	path := filepath.Join(dir, "alineod")
	// A file of that name is whole: it was renamed into place after its sync.
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Size() == size {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	tmp, err := writeExecutable(dir, src)
	if err == nil {
		err = syncPath(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	return path, errors.Join(SyncDir(dir), SyncDir(filepath.Dir(dir)))
}

// writeExecutable copies src to a new file. No process is forked meanwhile: a
// child would hold the file open for writing until it executes its own program,
// and as long as anyone does, the kernel refuses to execute this one.
func writeExecutable(dir string, src io.Reader) (path string, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, src)
	// Others than root execute it inside the sandbox, hence 0755.
	return f.Name(), errors.Join(err, f.Chmod(0o755), f.Close())
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error { return syncPath(dir) }

func syncPath(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
