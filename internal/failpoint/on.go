//go:build failpoint

// Package failpoint marks the places where a crash must be survived.
//
// A place is marked with Hit("room.place"). In a normal build the call is
// empty. Built with the tag "failpoint", a process whose environment says
// ALINEOD_FAILPOINT=room.place kills itself there with SIGKILL; with
// room.place@3, at the third hit.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled says whether failpoints are compiled in.
const Enabled = true

// Env names the variable that arms a failpoint.
const Env = "ALINEOD_FAILPOINT"

var (
	armed, at = parse(os.Getenv(Env))
	hits      atomic.Int64
)

func parse(v string) (name string, at int64) {
	name, n, found := strings.Cut(v, "@")
	if !found {
		return name, 1
	}
	at, err := strconv.ParseInt(n, 10, 64)
	if err != nil || at < 1 {
		fmt.Fprintf(os.Stderr, "failpoint: %s=%q: want NAME or NAME@COUNT\n", Env, v)
		os.Exit(2)
	}
	return name, at
}

// Hit marks a place. When it is the armed one and its turn has come, the
// process dies at once: nothing deferred runs, nothing is flushed.
func Hit(name string) {
	if armed == "" || name != armed || hits.Add(1) != at {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
