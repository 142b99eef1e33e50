package archive

import (
	"errors"

	"golang.org/x/sys/unix"
)

// finish gives what was made its owner, attributes, mode and times. fd is -1
// for a symbolic link and a fifo, which are reached by name.
//
// The order matters: an unprivileged owner may set user attributes only while
// the mode lets it write; a change of owner takes away capabilities and the
// setuid bit; a change of mode alters an access control list, and may end the
// owner's own way to "." of a directory. None of them changes the time of the
// last modification.
func (u *unpacker) finish(at int, base string, fd int, e *entry) error {
	if fd >= 0 {
		if err := u.setXattrs(fd, e, func(n string) bool { return n != xattrCapability && n != xattrACL && n != xattrDefaultACL }); err != nil {
			return err
		}
	} else {
		u.stats.Skipped.Xattrs += int64(len(e.xattrs))
	}
	mode := e.mode &^ u.chown(at, base, fd, e)
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: e.mtime.sec, Nsec: e.mtime.nsec}}
	err := unix.UtimesNanoAt(at, base, ts, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	if e.typ != typeSymlink {
		if fd >= 0 {
			err = unix.Fchmod(fd, mode)
		} else {
			err = chmodName(at, base, mode)
		}
		if err != nil {
			return err
		}
	}
	if fd >= 0 {
		if err := u.setXattrs(fd, e, func(n string) bool { return n == xattrCapability || n == xattrACL || n == xattrDefaultACL }); err != nil {
			return err
		}
	}
	return nil
}

// chown sets the owner as far as it may and returns the bits of the mode that
// must not be set: a setuid bit is a promise of the owner it was given for.
func (u *unpacker) chown(at int, base string, fd int, e *entry) (drop uint32) {
	if e.uid == u.uid && e.gid == u.gid && e.typ != typeDir {
		return 0 // it is: we have just made it
	}
	set := func(uid, gid int) error {
		if fd >= 0 {
			return unix.Fchown(fd, uid, gid)
		}
		return unix.Fchownat(at, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if set(int(e.uid), int(e.gid)) == nil {
		return 0
	}
	u.stats.Skipped.Owners++
	if set(int(e.uid), -1) != nil {
		drop |= unix.S_ISUID
	}
	if set(-1, int(e.gid)) != nil {
		drop |= unix.S_ISGID
	}
	return drop
}

// setXattrs sets those attributes that sel selects.
func (u *unpacker) setXattrs(fd int, e *entry, sel func(string) bool) error {
	for _, x := range e.xattrs {
		if !sel(x.name) {
			continue
		}
		if !keptXattr(x.name) {
			u.stats.Skipped.Xattrs++
			continue
		}
		err := unix.Fsetxattr(fd, x.name, []byte(x.value), 0)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES),
			errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA), errors.Is(err, unix.E2BIG):
			u.stats.Skipped.Xattrs++
		default:
			return err
		}
	}
	return nil
}
