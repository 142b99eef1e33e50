// Package client talks to a daemon over HTTP: one method per route, and a
// reader of its event streams that outlives the daemon's restarts.
//
// An answer that is not a success is an *Error; a daemon that is not there is
// ErrNoDaemon. Nothing is sent twice by itself: whoever repeats a request that
// changes something gives it an idempotency key.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"
)

// DefaultHost is where a daemon listens unless it is told otherwise.
const DefaultHost = "http://127.0.0.1:4600"

const (
	unixScheme = "unix://"
	// dialTimeout bounds the search for a daemon, not the wait for its answer:
	// that is the caller's context.
	dialTimeout = 10 * time.Second
	// maxAnswer bounds, in bytes, an answer that is read as a whole. The
	// largest are transcripts.
	maxAnswer = 256 << 20
	// maxError bounds, in bytes, what is read of an answer that is no success.
	maxError = 1 << 20
)

// Client is a client of one daemon. Its methods are safe for concurrent use;
// its fields are set before the first of them is called.
type Client struct {
	// Clock paces the event streams' reconnections. New sets the real one.
	Clock clockwork.Clock

	address string // as the user gave it
	base    string
	token   string
	http    *http.Client
	broken  error // why base cannot be used
}

// New returns a client of the daemon at base, which is http://HOST:PORT,
// https://HOST:PORT, unix:///path/to/socket or unix://@abstract-name. An empty token sends none. It
// does not connect; a base that cannot be used is reported by every method.
func New(base, token string) *Client {
	c := &Client{Clock: clockwork.NewRealClock(), address: base, token: token}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
		// A daemon is talked to directly, whatever proxy the user has.
		Proxy: nil,
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport.DialContext = dialer.DialContext
	c.http = &http.Client{
		Transport: transport,
		// A daemon redirects nowhere; following would carry the token away.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if path, ok := strings.CutPrefix(base, unixScheme); ok {
		if !filepath.IsAbs(path) && !strings.HasPrefix(path, "@") { // @: abstract
			c.broken = fmt.Errorf("%w: %q: the socket's path is not absolute", ErrAddress, base)
		}
		c.base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialUnix(ctx, dialer, path)
		}
		return c
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		c.broken = fmt.Errorf("%w: %q: write http://HOST:PORT or unix:///path", ErrAddress, base)
		return c
	}
	c.base = strings.TrimRight(base, "/")
	return c
}

// Address is the base the client was made with.
func (c *Client) Address() string { return c.address }

// Through has every request go through what wrap makes of the client's own
// transport. It is called before the first request.
func (c *Client) Through(wrap func(http.RoundTripper) http.RoundTripper) {
	c.http.Transport = wrap(c.http.Transport)
}

// Close gives back the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dialUnix connects to a socket whose path may be longer than the kernel's 107
// bytes, by way of its opened directory.
func dialUnix(ctx context.Context, d *net.Dialer, path string) (net.Conn, error) {
	const maxPath = 107
	if len(path) <= maxPath {
		return d.DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: err}
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(dir.Fd()))+"/"+filepath.Base(path))
}

// request is one call of a route.
type request struct {
	method string
	path   string
	query  url.Values
	header http.Header
	body   any       // marshalled as JSON, unless nil
	raw    io.Reader // sent as it is, instead of body
	accept []int     // statuses that are answers although they are no successes
}

// path joins escaped segments.
func path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// open sends a request and returns the answer with its body unread.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	what := r.method + " " + r.path
	if c.broken != nil {
		return nil, c.broken
	}
	body := r.raw
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("%s: writing the request: %w", what, err)
		}
		body = bytes.NewReader(data)
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(ctx, what, err)
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	for _, status := range r.accept {
		if res.StatusCode == status {
			return res, nil
		}
	}
	defer res.Body.Close()
	return nil, readError(res)
}

// failed gives a request that got no answer its kind.
func (c *Client) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &NoDaemonError{Address: c.address, Err: op.Err}
	}
	// The URL of a *url.Error only repeats what is known.
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%s: %w: %w", what, ErrBroken, err)
}

// do sends a request and reads its JSON answer into out, unless that is nil.
// It returns the status.
func (c *Client) do(ctx context.Context, r request, out any) (int, error) {
	res, err := c.open(ctx, r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, c.failed(ctx, r.method+" "+r.path, err)
	}
	if out == nil || len(data) == 0 && res.StatusCode == http.StatusNoContent {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return 0, fmt.Errorf("%s %s: reading the answer: %w", r.method, r.path, err)
	}
	return res.StatusCode, nil
}

// call is do for a method that returns its answer.
func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out T
	_, err := c.do(ctx, r, &out)
	if err != nil {
		var none T
		return none, err
	}
	return out, nil
}
