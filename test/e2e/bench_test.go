package e2e_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alineod/alineod/internal/runtime/runtimetest"
)

// BenchmarkReattach starts a daemon on 100 idle local agents, whose daemon was
// killed, and measures until all of them are back: the whole way from the start
// of the process to a /readyz that says so. The same ladder run serially stands
// beside it.
func BenchmarkReattach(b *testing.B) {
	const agents, limit = 100, 2 * time.Second
	d := newDaemon(b)
	var ids []string
	for range agents {
		ids = append(ids, d.run(`{"harness": "scripted"}`, "say here"))
	}
	for _, id := range ids {
		d.result(id)
	}
	for _, way := range []struct{ name, parallelism string }{{"parallel", "8"}, {"serial", "1"}} {
		b.Run(way.name, func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				b.StopTimer()
				d.kill()
				b.StartTimer()
				begun := time.Now()
				d.launch("ALINEOD_RECOVERY_PARALLELISM=" + way.parallelism)
				d.readyAt(time.Millisecond)
				took += time.Since(begun)
			}
			b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N)/agents, "ms/agent")
			if way.name == "parallel" && took/time.Duration(b.N) > limit {
				b.Errorf("%d agents took %s, want at most %s", agents, took/time.Duration(b.N), limit)
			}
			for _, id := range ids {
				if rungs := d.recoveries(id); rungs[len(rungs)-1] != "reattached" {
					b.Errorf("%s came back as %s", id, rungs[len(rungs)-1])
				}
			}
		})
	}
}

// readyAt asks every so often whether all agents are back.
func (d *daemon) readyAt(every time.Duration) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if r, err := d.Ready(ctx); err == nil && r.Ready {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			d.t.Fatal("not ready in time")
		}
	}
}

// engineProxy passes requests on to the engine and notes them.
type engineProxy struct {
	host string
	mu   sync.Mutex
	seen []string
}

func newEngineProxy(t *testing.T) *engineProxy {
	t.Helper()
	engine, ok := strings.CutPrefix(docker(t, "context", "inspect", "-f", "{{.Endpoints.docker.Host}}"), "unix://")
	if !ok {
		t.Skip("NOT TESTED: the engine has no unix socket")
	}
	p := &engineProxy{}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	pass.FlushInterval = -1
	pass.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", engine)
	}}
	socket := filepath.Join(stateDir(t), "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r.Method+" "+apiVersion.ReplaceAllString(r.URL.Path, ""))
		p.mu.Unlock()
		pass.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-served })
	p.host = "unix://" + socket
	return p
}

var apiVersion = regexp.MustCompile(`^/v[0-9.]+`)

// take returns the requests that were seen since the last call.
func (p *engineProxy) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}

// TestReattachAsksTheEngineOnce: for any number of agents, coming back to all
// of them is one list, and no call that names a container.
func TestReattachAsksTheEngineOnce(t *testing.T) {
	t.Parallel()
	image := runtimetest.BaseImage(t)
	proxy := newEngineProxy(t)
	d := newDockerDaemon(t, "ALINEOD_DOCKER_HOST="+proxy.host)
	const agents = 3
	var ids []string
	for range agents {
		ids = append(ids, d.run(smallSpec(image, ""), "say one"))
	}
	for _, id := range ids {
		want(t, "turn", result(d.result(id)), "success one")
		d.checkpoints(id, 1)
	}
	d.kill()
	proxy.take()
	d.start()
	for _, id := range ids {
		want(t, "rung", d.awaitRung(id, 1), "reattached")
	}
	lists := 0
	for _, request := range proxy.take() {
		switch {
		case request == "GET /containers/json":
			lists++ // one by the boot pass, one by the reconciliation after it
		case strings.Contains(request, "/containers/"), strings.Contains(request, "/exec"):
			t.Errorf("coming back asked the engine: %s", request)
		}
	}
	if lists < 1 || lists > 2 {
		t.Errorf("%d lists for %d agents", lists, agents)
	}
	d.settle()
}
