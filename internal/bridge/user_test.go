package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/alineod/alineod/internal/bridge"
)

func TestLookupAccount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	os.Mkdir(filepath.Join(root, "etc"), 0o755)
	os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:r:/root:/bin/sh\nbroken\nodd:x:no:1::/:\nnode:x:1000:1001::/home/node:/bin/sh\n"), 0o644)
	os.WriteFile(filepath.Join(root, "etc/group"), []byte("node:x:1001:\nextra:x:2000:other,node\nmore:x:2001:node\nbad:x:z:node\n"), 0o644)
	for _, tc := range []struct {
		spec, name, home string
		uid, gid         int
		groups           []uint32
		fails            bool
	}{
		{spec: "node", name: "node", home: "/home/node", uid: 1000, gid: 1001, groups: []uint32{2000, 2001}},
		{spec: "1000", name: "node", home: "/home/node", uid: 1000, gid: 1001, groups: []uint32{2000, 2001}},
		{spec: "node:extra", name: "node", home: "/home/node", uid: 1000, gid: 2000},
		{spec: "4242:77", uid: 4242, gid: 77},
		{spec: "4242", uid: 4242, gid: 0},
		{spec: "nobody-here", fails: true},
		{spec: "node:nogroup", fails: true},
		{spec: "99999999999", fails: true},
		{spec: "-1", fails: true},
	} {
		name, home, uid, gid, groups, err := bridge.LookupAccount(root, tc.spec)
		if tc.fails {
			if err == nil {
				t.Errorf("%q: found %q", tc.spec, name)
			}
			continue
		}
		if err != nil || name != tc.name || home != tc.home || uid != tc.uid || gid != tc.gid || !slices.Equal(groups, tc.groups) {
			t.Errorf("%q: %q %q %d:%d %v, %v", tc.spec, name, home, uid, gid, groups, err)
		}
	}
	name, _, uid, gid, groups, err := bridge.LookupAccount(t.TempDir(), "")
	if err != nil || name != "" || uid != os.Getuid() || gid != os.Getgid() || groups != nil {
		t.Errorf("no files, no user: %q %d:%d %v, %v", name, uid, gid, groups, err)
	}
}

// The harness runs as the user that was asked for, in a home of that user.
func TestUserSwitch(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	args := newArgs(t)
	args.User, args.Workdir = "4321:4322", "made/for it"
	// Another user must be able to walk to its home and to its program.
	program := filepath.Join(args.Home, "..", "program")
	data, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := args.Home; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(args.Home, 4321, 4322); err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, args: args, dial: dialSocket, program: program}
	b.run("serve")
	c := b.ready(t, nil)
	deliver(t, c, "t_1", "where")
	got := said(until(t, c, "turn.ended"))
	var score int
	if n, err := fmt.Sscanf(got[0], args.Home+"/made/for it 4321:4322 %d", &score); n != 1 || err != nil || score < 500 {
		t.Errorf("runs as %q", got[0])
	}
	st, err := os.Stat(filepath.Join(args.Home, "made/for it"))
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != 4321 || sys.Gid != 4322 {
		t.Errorf("working directory belongs to %d:%d", sys.Uid, sys.Gid)
	}
	list, err := c.Processes(testContext(t))
	if err != nil || !slices.ContainsFunc(list, func(p bridge.Process) bool { return p.User == "4321" }) {
		t.Errorf("processes %+v, %v", list, err)
	}
	// What left its group is found although it is another user's.
	left := leftoversOf(t, c, "t_2", args.Home)
	if err := c.StopHarness(testContext(t), patience); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartHarness(testContext(t), startRequest(nil)); err != nil {
		t.Fatal(err)
	}
	for _, pid := range left {
		if alive(pid) {
			t.Errorf("leftover %d lives", pid)
		}
	}
}
