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
	// Streams end with base, so that a shutdown need not wait for them.
	base, endStreams := context.WithCancel(context.Background())
	defer endStreams()
	servers, err := d.listen(base, handler)
	if err != nil {
		return err
	}
	defer os.Remove(d.cfg.Socket)
	if err := d.swarm.Start(ctx); err != nil {
		closeAll(servers)
		return err
	}
	failed := make(chan error, len(servers))
	var work sync.WaitGroup
	for _, s := range servers {
		d.log.Info("listening", zap.String("for", s.what), zap.String("address", s.address))
		work.Go(func() {
			if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", s.what, err)
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
		notify.RunWatchdog(running, func() bool { return d.alive(running, notify.Watchdog()) },
			func(err error) { d.log.Warn("talking to the service manager", zap.Error(err)) })
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
	for _, s := range servers {
		if shutErr := s.Shutdown(end); shutErr != nil {
			s.Close()
		}
	}
	work.Wait()
	return err
}

// alive asks the parts that could hang. It may wait for as long as the service
// manager does: a disk that stalls for less is no reason to be killed.
func (d *Daemon) alive(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := d.swarm.Ping(ctx); err != nil {
		d.log.Error("no sign of life for the service manager", zap.Error(err))
		return false
	}
	return true
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
	if err := d.metrics.Observe(swarm.States(), d.swarm.Census); err != nil {
		return nil, err
	}
	o := d.apiOptions()
	o.Token, o.ReadOnlyTokens, o.Listen = d.cfg.Auth.Token, d.cfg.Auth.ReadOnlyTokens, d.cfg.Listen
	o.Metrics, o.Verify, o.Rebuild = &apiMetrics{Metrics: d.metrics}, d.ledger.Verify, d.ledger.Rebuild
	if d.cfg.Metrics.Listen == "" {
		o.MetricsHandler = d.metrics.Handler()
	}
	return api.New(o)
}

// apiOptions are those of the API for everybody.
func (d *Daemon) apiOptions() api.Options {
	return api.Options{Swarm: apiSwarm{d.swarm}, Version: d.o.Version, Describe: d.version, Schema: spec.Schema(),
		Redact: d.o.Redactor.String, Clock: d.o.Clock, Log: d.log}
}

// server is one listener with what is served on it.
type server struct {
	*http.Server
	what     string // the setting it comes from
	address  string
	listener net.Listener
}

func closeAll(servers []server) {
	for _, s := range servers {
		s.listener.Close()
	}
}

// listen opens the TCP listener, the unix socket and, where it has one of its
// own, the listener of the metrics: all of them or none. A stale socket file is
// unlinked: the lock of the state directory says that nobody serves on it.
func (d *Daemon) listen(base context.Context, handler http.Handler) (all []server, err error) {
	defer func() {
		if err != nil {
			closeAll(all)
			all = nil
		}
	}()
	open := func(setting, address string, handler http.Handler, listen func() (net.Listener, error)) error {
		l, err := listen()
		if err != nil {
			return fmt.Errorf("listening on %s (%s): %w", address, setting, err)
		}
		if l.Addr().Network() == "tcp" {
			address = l.Addr().String() // port 0 has become one
		}
		all = append(all, server{what: setting, address: address, listener: l, Server: &http.Server{
			Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
			BaseContext: func(net.Listener) context.Context { return base },
			ErrorLog:    zap.NewStdLog(d.log.Named("http"))}})
		return nil
	}
	tcp := func(address string) func() (net.Listener, error) {
		return func() (net.Listener, error) { return net.Listen("tcp", address) }
	}
	if d.cfg.Listen != "" {
		if err := open("listen", d.cfg.Listen, handler, tcp(d.cfg.Listen)); err != nil {
			return all, err
		}
	}
	if err := open("socket", d.cfg.Socket, handler, func() (net.Listener, error) { return listenUnix(d.cfg.Socket) }); err != nil {
		return all, err
	}
	if d.cfg.Metrics.Listen != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", d.metrics.Handler())
		if err := open("metrics.listen", d.cfg.Metrics.Listen, mux, tcp(d.cfg.Metrics.Listen)); err != nil {
			return all, err
		}
	}
	return all, nil
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
