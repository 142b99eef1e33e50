package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/harness"
)

// lockLifecycle waits for its turn to change the harness's process; the
// returned function lets the next one in.
func (s *server) lockLifecycle(ctx context.Context) (func(), error) {
	select {
	case s.lifecycle <- struct{}{}:
		return func() { <-s.lifecycle }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startHarness starts a process of the harness in place of the last one and
// returns once its protocol is idle.
func (s *server) startHarness(ctx context.Context, req StartRequest) (Hello, error) {
	h, err := s.cfg.Harnesses(req.Harness)
	if err != nil {
		return Hello{}, err
	}
	unlock, err := s.lockLifecycle(ctx)
	if err != nil {
		return Hello{}, err
	}
	ch, err := s.launch(ctx, h, req)
	unlock()
	if err != nil {
		return Hello{}, err
	}
	return s.awaitIdle(ctx, ch)
}

func (s *server) launch(ctx context.Context, h harness.Harness, req StartRequest) (*child, error) {
	k := &s.keeper
	var old *child
	var busy bool
	if err := k.do(ctx, func() { old, busy = k.child, k.turnID != "" }); err != nil {
		return nil, err
	}
	if busy {
		return nil, fmt.Errorf("starting the harness: %w", harness.ErrBusy)
	}
	if old != nil {
		if err := s.kill(ctx, old); err != nil {
			return nil, err
		}
	}
	killed, err := s.lineage.reap(ctx)
	if err != nil {
		return nil, err
	}
	if killed > 0 {
		s.log.Info("killed what the last harness left", zap.Int("processes", killed))
	}

	launch := req.Launch
	launch.Home, launch.Workdir = s.home, s.workdir
	if launch.Self == "" {
		launch.Self = s.cfg.Self
	}
	cmd, err := h.Launch(launch)
	if err != nil {
		return nil, fmt.Errorf("%w: preparing %s: %w", ErrHarness, h.Name(), err)
	}
	if len(cmd.Args) == 0 {
		return nil, fmt.Errorf("%w: preparing %s: no command", ErrHarness, h.Name())
	}
	for _, dir := range []string{s.home, s.workdir} {
		if err := s.acct.makeDir(dir); err != nil {
			return nil, fmt.Errorf("%w: preparing %s: %w", ErrHarness, h.Name(), err)
		}
	}
	c := command{args: cmd.Args, env: s.environment(cmd.Env, req.Env), dir: s.workdir, acct: s.acct}

	var ch *child
	var startErr error
	err = k.do(ctx, func() {
		if len(k.backlog) > 0 {
			startErr = ErrJournal
			return
		}
		// A child is made and made known in one step: the collector of orphans
		// must not take it for one.
		s.starting.Lock()
		ch, startErr = startChild(c, s.cfg.MaxLine, k.deliverLine)
		if startErr == nil {
			k.pid.Store(int64(ch.pid))
		}
		s.starting.Unlock()
		if startErr != nil {
			startErr = fmt.Errorf("%w: starting %s: %w", ErrHarness, h.Name(), startErr)
			return
		}
		k.child, k.proto, k.name, k.exit = ch, h.NewProtocol(launch), h.Name(), nil
		k.draining = false
		k.oomBase = oomKills()
		s.wg.Go(func() {
			select {
			case <-ch.done:
			case <-k.done: // an end that nobody waits for any more
				return
			}
			select {
			case k.exits <- ch:
			case <-k.done:
			}
		})
		k.record(Record{Kind: KindStarted, PID: ch.pid}, true, nil)
		k.apply(k.proto.Open(), Record{Kind: KindLine}, nil)
	})
	if err = errors.Join(err, startErr); err != nil {
		return nil, err
	}
	if err := raiseOOMScore(ch.pid); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("raising the harness's OOM score", zap.Error(err))
	}
	s.log.Info("harness started", zap.String("harness", h.Name()), zap.Int("pid", ch.pid), zap.Bool("continue", launch.Continue))
	return ch, nil
}

// environment is the sandbox's, then the harness's, then the spec's, and the
// marks in any case. Its values may be secrets.
func (s *server) environment(fromHarness, fromSpec map[string]string) map[string]string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, v := range os.Environ() {
		if name, value, ok := strings.Cut(v, "="); ok {
			env[name] = value
		}
	}
	delete(env, envInit)
	delete(env, "NOTIFY_SOCKET") // of the service the local runtime runs in
	env["HOME"] = s.home
	env["PWD"] = s.workdir
	if s.acct.name != "" {
		env["USER"], env["LOGNAME"] = s.acct.name, s.acct.name
	}
	maps.Copy(env, fromHarness)
	maps.Copy(env, fromSpec)
	if env[EnvToken] != "" && s.door.name != "" {
		env[EnvSocket] = s.door.name
		if s.cfg.Self != "" { // last: nothing of the sandbox is hidden
			env["PATH"] += ":" + filepath.Dir(s.cfg.Self)
		}
	}
	env[markSandbox], env[markHarness] = s.cfg.SandboxID, "1"
	return env
}

// awaitIdle waits until the child's session is known.
func (s *server) awaitIdle(ctx context.Context, ch *child) (Hello, error) {
	k := &s.keeper
	for {
		var h Hello
		var current *child
		var exit harness.Exit
		var changed chan struct{}
		err := k.do(ctx, func() {
			h, current, changed = k.hello(), k.child, k.changed
			if k.exit != nil {
				exit = *k.exit
			}
		})
		switch {
		case err != nil:
			return Hello{}, err
		case current != ch:
			return Hello{}, fmt.Errorf("%w: it exited before it was ready: %s", ErrHarness, describe(exit))
		case h.Harness.State != harness.StateStarting:
			return h, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Hello{}, ctx.Err()
		}
	}
}

// describe says how a process ended, with its last words.
func describe(e harness.Exit) string {
	text := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != "" {
		text = "killed by " + e.Signal
	}
	if e.OOMHint {
		text += ", out of memory"
	}
	if tail := strings.TrimSpace(e.Stderr); tail != "" {
		const keep = 2 << 10
		text += ": " + strings.ToValidUTF8(tail[max(0, len(tail)-keep):], "")
	}
	return text
}

// kill ends a child at once and waits until its exit is in the journal.
func (s *server) kill(ctx context.Context, ch *child) error {
	ch.signal(syscall.SIGKILL)
	return s.awaitGone(ctx, ch)
}

// awaitGone waits until the keeper has taken the child's end.
func (s *server) awaitGone(ctx context.Context, ch *child) error {
	k := &s.keeper
	for {
		var gone bool
		var changed chan struct{}
		if err := k.do(ctx, func() { gone, changed = k.child != ch, k.changed }); err != nil || gone {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopHarness ends the harness: SIGINT, grace, SIGTERM, 2 s, SIGKILL, to its
// whole group. None running is fine.
func (s *server) stopHarness(ctx context.Context, grace time.Duration) error {
	unlock, err := s.lockLifecycle(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return s.stopLocked(ctx, grace)
}

// termGrace is what a harness gets between SIGTERM and SIGKILL.
const termGrace = 2 * time.Second

func (s *server) stopLocked(ctx context.Context, grace time.Duration) error {
	var ch *child
	if err := s.keeper.do(ctx, func() { ch = s.keeper.child }); err != nil || ch == nil {
		return err
	}
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, grace}, {syscall.SIGTERM, termGrace}} {
		ch.signal(step.sig)
		timer := s.cfg.Clock.NewTimer(step.wait)
		select {
		case <-ch.done:
			timer.Stop()
			return s.awaitGone(ctx, ch)
		case <-timer.Chan():
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return s.kill(ctx, ch)
}
