// Package archive writes and reads the tar of an agent's home directory.
//
// Both ends are ours: the bridge inside the sandbox packs and unpacks, the
// daemon verifies what comes out of a sandbox before it stores it. The stream
// is nevertheless a plain POSIX (pax) tar that GNU tar reads and writes, so
// that a person can open, change and bring back a checkpoint.
//
// # Layout
//
// The home directory is "home/", its content stands below it. A path outside
// the home, /srv/data, is "root/srv/data". Nothing else may be in an archive.
// Entries are regular files, directories, symbolic links, hard links and
// fifos. Owners are numbers. Times are kept to the nanosecond, of directories
// and symbolic links too. Sparse files are stored as GNU sparse 1.0. Kept
// extended attributes are user.*, security.capability and the POSIX access
// control lists, as SCHILY.xattr records.
//
// # Trust
//
// Whoever sits in the sandbox may write any archive. The reader therefore
// takes nothing for granted: names that are absolute or climb, names that come
// twice, a file used as a directory, links to what the archive does not hold
// and device nodes are ErrUnsafe, whatever exceeds the Limits is ErrTooBig,
// and what is no whole tar is ErrMalformed. On the file system no symbolic
// link below a root is ever followed.
//
// # Memory
//
// Contents are streamed. What grows is a few dozen bytes per entry (the names
// seen), per directory of an unpack (its mode and times), and the names of one
// directory and its ancestors in a pack.
package archive

import "errors"

// Kinds of errors. Callers ask with errors.Is. An error of the underlying
// reader, writer or file system is wrapped as it came and has none of them.
var (
	// ErrUnsafe: the archive asks for something that is not allowed.
	ErrUnsafe = errors.New("unsafe archive")
	// ErrTooBig: the archive exceeds a limit.
	ErrTooBig = errors.New("archive exceeds a limit")
	// ErrMalformed: not a whole, valid tar.
	ErrMalformed = errors.New("malformed archive")
	// ErrOptions: the caller's home, paths or patterns are not valid.
	ErrOptions = errors.New("invalid archive options")
)

// Names of the two trees of an archive.
const (
	homeDir = "home"
	rootDir = "root"
)

// Stats says what an archive held, or what went into it.
type Stats struct {
	Files int64 // entries that are not directories; each hard link counts
	Dirs  int64
	// Bytes of the contents of regular files. Holes do not count.
	Bytes   int64
	Skipped Skipped
}

// Skipped counts what was left out or could not be brought back.
type Skipped struct {
	Excluded   int64 // matched a pattern; a directory counts once
	Sockets    int64
	Devices    int64
	Vanished   int64 // went away during the pack
	Changed    int64 // changed during the pack: cut, or filled up with zeros
	Unreadable int64 // no permission; a directory is packed without content
	Xattrs     int64 // attributes of a kind that is not kept, or refused
	Owners     int64 // owners that an unprivileged unpack may not set
}

// Lost is the number of things of the home that the archive lacks although
// nobody asked for that.
func (s Skipped) Lost() int64 { return s.Vanished + s.Changed + s.Unreadable }

// Limits bound what is accepted. A zero field means its default.
type Limits struct {
	MaxEntries int64 // directories that are only implied count too
	MaxBytes   int64 // of the whole stream, uncompressed
	MaxFile    int64 // apparent size of one file, with its holes
	MaxPath    int   // bytes of one name, and of one link's target
}

// The default limits: far beyond any home directory in use, and small enough
// that the worst archive within them costs its reader about 110 MB (measured: the
// names of DefaultMaxEntries entries).
const (
	DefaultMaxEntries = 2 << 20
	DefaultMaxBytes   = 64 << 30
	DefaultMaxFile    = 16 << 40
	DefaultMaxPath    = 16 << 10
)

// maxName is the longest single name the file systems of Linux take.
const maxName = 255

func (l Limits) withDefaults() Limits {
	if l.MaxEntries <= 0 {
		l.MaxEntries = DefaultMaxEntries
	}
	if l.MaxBytes <= 0 {
		l.MaxBytes = DefaultMaxBytes
	}
	if l.MaxFile <= 0 {
		l.MaxFile = DefaultMaxFile
	}
	if l.MaxPath <= 0 {
		l.MaxPath = DefaultMaxPath
	}
	return l
}
