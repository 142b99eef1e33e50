// Package daemon puts the rooms together into one program: it takes the lock of
// the state directory, opens the ledger, makes the runtimes, starts the swarm
// and serves the API.
package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/api"
	"github.com/alineod/alineod/internal/checkpoint"
	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/harness/registry"
	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/runtime"
	"github.com/alineod/alineod/internal/runtime/docker"
	"github.com/alineod/alineod/internal/runtime/local"
	"github.com/alineod/alineod/internal/swarm"
	"github.com/alineod/alineod/internal/telemetry"
)

// Options is what a Daemon needs beside its configuration.
type Options struct {
	Version string
	// Binary is the executable that becomes the bridge in each sandbox; it
	// must be static for Docker. Empty: this process's own.
	Binary   string
	Log      *zap.Logger
	Redactor *telemetry.Redactor
	Clock    clockwork.Clock
	// Lookup resolves ${VAR} of specs; nil: the process's environment.
	Lookup func(string) (string, bool)
}

// Daemon is one daemon on one state directory.
type Daemon struct {
	cfg      *config.Config
	o        Options
	log      *zap.Logger
	metrics  *telemetry.Metrics
	instance string
	swarm    *swarm.Swarm
	ledger   *ledger.Ledger
	runtimes []runtime.Runtime
	clean    []func() // in the order they were made; run backwards
}

// engineLook is how long a start waits for an engine that may not be there.
const engineLook = 3 * time.Second

// LedgerPath is where the ledger of a state directory stands.
func LedgerPath(stateDir string) string { return filepath.Join(stateDir, "ledger.db") }

