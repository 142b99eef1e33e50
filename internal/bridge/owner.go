package bridge

import (
	"os"

	"golang.org/x/sys/unix"
)

// owner is whom the files below the bridge's directory belong to: the owner of
// that directory, as the daemon made it. In a container the bridge is root and
// the daemon outside may be anybody: giving the socket and the journal to the
// directory's owner lets that daemon, and nobody else, connect, read and
// delete. Where they cannot be given away (a user namespace that does not know
// the owner, a missing capability) they are opened to all instead: the
// directory's own mode, 0700, keeps others out then.
type owner struct {
	uid, gid int
}

func ownerOf(dir *os.File) (owner, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return owner{}, &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	return owner{uid: int(st.Uid), gid: int(st.Gid)}, nil
}

// give gives an open file or directory to the owner, with mode, or opens it to
// all.
func (o owner) give(f *os.File, mode uint32) error {
	fd := int(f.Fd())
	if err := unix.Fchmod(fd, mode); err != nil {
		return &os.PathError{Op: "chmod", Path: f.Name(), Err: err}
	}
	if o.uid == os.Geteuid() || unix.Fchown(fd, o.uid, o.gid) == nil {
		return nil
	}
	return unix.Fchmod(fd, openToAll(mode))
}

// giveAt does the same to a name in a directory, which is the caller's own.
func (o owner) giveAt(dir *os.File, name string, mode uint32) error {
	fd := int(dir.Fd())
	if err := unix.Fchmodat(fd, name, mode, 0); err != nil {
		return &os.PathError{Op: "chmod", Path: name, Err: err}
	}
	if o.uid == os.Geteuid() || unix.Fchownat(fd, name, o.uid, o.gid, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	return unix.Fchmodat(fd, name, openToAll(mode), 0)
}

func openToAll(mode uint32) uint32 { return mode | mode>>3 | mode>>6 }
