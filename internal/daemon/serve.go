package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/sdnotify"
	"github.com/alineod/alineod/internal/spec"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/alineod/alineod/internal/telemetry"
)

// shutdownWait is how long requests in flight may take when the daemon ends and
// the configuration does not say.
const shutdownWait = 5 * time.Second

// Run starts the swarm and serves the API until ctx ends; then it lets the
// requests in flight end and returns nil. Every sandbox goes on.
func (d *Daemon) Run(ctx context.Context) error {
	notify, err := sdnotify.FromEnv()
	if err != nil {
		return fmt.Errorf("talking to the service manager: %w", err)
	}
	handler, err := d.handler(ctx)
	if err != nil {
		return err
	}
	listeners, err := d.listen()
	if err != nil {
		return err
	}
	defer os.Remove(d.cfg.Socket)
	if err := d.swarm.Start(ctx); err != nil {
		return err
	}

	// Streams end with base, so that a shutdown need not wait for them.
	base, endStreams := context.WithCancel(context.Background())
	defer endStreams()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    zap.NewStdLog(d.log.Named("http"))}
	failed := make(chan error, len(listeners)+1)
	var work sync.WaitGroup
	for _, l := range listeners {
		d.log.Info("listening", zap.String("address", l.Addr().String()))
		work.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
		})
	}
	var metrics *http.Server
	if d.cfg.Metrics.Listen != "" {
		l, err := net.Listen("tcp", d.cfg.Metrics.Listen)
		if err != nil {
			return fmt.Errorf("listening for metrics: %w", err)
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", d.metrics.Handler())
		metrics = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		work.Go(func() {
			if err := metrics.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving metrics: %w", err)
			}
		})
	}
	if version := d.version(ctx); version.Notice != "" {
		d.log.Warn(version.Notice, zap.String("runtime", version.Runtime))
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	work.Go(func() { d.announce(running, notify) })
	work.Go(func() {
		notify.RunWatchdog(running, func() bool { return true }, func(err error) { d.log.Warn("watchdog", zap.Error(err)) })
	})
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	stop()
	if notifyErr := notify.Stopping(); notifyErr != nil {
		d.log.Warn("telling the service manager", zap.Error(notifyErr))
	}
	d.log.Info("stopping; every sandbox goes on")
	wait := d.cfg.Timeouts.Shutdown
	if wait <= 0 {
		wait = shutdownWait
	}
	endStreams()
	end, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for _, s := range []*http.Server{server, metrics} {
		if s == nil {
			continue
		}
		if shutErr := s.Shutdown(end); shutErr != nil {
			s.Close()
		}
	}
	work.Wait()
	return err
}

// announce tells the service manager how far the boot has come.
func (d *Daemon) announce(ctx context.Context, notify *sdnotify.Notifier) {
	report := func(err error) {
		if err != nil {
			d.log.Warn("telling the service manager", zap.Error(err))
		}
	}
	ticker := d.o.Clock.NewTicker(time.Second)
	defer ticker.Stop()
	// The API answers already: that is what ready means to those who wait for
	// the unit. How far the recovery has come is the status.
	report(notify.Ready("recovering"))
	for {
		r := d.swarm.Readiness()
		if r.Ready {
			report(notify.Status(fmt.Sprintf("%d agents", r.Total)))
			return
		}
		report(notify.Status(fmt.Sprintf("recovering %d/%d", r.Recovered, r.Total)))
		select {
		case <-ctx.Done():
			return
		case <-d.swarm.Booted():
		case <-ticker.Chan():
		}
	}
}

func (d *Daemon) handler(ctx context.Context) (http.Handler, error) {
	version := d.version(ctx)
	if err := d.metrics.ObserveAgents(swarm.States(), func() (map[string]int, error) { return d.swarm.AgentsByState(), nil }); err != nil {
		return nil, fmt.Errorf("registering the metrics of agents: %w", err)
	}
	o := api.Options{
		Swarm: apiSwarm{d.swarm}, Token: d.cfg.Auth.Token, ReadOnlyTokens: d.cfg.Auth.ReadOnlyTokens, Listen: d.cfg.Listen,
		Version: version, Metrics: &apiMetrics{Metrics: d.metrics}, Schema: spec.Schema(),
		Verify: d.ledger.Verify, Rebuild: d.ledger.Rebuild, Clock: d.o.Clock, Log: d.log,
	}
	if d.cfg.Metrics.Listen == "" {
		o.MetricsHandler = d.metrics.Handler()
	}
	return api.New(o)
}

// listen opens the TCP listener and the unix socket. A stale socket file is
// unlinked: the lock of the state directory says that nobody serves on it.
func (d *Daemon) listen() ([]net.Listener, error) {
	var all []net.Listener
	if d.cfg.Listen != "" {
		l, err := net.Listen("tcp", d.cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("listening on %s (listen): %w", d.cfg.Listen, err)
		}
		all = append(all, l)
	}
	l, err := listenUnix(d.cfg.Socket)
	if err != nil {
		for _, l := range all {
			l.Close()
		}
		return nil, fmt.Errorf("listening on %s (socket): %w", d.cfg.Socket, err)
	}
	return append(all, l), nil
}

// listenUnix goes through the opened directory: a socket's address has 108
// bytes, and a state directory may lie deeper.
func listenUnix(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the address names a closed directory by then
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// apiSwarm is the swarm as the API wants it.
type apiSwarm struct{ *swarm.Swarm }

func (s apiSwarm) Follow(after int64, runID string) api.Stream { return s.Swarm.Follow(after, runID) }

// apiMetrics and swarmMetrics give the collectors the names those rooms use.
type apiMetrics struct {
	*telemetry.Metrics
	mu   sync.Mutex
	done []func()
}

func (m *apiMetrics) HTTPServed(route, method string, code int, took time.Duration) {
	m.Request(route, method, code, took)
}

func (m *apiMetrics) SSEClients(delta int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; delta > 0; delta-- {
		m.done = append(m.done, m.SSEClient())
	}
	for ; delta < 0 && len(m.done) > 0; delta++ {
		m.done[len(m.done)-1]()
		m.done = m.done[:len(m.done)-1]
	}
}

type swarmMetrics struct{ *telemetry.Metrics }

func (m swarmMetrics) Checkpointed(outcome string, took time.Duration, bytes int64) {
	m.CheckpointTaken(outcome, took, bytes)
}
