package api_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/alineod/alineod/internal/api"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	var calls []any
	o := options(working(&calls))
	o.Token, o.ReadOnlyTokens = "writer", []string{"reader", "other-reader"}
	h := newHandler(t, o)
	for _, c := range []struct {
		method, target, auth string
		status               int
		code                 string
	}{
		{"GET", "/runs", "", 401, "unauthorized"},
		{"GET", "/runs", "Bearer wrong", 401, "unauthorized"},
		{"GET", "/runs", "Bearer ", 401, "unauthorized"},
		{"GET", "/runs", "Basic writer", 401, "unauthorized"},
		{"GET", "/runs", "writer", 401, "unauthorized"},
		{"GET", "/nothing", "", 401, "unauthorized"}, // nor is it told what there is
		{"GET", "/runs", "Bearer writer", 200, ""},
		{"GET", "/runs", "bearer writer", 200, ""},
		{"GET", "/runs", "Bearer reader", 200, ""},
		{"GET", "/runs", "Bearer other-reader", 200, ""},
		{"HEAD", "/runs", "Bearer reader", 200, ""},
		{"POST", "/agents/a/pause", "Bearer writer", 202, ""},
		{"POST", "/agents/a/pause", "Bearer reader", 403, "read_only"},
		{"DELETE", "/runs/r", "Bearer reader", 403, "read_only"},
		{"PUT", "/agents/a/checkpoints/import", "Bearer reader", 403, "read_only"},
		{"POST", "/ledger/verify", "Bearer reader", 403, "read_only"},
		{"GET", "/readyz", "", 401, "unauthorized"},
		{"GET", "/health", "", 200, ""},
	} {
		var headers []string
		if c.auth != "" {
			headers = []string{"Authorization", c.auth}
		}
		calls = nil
		w := ask(h, c.method, c.target, "", headers...)
		if c.code != "" {
			refused(t, w, c.status, c.code)
			if len(calls) > 0 {
				t.Errorf("%s %s with %q reached the swarm: %v", c.method, c.target, c.auth, calls)
			}
			if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (c.status == 401) {
				t.Errorf("%s %s: WWW-Authenticate %q", c.method, c.target, challenge)
			}
		} else if w.Code != c.status {
			t.Errorf("%s %s with %q: %d", c.method, c.target, c.auth, w.Code)
		}
	}
}

func TestHostAndOrigin(t *testing.T) {
	t.Parallel()
	var calls []any
	serve := func(listen, token string, also ...string) http.Handler {
		o := options(working(&calls))
		o.Listen, o.Token, o.AllowedHosts = listen, token, also
		return newHandler(t, o)
	}
	local, everywhere := serve("127.0.0.1:4600", ""), serve("0.0.0.0:4600", "t")
	named, proxied := serve("10.1.2.3:4600", "t"), serve("localhost:4600", "", "Swarm.example")
	for _, c := range []struct {
		h            http.Handler
		host, origin string
		status       int
		code         string
	}{
		{local, "127.0.0.1:4600", "", 200, ""},
		{local, "localhost:4600", "", 200, ""},
		{local, "LOCALHOST", "", 200, ""},
		{local, "127.0.0.2:1", "", 200, ""},
		{local, "[::1]:4600", "", 200, ""},
		{local, "[::1]", "", 200, ""},
		{local, "evil.example", "", 403, "host_not_allowed"}, // a name made to resolve to loopback
		{local, "localhost.evil.example:4600", "", 403, "host_not_allowed"},
		{local, "127.0.0.1.evil.example", "", 403, "host_not_allowed"},
		{local, "10.1.2.3:4600", "", 403, "host_not_allowed"},
		{local, "", "", 403, "host_not_allowed"},
		{named, "10.1.2.3:4600", "", 200, ""},
		{named, "10.1.2.4:4600", "", 403, "host_not_allowed"},
		{everywhere, "swarm.example", "", 200, ""},
		{proxied, "swarm.EXAMPLE", "", 200, ""},
		{local, "127.0.0.1:4600", "http://127.0.0.1:4600", 200, ""},
		{local, "127.0.0.1:4600", "http://evil.example", 403, "origin_not_allowed"},
		{local, "127.0.0.1:4600", "http://127.0.0.1:3000", 403, "origin_not_allowed"},
		{local, "127.0.0.1:4600", "null", 403, "origin_not_allowed"},
		{local, "127.0.0.1:4600", "%%", 403, "origin_not_allowed"},
		{everywhere, "swarm.example", "http://evil.example", 403, "origin_not_allowed"},
	} {
		headers := []string{"Host", c.host, "Authorization", "Bearer t"}
		if c.origin != "" {
			headers = append(headers, "Origin", c.origin)
		}
		for _, method := range []string{"GET", "POST"} {
			target, want := "/runs", c.status
			if method == "POST" {
				target = "/reconcile"
			}
			w := ask(c.h, method, target, "", headers...)
			if c.code != "" {
				refused(t, w, want, c.code)
			} else if w.Code != want {
				t.Errorf("%s %q origin %q: %d %s", method, c.host, c.origin, w.Code, w.Body)
			}
		}
	}
	if w := ask(local, "GET", "/health", "", "Host", "10.9.9.9:4600"); w.Code != 200 {
		t.Errorf("health by an address: %d", w.Code)
	}
}

// TestUnixSocket: who may open the socket may call the daemon what they like.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var calls []any
	server := &http.Server{Handler: newHandler(t, options(working(&calls)))}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() { server.Close(); <-done }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("http://alineod.invalid/runs")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != 200 {
		t.Errorf("got %d", answer.StatusCode)
	}
}

// TestOpenDoors: what would let others in is refused at the start.
func TestOpenDoors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*api.Options)
		ok     bool
	}{
		"loopback":                  {func(*api.Options) {}, true},
		"socket only":               {func(o *api.Options) { o.Listen = "" }, true},
		"IPv6 loopback":             {func(o *api.Options) { o.Listen = "[::1]:0" }, true},
		"everywhere":                {func(o *api.Options) { o.Listen = ":4600" }, false},
		"everywhere, spelled out":   {func(o *api.Options) { o.Listen = "0.0.0.0:4600" }, false},
		"a name":                    {func(o *api.Options) { o.Listen = "host.example:4600" }, false},
		"everywhere with a token":   {func(o *api.Options) { o.Listen, o.Token = ":4600", "t" }, true},
		"no port":                   {func(o *api.Options) { o.Listen = "127.0.0.1" }, false},
		"readers without a writer":  {func(o *api.Options) { o.ReadOnlyTokens = []string{"r"} }, false},
		"a reader's token is empty": {func(o *api.Options) { o.Token, o.ReadOnlyTokens = "t", []string{""} }, false},
		"nothing to serve":          {func(o *api.Options) { o.Swarm = nil }, false},
	} {
		o := options(&fake{})
		c.change(&o)
		if _, err := api.New(o); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
