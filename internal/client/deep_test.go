package client_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// listenDeep listens on d.sock in a directory whose path may be too long for
// an address: the directory is given its name after the socket is made.
func listenDeep(t *testing.T, dir string) net.Listener {
	t.Helper()
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(short, "d.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Rename(short, dir); err != nil {
		t.Fatal(err)
	}
	return l
}
