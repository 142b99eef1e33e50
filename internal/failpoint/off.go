//go:build !failpoint

// Package failpoint marks the places where a crash must be survived.
//
// A place is marked with Hit("room.place"). In a normal build the call is
// empty. Built with the tag "failpoint", a process whose environment says
// ALINEOD_FAILPOINT=room.place kills itself there with SIGKILL; with
// room.place@3, at the third hit.
package failpoint

// Enabled says whether failpoints are compiled in.
const Enabled = false

// Hit marks a place. It does nothing in this build.
func Hit(string) {}
