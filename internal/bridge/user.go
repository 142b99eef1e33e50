package bridge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is whom the harness runs as.
type account struct {
	name string
	home string
	// cred is nil where no switch is needed.
	cred     *syscall.Credential
	uid, gid int
}

var errNoUser = errors.New("no such user")

// lookupAccount resolves a name, uid or uid:gid (either part by name, too)
// from the password and group files below root. Empty means the user of this
// process. A numeric user need not be listed.
func lookupAccount(root, spec string) (account, error) {
	a := account{uid: os.Getuid(), gid: os.Getgid()}
	user, group, hasGroup := strings.Cut(spec, ":")
	if user == "" {
		user = strconv.Itoa(a.uid)
	}
	uid, numeric := parseID(user)
	found := false
	err := eachLine(filepath.Join(root, "etc/passwd"), 7, func(f []string) bool {
		id, ok := parseID(f[2])
		gid, gidOK := parseID(f[3])
		if !ok || !gidOK || (f[0] != user && !(numeric && id == uid)) {
			return true
		}
		found = true
		a.name, a.home, a.uid, a.gid = f[0], f[5], id, gid
		return false
	})
	switch {
	case err != nil:
		return account{}, fmt.Errorf("looking up user %q: %w", spec, err)
	case !found && !numeric:
		return account{}, fmt.Errorf("looking up user %q: %w", spec, errNoUser)
	case !found && uid != os.Getuid():
		a.uid, a.gid = uid, 0 // as container engines do
	case !found:
		a.uid = uid
	}
	if spec == "" {
		return a, nil
	}
	groups, err := lookupGroups(root, a, group, hasGroup, &a.gid)
	if err != nil {
		return account{}, fmt.Errorf("looking up user %q: %w", spec, err)
	}
	if a.uid != os.Getuid() || a.gid != os.Getgid() {
		a.cred = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid), Groups: groups}
	}
	return a, nil
}

// lookupGroups returns the account's further groups, and sets *gid where the
// group was named.
func lookupGroups(root string, a account, group string, hasGroup bool, gid *int) ([]uint32, error) {
	var groups []uint32
	id, numeric := parseID(group)
	found := !hasGroup || numeric
	if hasGroup && numeric {
		*gid = id
	}
	err := eachLine(filepath.Join(root, "etc/group"), 4, func(f []string) bool {
		n, ok := parseID(f[2])
		if !ok {
			return true
		}
		if hasGroup && f[0] == group {
			*gid, found = n, true
		}
		for _, member := range strings.Split(f[3], ",") {
			// A group that was named stands alone, as container engines do.
			if !hasGroup && member == a.name && a.name != "" && len(groups) < 64 {
				groups = append(groups, uint32(n))
			}
		}
		return true
	})
	if err == nil && !found {
		err = fmt.Errorf("group %q: %w", group, errNoUser)
	}
	return groups, err
}

func parseID(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}

// eachLine calls f with the fields of each line of a colon-separated file. The
// sandbox's owner may have written it: it is read up to a bound.
func eachLine(path string, fields int, f func([]string) bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	sc := bufio.NewScanner(io.LimitReader(file, 4<<20))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		parts := strings.Split(sc.Text(), ":")
		if len(parts) >= fields && !f(parts) {
			return nil
		}
	}
	return sc.Err()
}

// makeDir makes path and its missing parents, and gives those to the account.
func (a account) makeDir(path string) error {
	if st, err := os.Stat(path); err == nil {
		if !st.IsDir() {
			return &os.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := a.makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if a.cred == nil {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}