// New takes the state directory and makes everything that is in it ready.
// Nothing runs before Run or Start. Errors: ledger.ErrLocked, ledger.ErrNewer,
// ledger.ErrDamaged and others. The caller closes the Daemon.
func New(ctx context.Context, cfg *config.Config, o Options) (_ *Daemon, err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Redactor == nil {
		o.Redactor = telemetry.NewRedactor()
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Lookup == nil {
		o.Lookup = os.LookupEnv
	}
	if o.Binary == "" {
		if o.Binary, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("finding this program's own file: %w", err)
		}
	}
	d := &Daemon{cfg: cfg, o: o, log: o.Log, metrics: telemetry.NewMetrics(o.Version)}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	lock, err := ledger.Lock(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	d.onClose(func() { lock.Close() })
	if d.instance, err = instanceOf(cfg.StateDir); err != nil {
		return nil, err
	}
	if d.ledger, err = ledger.Open(ctx, LedgerPath(cfg.StateDir), ledger.Options{Clock: o.Clock, Log: o.Log, Metrics: d.metrics}); err != nil {
		return nil, err
	}
	d.onClose(func() { d.ledger.Close() })
	store, err := checkpoint.NewFileStore(filepath.Join(cfg.StateDir, "checkpoints"), checkpoint.FileOptions{})
	if err != nil {
		return nil, fmt.Errorf("opening the checkpoints: %w", err)
	}
	d.onClose(func() { store.Close() })
	if err := d.makeRuntimes(ctx); err != nil {
		return nil, err
	}
	inside, err := newInside(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	d.onClose(inside.close)
	d.swarm = swarm.New(swarm.Config{
		Ledger: d.ledger, Runtimes: d.runtimes, Choose: d.choose, Harness: registry.Get, Store: store,
		Clock: o.Clock, Log: o.Log, Metrics: swarmMetrics{d.metrics}, Lookup: o.Lookup, Secrets: o.Redactor,
		DefaultImage: cfg.DefaultImage, Retain: cfg.Checkpoints.Retain, AllowUnsandboxed: cfg.Local.AllowUnsandboxed,
		Guests:   swarm.Guests{Token: inside.token, Serve: inside.serve},
		Admitted: cfg.Admission.Parallelism, AdmissionTimeout: cfg.Admission.Timeout,
		Parallelism: cfg.Recovery.Parallelism, ReconcileEvery: cfg.Recovery.ReconcileEvery, OrphanGrace: cfg.Recovery.OrphanGrace,
		HelloTimeout: cfg.Timeouts.BridgeHello, StopGrace: cfg.Timeouts.Stop, TakeTimeout: cfg.Timeouts.Checkpoint,
		Provisioning: cfg.Timeouts.Provision, TurnIdle: cfg.Timeouts.TurnIdle,
	})
	d.onClose(d.swarm.Close)
	if err := inside.start(d.apiOptions(), d.log); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Daemon) onClose(f func()) { d.clean = append(d.clean, f) }

// Close ends everything in the reverse order of its making. Sandboxes go on.
func (d *Daemon) Close() {
	for i := len(d.clean) - 1; i >= 0; i-- {
		d.clean[i]()
	}
	d.clean = nil
}

// Swarm is the swarm of the daemon.
func (d *Daemon) Swarm() *swarm.Swarm { return d.swarm }

// instanceOf reads the name of a state directory's instance, or makes one. It
// is on every sandbox, so that two daemons on one engine never meet.
func instanceOf(stateDir string) (string, error) {
	path := filepath.Join(stateDir, "instance")
	b, err := os.ReadFile(path)
	if err == nil {
		name := strings.TrimSpace(string(b))
		if err := runtime.CheckName(name); err != nil {
			return "", fmt.Errorf("reading %s: %w", path, err)
		}
		return name, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the instance's name: %w", err)
	}
	var random [6]byte
	rand.Read(random[:])
	name := "i" + hex.EncodeToString(random[:])
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("writing the instance's name: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("writing the instance's name: %w", err)
	}
	return name, runtime.SyncDir(stateDir)
}

// makeRuntimes makes those the configuration has at hand. An engine that is
// down now may answer later.
func (d *Daemon) makeRuntimes(ctx context.Context) error {
	if d.cfg.Runtime != config.RuntimeLocal {
		rt, err := docker.New(docker.Options{Instance: d.instance, StateDir: d.cfg.StateDir, Binary: d.o.Binary,
			Host: d.cfg.Docker.Host, Network: d.cfg.Docker.Network, Transport: d.cfg.Docker.Transport, Pull: true,
			CallTimeout: d.cfg.Timeouts.Engine, Clock: d.o.Clock, Log: d.log})
		if err != nil {
			return fmt.Errorf("setting up the docker runtime: %w", err)
		}
		d.runtimes = append(d.runtimes, rt)
		d.onClose(func() { rt.Close() })
		// Refused now, if the engine says so now; else at the first sandbox.
		ctx, cancel := context.WithTimeout(ctx, engineLook)
		defer cancel()
		if err := rt.CheckStateDir(ctx); errors.Is(err, docker.ErrStateDir) {
			return err
		}
	}
	if d.cfg.Runtime != config.RuntimeDocker {
		rt, err := local.New(local.Options{Instance: d.instance, StateDir: d.cfg.StateDir, Binary: d.o.Binary, Clock: d.o.Clock, Log: d.log})
		if err != nil {
			return fmt.Errorf("setting up the local runtime: %w", err)
		}
		d.runtimes = append(d.runtimes, rt)
		d.onClose(func() { rt.Close() })
	}
	return nil
}

// choose names the runtime of a new agent: the first one that answers, the one
// that isolates first.
func (d *Daemon) choose(ctx context.Context) (runtime.Runtime, error) {
	var errs []error
	for _, rt := range d.runtimes {
		err := rt.Ping(ctx)
		if err == nil {
			return rt, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// version describes the daemon, and the runtime a new agent would get now.
func (d *Daemon) version(ctx context.Context) api.VersionInfo {
	v := api.VersionInfo{Version: d.o.Version, Go: goruntime.Version()}
	rt, err := d.choose(ctx)
	if err != nil {
		v.Runtime, v.Notice = d.cfg.Runtime, "no runtime answers: "+err.Error()
		return v
	}
	v.Runtime, v.Isolated = rt.Name(), rt.Capabilities().Isolated
	if !v.Isolated {
		v.Notice = "agents run as plain processes of this machine: the local runtime isolates nothing"
	}
	return v
}
