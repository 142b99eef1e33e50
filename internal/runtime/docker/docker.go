// Package docker runs sandboxes as containers of a Docker Engine.
//
// A container is named after its sandbox and labelled with the instance, the
// run, the agent and the generation it was made for; only containers with this
// instance's label are ever touched. Its first process is this program, which
// reaches the container, and is spoken to, in one of two ways:
//
//   - socket: the executable and a host directory for the bridge's socket and
//     journal are bind-mounted. Needs an engine on this machine.
//   - exec: the executable is copied into the container, the directory is a
//     volume of the container, and the stream runs over `docker exec`. Works
//     with any engine that can be reached.
package docker

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"github.com/alineod/alineod/internal/runtime"
)

// Transports.
const (
	TransportAuto   = "auto"
	TransportSocket = "socket"
	TransportExec   = "exec"
)

// Where things are inside a container.
const (
	guestDir       = "/run/alineo"
	guestBinaryDir = "/usr/local/lib/alineo"
	guestBinary    = guestBinaryDir + "/alineod"
)

// maxStarts is how many containers are started at a time: each start keeps a
// core busy for most of half a second.
const maxStarts = 6

// Options configure the driver. Instance, StateDir and Binary are required.
type Options struct {
	// Instance names the daemon's state. Containers of other instances are
	// never seen.
	Instance string
	// StateDir is an absolute directory, at the same path for the engine where
	// the transport is socket.
	StateDir string
	// Binary is the path of the alineod executable; it must be static.
	Binary string
	// Host is the engine's address; empty: DOCKER_HOST, else the default.
	Host string
	// Network is the containers' network mode; empty: the engine's default.
	Network string
	// Transport is auto, socket or exec; empty: auto.
	Transport string
	// Pull fetches an image that is not there when a sandbox is made from it.
	Pull bool
	// CallTimeout bounds calls that should be answered at once; 0:
	// runtime.DefaultCallTimeout.
	CallTimeout time.Duration
	Clock       clockwork.Clock // nil: the real one
	Log         *zap.Logger     // nil: none
}

// Docker is the driver. It is made by New.
type Docker struct {
	opts  Options
	cli   *client.Client
	clock clockwork.Clock
	log   *zap.Logger
	locks runtime.Locks
	// starts holds one element for each start that is under way.
	starts chan struct{}

	// stop ends the goroutines that wg counts.
	stop    context.Context
	stopNow context.CancelFunc
	wg      sync.WaitGroup

	// known holds the ids of sandboxes that the engine said are ours, so that
	// Dial after a List need not ask for each.
	known sync.Map

	binaryMu sync.Mutex
	binary   string // the installed copy, once there is one

	transportMu sync.Mutex
	transport   atomic.Value // string: what is known, or assumed, by now
	settled     atomic.Bool  // transport is known

	stateDirHolds atomic.Bool // see CheckStateDir
}

var _ runtime.Runtime = (*Docker)(nil)

// New makes the driver. It does not ask the engine anything, so that a daemon
// can start, and hold its agents, while the engine is away.
func New(opts Options) (*Docker, error) {
	if err := runtime.CheckName(opts.Instance); err != nil {
		return nil, fmt.Errorf("docker: instance: %w", err)
	}
	if !filepath.IsAbs(opts.StateDir) {
		return nil, fmt.Errorf("docker: state directory %q is not absolute: %w", opts.StateDir, runtime.ErrInvalid)
	}
	if opts.CallTimeout <= 0 {
		opts.CallTimeout = runtime.DefaultCallTimeout
	}
	if opts.Clock == nil {
		opts.Clock = clockwork.NewRealClock()
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	clientOpts := []client.Opt{client.FromEnv, client.WithAPIVersionNegotiation()}
	if opts.Host != "" {
		clientOpts = append(clientOpts, client.WithHost(opts.Host))
	}
	clientOpts = append(clientOpts, withDialer) // last: it needs to know the host
	cli, err := client.NewClientWithOpts(clientOpts...)
	if err != nil {
		return nil, fmt.Errorf("docker: client for %q: %w", opts.Host, err)
	}
	d := &Docker{opts: opts, cli: cli, clock: opts.Clock, log: opts.Log, starts: make(chan struct{}, maxStarts)}
	d.stop, d.stopNow = context.WithCancel(context.Background())
	switch opts.Transport {
	case TransportSocket, TransportExec:
		d.transport.Store(opts.Transport)
		d.settled.Store(true)
	case TransportAuto, "":
		d.transport.Store(TransportExec)
		if u, err := url.Parse(cli.DaemonHost()); err == nil && u.Scheme == "unix" {
			d.transport.Store(TransportSocket)
		} else {
			d.settled.Store(true)
		}
	default:
		return nil, fmt.Errorf("docker: transport %q: want auto, socket or exec: %w", opts.Transport, runtime.ErrInvalid)
	}
	return d, nil
}

// Name implements runtime.Runtime.
func (d *Docker) Name() string { return "docker" }

// Capabilities implements runtime.Runtime.
func (d *Docker) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{
		Isolated: true, Commit: true, Pause: true,
		RestartInPlace: true, Resources: true, StoppedArchive: true, BaseImages: true,
	}
}

// Ping implements runtime.Runtime.
func (d *Docker) Ping(ctx context.Context) error {
	return d.call(ctx, "asking the engine", func(ctx context.Context) error {
		_, err := d.cli.Ping(ctx)
		return err
	})
}

// Close implements runtime.Runtime.
func (d *Docker) Close() error {
	d.stopNow()
	d.wg.Wait()
	return d.cli.Close()
}

func (d *Docker) sandboxDir(id string) string {
	return filepath.Join(d.opts.StateDir, "sandboxes", id)
}

// JournalDir implements runtime.Runtime.
func (d *Docker) JournalDir(id string) string {
	if d.Transport() != TransportSocket {
		return ""
	}
	return filepath.Join(d.sandboxDir(id), runtime.JournalName)
}

// installed returns the path of the daemon's executable as the engine may
// mount it. Reading it all takes a moment, so it is done at the first need and
// not while a daemon comes back to its agents.
func (d *Docker) installed() (string, error) {
	d.binaryMu.Lock()
	defer d.binaryMu.Unlock()
	if d.binary != "" {
		if _, err := os.Stat(d.binary); err == nil {
			return d.binary, nil
		}
	}
	path, err := runtime.InstallBinary(d.opts.StateDir, d.opts.Binary)
	if err != nil {
		return "", err
	}
	d.binary = path
	return path, nil
}
