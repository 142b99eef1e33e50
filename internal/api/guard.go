package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// guard decides who may talk to the daemon.
//
// The checks of Host and Origin keep web pages out: a browser on this machine
// reaches loopback, and a page whose name was made to resolve to 127.0.0.1 is
// same-origin to it. Such a page cannot send another Host than its own name,
// nor leave out Origin where it could change something.
type guard struct {
	token    *[sha256.Size]byte
	readOnly [][sha256.Size]byte
	anyHost  bool
	hosts    map[string]bool
}

func newGuard(o Options) (guard, error) {
	g := guard{hosts: map[string]bool{}}
	if o.Token != "" {
		sum := sha256.Sum256([]byte(o.Token))
		g.token = &sum
	}
	for _, t := range o.ReadOnlyTokens {
		if t == "" {
			return guard{}, errors.New("a read-only token is empty")
		}
		g.readOnly = append(g.readOnly, sha256.Sum256([]byte(t)))
	}
	if g.token == nil && len(g.readOnly) > 0 {
		return guard{}, errors.New("read-only tokens are given but no token: without one everybody may write")
	}
	for _, h := range o.AllowedHosts {
		g.hosts[strings.ToLower(h)] = true
	}
	if o.Listen == "" {
		return g, nil
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return guard{}, fmt.Errorf("listen address %q: %w", o.Listen, err)
	}
	if !loopback(host) && g.token == nil {
		return guard{}, fmt.Errorf("listening on %s without a token: configure one, or listen on 127.0.0.1", o.Listen)
	}
	// On all addresses there is no telling by which name one is called; the
	// token, which a page does not know, stands guard there alone.
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		g.anyHost = true
	}
	g.hosts[strings.ToLower(host)] = true
	return g, nil
}

// check returns why a request is refused, nil if it is not.
func (g *guard) check(r *http.Request) *problem {
	if !g.hostAllowed(r) {
		return &problem{status: http.StatusForbidden, Code: "host_not_allowed",
			Message: fmt.Sprintf("Host %q is not a name of this daemon", r.Host)}
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return &problem{status: http.StatusForbidden, Code: "origin_not_allowed",
				Message: fmt.Sprintf("Origin %q is not this daemon's", origin)}
		}
	}
	return g.authorize(r)
}

func (g *guard) hostAllowed(r *http.Request) bool {
	if g.anyHost {
		return true
	}
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && a.Network() == "unix" {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return loopback(host) || g.hosts[host]
}

func (g *guard) authorize(r *http.Request) *problem {
	if g.token == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return &problem{status: http.StatusUnauthorized, Code: "unauthorized",
			Message: "a bearer token is needed"}
	}
	// Digests are compared: they are of one length, and the comparison takes
	// the same time wherever they differ.
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1 {
		return nil
	}
	reader := 0
	for i := range g.readOnly {
		reader |= subtle.ConstantTimeCompare(sum[:], g.readOnly[i][:])
	}
	switch {
	case reader == 0:
		return &problem{status: http.StatusUnauthorized, Code: "unauthorized", Message: "the bearer token is not known"}
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return &problem{status: http.StatusForbidden, Code: "read_only", Message: "this token may only read"}
	}
	return nil
}
