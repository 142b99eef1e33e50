// Package ids makes the identifiers of runs, agents, sandboxes and turns.
//
// An identifier is a one-letter kind, an underscore and twelve hexadecimal
// digits of randomness. It is chosen, and recorded, before the thing it names
// exists, so that a creation cut short by a crash can be found again.
package ids

import (
	"crypto/rand"
	"encoding/hex"
)

// The kinds of identifiers.
const (
	Run     = "r"
	Agent   = "a"
	Sandbox = "s"
	Turn    = "t"
)

const randomBytes = 6

// New returns a fresh identifier of the given kind. It is safe for concurrent
// use.
func New(kind string) string {
	var b [randomBytes]byte
	rand.Read(b[:]) // crypto/rand.Read never fails: it ends the program instead.
	return kind + "_" + hex.EncodeToString(b[:])
}

// Valid reports whether id has the form of an identifier of the given kind:
// the kind, an underscore and at least eight lower-case hexadecimal digits.
// Only a valid identifier may become part of a path or of a container's name.
func Valid(kind, id string) bool {
	const minDigits, maxDigits = 8, 64
	rest := len(kind) + 1
	if len(id) < rest+minDigits || len(id) > rest+maxDigits || id[:rest] != kind+"_" {
		return false
	}
	for _, c := range []byte(id[rest:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
