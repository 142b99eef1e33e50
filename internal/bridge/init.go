package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// exitFile tells, in the bridge's directory, how the last bridge ended.
const exitFile = "bridge-exit.json"

// DefaultEndGrace is what a bridge gets to stop its harness and end.
const DefaultEndGrace = 8 * time.Second

// InitConfig says how the first process of a sandbox runs the bridge.
type InitConfig struct {
	SandboxID string
	Dir       string // the bridge's, as ServerConfig.Dir
	// Self is the program, Args its arguments (without its name) for the
	// bridge proper: "bridge serve --sandbox … --dir …".
	Self string
	Args []string
	// EndGrace is what the bridge gets after SIGTERM; zero is the default.
	EndGrace time.Duration
	Log      *zap.Logger
	Clock    clockwork.Clock
}

// BridgeExit is the content of bridge-exit.json.
type BridgeExit struct {
	PID    int    `json:"pid"`
	Code   int    `json:"code"`             // -1 when killed by a signal
	Signal string `json:"signal,omitempty"` // as "SIGKILL"
	Kicked bool   `json:"kicked,omitempty"` // killed to be started anew
	At     int64  `json:"at"`               // Unix milliseconds
}

// initProcess is the state of RunInit.
type initProcess struct {
	cfg    InitConfig
	dir    *os.File
	own    owner
	pid    int // of the living bridge, 0 for none
	kicked bool
}

// RunInit is the first process of a sandbox. It starts the bridge, collects
// every dead process it is left with, and does nothing else: no work, no
// allocation that grows. SIGUSR1, the kick, has it kill the bridge and start a
// new one; a bridge that ends by itself stays ended. When SIGTERM or SIGINT
// comes or ctx ends, it lets the bridge stop the harness, kills what is left
// and returns nil.
//
// It owns the process it runs in: no other child may be started there.
func RunInit(ctx context.Context, cfg InitConfig) error {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Clock == nil {
		cfg.Clock = clockwork.NewRealClock()
	}
	if cfg.EndGrace <= 0 {
		cfg.EndGrace = DefaultEndGrace
	}
	died := make(chan os.Signal, 1)
	kick := make(chan os.Signal, 1)
	end := make(chan os.Signal, 1)
	hold := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	signal.Notify(kick, syscall.SIGUSR1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(hold, syscall.SIGHUP, syscall.SIGPIPE) // caught, to no effect
	for _, c := range []chan os.Signal{died, kick, end, hold} {
		defer signal.Stop(c)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the sandbox's reaper: %w", err)
	}
	dir, err := openDir(cfg.Dir)
	if err != nil {
		return fmt.Errorf("starting the sandbox %s: %w", cfg.SandboxID, err)
	}
	defer dir.Close()
	p := &initProcess{cfg: cfg, dir: dir}
	if p.own, err = ownerOf(dir); err != nil {
		return fmt.Errorf("starting the sandbox %s: %w", cfg.SandboxID, err)
	}
	if err := p.start(); err != nil {
		return fmt.Errorf("starting the bridge of %s: %w", cfg.SandboxID, err)
	}
	for {
		select {
		case <-died:
			p.collect()
		case <-kick:
			p.restart(died)
		case <-end:
			return p.end(died, end)
		case <-ctx.Done():
			return p.end(died, end)
		}
	}
}

func (p *initProcess) start() error {
	env := make([]string, 0, len(os.Environ())+1)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, envInit+"=") {
			env = append(env, v)
		}
	}
	env = append(env, envInit+"="+strconv.Itoa(os.Getpid()))
	pid, err := syscall.ForkExec(p.cfg.Self, append([]string{p.cfg.Self}, p.cfg.Args...), &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2},
		// A terminal's or a group's signals reach the bridge through this
		// process, not beside it.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return fmt.Errorf("executing %s: %w", p.cfg.Self, err)
	}
	p.pid, p.kicked = pid, false
	p.cfg.Log.Info("bridge started", zap.String("sandbox", p.cfg.SandboxID), zap.Int("pid", pid))
	return nil
}

// collect takes every dead child, the bridge too.
func (p *initProcess) collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == p.pid {
			p.pid = 0
			p.ended(pid, status)
		}
	}
}

// ended records the bridge's end.
func (p *initProcess) ended(pid int, status syscall.WaitStatus) {
	e := exitOf(status)
	exit := BridgeExit{PID: pid, Code: e.Code, Signal: e.Signal, Kicked: p.kicked, At: p.cfg.Clock.Now().UnixMilli()}
	if err := p.record(exit); err != nil {
		p.cfg.Log.Error("recording the bridge's end", zap.Error(err))
	}
	p.cfg.Log.Info("bridge ended", zap.String("sandbox", p.cfg.SandboxID), zap.Int("pid", pid),
		zap.Int("code", exit.Code), zap.String("signal", exit.Signal), zap.Bool("kicked", exit.Kicked))
}

func (p *initProcess) record(exit BridgeExit) error {
	const temporary = exitFile + ".tmp"
	data, err := json.Marshal(exit)
	if err != nil {
		return err
	}
	f, err := openAt(p.dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, p.own.give(f, 0o600), f.Sync(), f.Close()); err != nil {
		return err
	}
	fd := int(p.dir.Fd())
	return errors.Join(unix.Renameat(fd, temporary, fd, exitFile), p.dir.Sync())
}

// restart puts a new bridge in the place of the old one.
func (p *initProcess) restart(died <-chan os.Signal) {
	p.collect()
	if p.pid != 0 {
		p.kicked = true
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // not collected, so it is ours
	}
	for p.pid != 0 {
		<-died
		p.collect()
	}
	if err := p.start(); err != nil {
		p.cfg.Log.Error("starting the bridge anew", zap.Error(err))
	}
}

// end stops everything below this process. A second signal cuts it short.
func (p *initProcess) end(died, again <-chan os.Signal) error {
	p.collect()
	if p.pid != 0 {
		_ = syscall.Kill(p.pid, syscall.SIGTERM)
	}
	timer := p.cfg.Clock.NewTimer(p.cfg.EndGrace)
	defer timer.Stop()
	for p.pid != 0 {
		select {
		case <-died:
			p.collect()
		case <-again:
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		case <-timer.Chan():
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	// What the harness left, wherever it was re-parented, goes with it. A
	// process that the kernel cannot end in this time ends with the sandbox.
	const killTime = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	left := lineage{sandboxID: p.cfg.SandboxID, clock: p.cfg.Clock}
	if _, err := left.reap(ctx); err != nil {
		p.cfg.Log.Error("killing what is left", zap.Error(err))
	}
	p.collect()
	return nil
}
