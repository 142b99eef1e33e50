package daemon_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/alineod/alineod/internal/client"
	"github.com/alineod/alineod/internal/config"
	"github.com/alineod/alineod/internal/daemon"
	"github.com/alineod/alineod/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

func load(t *testing.T, env ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Environ: append([]string{"ALINEOD_RUNTIME=local", "ALINEOD_LISTEN=127.0.0.1:0"}, env...)})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestLocked: a second daemon is refused at once and leaves the first alone;
// the state directory is free when that is closed.
func TestLocked(t *testing.T) {
	t.Parallel()
	cfg := load(t, "ALINEOD_STATE_DIR="+t.TempDir())
	first, err := daemon.New(t.Context(), cfg, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.New(t.Context(), cfg, daemon.Options{}); !errors.Is(err, ledger.ErrLocked) {
		t.Errorf("a second daemon: %v", err)
	}
	first.Close()
	again, err := daemon.New(t.Context(), cfg, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestRun serves on a socket whose path is longer than an address may be, and
// ends with its context, the socket gone.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	cfg := load(t, "ALINEOD_STATE_DIR="+dir)
	d, err := daemon.New(t.Context(), cfg, daemon.Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	c := client.New("unix://"+cfg.Socket, "")
	limit, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for c.Health(limit) != nil {
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		case <-limit.Done():
			t.Fatal("it does not answer")
		}
	}
	v, err := c.Version(limit)
	if err != nil || v.Version != "test" {
		t.Errorf("version: %+v, %v", v, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestAddressTaken: a daemon that cannot have one of its listeners opens none,
// and says which.
func TestAddressTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	cfg := load(t, "ALINEOD_STATE_DIR="+t.TempDir(), "ALINEOD_LISTEN="+address, "ALINEOD_METRICS_LISTEN="+taken.Addr().String())
	d, err := daemon.New(t.Context(), cfg, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	err = d.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "metrics.listen") || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("%v", err)
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the API's listener was left open: %v", err)
	}
	again.Close()
}
