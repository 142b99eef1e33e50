package archive

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	blockSize = 512
	// maxRecords bounds one pax header, or one long name, in bytes.
	maxRecords = 1 << 20
	// maxSegments bounds the data segments of one sparse file: 16 MiB of map.
	maxSegments = 1 << 20
)

// The types of entries that are accepted, as a tar header spells them.
const (
	typeReg     = '0'
	typeLink    = '1'
	typeSymlink = '2'
	typeDir     = '5'
	typeFifo    = '6'
)

// The records of a pax header that carry meaning here.
const (
	paxPath     = "path"
	paxLinkpath = "linkpath"
	paxSize     = "size"
	paxUID      = "uid"
	paxGID      = "gid"
	paxMtime    = "mtime"
	paxXattr    = "SCHILY.xattr."
	paxSparse   = "GNU.sparse."
	sparseMajor = paxSparse + "major"
	sparseMinor = paxSparse + "minor"
	sparseName  = paxSparse + "name"
	sparseReal  = paxSparse + "realsize"
)

// timespec is a point of time as the file system keeps it.
type timespec struct {
	sec  int64
	nsec int64
}

// entry is one member of an archive.
type entry struct {
	name  string // no slash at its end
	link  string
	typ   byte
	mode  uint32 // permissions, setuid, setgid, sticky
	uid   uint32
	gid   uint32
	mtime timespec
	// size is the number of bytes that follow in the archive, apparent the
	// size of the file. They differ for a sparse file.
	size     int64
	apparent int64
	sparse   bool
	xattrs   []xattr
}

type xattr struct{ name, value string }

// segment is a stretch of data in a sparse file.
type segment struct{ off, n int64 }

// Attribute names may hold what a pax keyword may not; this is how GNU tar
// writes them.
var (
	escapeXattr   = strings.NewReplacer("%", "%25", "=", "%3D")
	unescapeXattr = strings.NewReplacer("%3D", "=", "%25", "%")
)

// appendHeader appends the header blocks of e.
func appendHeader(b []byte, e *entry) []byte {
	var records [][2]string
	rec := func(k, v string) { records = append(records, [2]string{k, v}) }

	name := e.name
	if e.typ == typeDir {
		name += "/"
	}
	headerName := name
	switch {
	case e.sparse:
		// A reader that does not know sparse files extracts the map and the
		// data under this name and leaves the real one alone.
		headerName = path.Join(path.Dir(e.name), "GNUSparseFile.0", path.Base(e.name))
		rec(sparseMajor, "1")
		rec(sparseMinor, "0")
		rec(sparseName, e.name)
		rec(sparseReal, strconv.FormatInt(e.apparent, 10))
		if !fits(headerName) {
			rec(paxPath, headerName)
		}
	case !fits(name):
		rec(paxPath, name)
	}
	if e.link != "" && !fits(e.link) {
		rec(paxLinkpath, e.link)
	}
	if e.size > maxOctal(12) {
		rec(paxSize, strconv.FormatInt(e.size, 10))
	}
	if int64(e.uid) > maxOctal(8) {
		rec(paxUID, strconv.FormatUint(uint64(e.uid), 10))
	}
	if int64(e.gid) > maxOctal(8) {
		rec(paxGID, strconv.FormatUint(uint64(e.gid), 10))
	}
	if e.mtime.nsec != 0 || e.mtime.sec < 0 || e.mtime.sec > maxOctal(12) {
		rec(paxMtime, formatTime(e.mtime))
	}
	for _, x := range e.xattrs {
		rec(paxXattr+escapeXattr.Replace(x.name), x.value)
	}
	if len(records) > 0 {
		slices.SortStableFunc(records, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
		var body []byte
		for _, r := range records {
			body = appendRecord(body, r[0], r[1])
		}
		pax := entry{
			name: path.Join(path.Dir(e.name), "PaxHeaders.0", path.Base(e.name)),
			typ:  'x', mode: 0o644, size: int64(len(body)),
		}
		b = appendBlock(b, pax.name, &pax)
		b = append(b, body...)
		b = append(b, zeros[:padding(pax.size)]...)
	}
	return appendBlock(b, headerName, e)
}

// appendBlock appends the one ustar block of e. What does not fit stands in
// the pax header before it.
func appendBlock(b []byte, name string, e *entry) []byte {
	var blk [blockSize]byte
	copy(blk[0:100], name)
	octal(blk[100:108], int64(e.mode))
	octal(blk[108:116], int64(e.uid))
	octal(blk[116:124], int64(e.gid))
	octal(blk[124:136], e.size)
	octal(blk[136:148], e.mtime.sec)
	blk[156] = e.typ
	copy(blk[157:257], e.link)
	copy(blk[257:265], "ustar\x0000")
	octal(blk[329:337], 0)
	octal(blk[337:345], 0)
	sum, _ := checksums(&blk)
	copy(blk[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return append(b, blk[:]...)
}

var zeros [blockSize]byte

// fits reports whether a name can stand in the header itself, for every
// reader. Names that are not ASCII go into a pax record as well.
func fits(name string) bool {
	if len(name) > 100 {
		return false
	}
	for i := range len(name) {
		if name[i] >= 0x80 {
			return false
		}
	}
	return true
}

func maxOctal(width int) int64 { return 1<<(3*(width-1)) - 1 }

// octal writes v, or zero where v does not fit.
func octal(field []byte, v int64) {
	if v < 0 || v > maxOctal(len(field)) {
		v = 0
	}
	field[len(field)-1] = 0
	for i := len(field) - 2; i >= 0; i-- {
		field[i] = '0' + byte(v&7)
		v >>= 3
	}
}

// checksums returns the sum of the block's bytes, its checksum field taken as
// spaces, for unsigned and for signed bytes: old writers used the latter.
func checksums(blk *[blockSize]byte) (unsigned, signed int64) {
	for i, c := range blk {
		if i >= 148 && i < 156 {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return unsigned, signed
}

// appendRecord appends "LENGTH KEY=VALUE\n", where the length counts itself.
func appendRecord(b []byte, k, v string) []byte {
	n := len(k) + len(v) + 3
	size := n + len(strconv.Itoa(n))
	if s := n + len(strconv.Itoa(size)); s != size {
		size = s
	}
	b = strconv.AppendInt(b, int64(size), 10)
	b = append(b, ' ')
	b = append(b, k...)
	b = append(b, '=')
	b = append(b, v...)
	return append(b, '\n')
}

func padding(n int64) int64 { return -n & (blockSize - 1) }

func formatTime(t timespec) string {
	sec, nsec, sign := t.sec, t.nsec, ""
	if sec < 0 {
		sign = "-"
		sec = -sec
		if nsec != 0 {
			sec, nsec = sec-1, 1e9-nsec
		}
	}
	if nsec == 0 {
		return sign + strconv.FormatInt(sec, 10)
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, sec, nsec), "0")
}

// parseTime reads a decimal number of seconds. Digits beyond the nanosecond
// are cut off.
func parseTime(s string) (timespec, bool) {
	whole, frac, _ := strings.Cut(s, ".")
	digits, negative := strings.CutPrefix(whole, "-")
	sec, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || sec > math.MaxInt64/2 {
		return timespec{}, false
	}
	var nsec int64
	for i := range 9 {
		nsec *= 10
		if i < len(frac) {
			nsec += int64(frac[i] - '0')
		}
	}
	for i := range len(frac) {
		if frac[i] < '0' || frac[i] > '9' {
			return timespec{}, false
		}
	}
	t := timespec{int64(sec), nsec}
	if negative {
		t.sec = -t.sec
		if nsec != 0 {
			t.sec, t.nsec = t.sec-1, 1e9-nsec
		}
	}
	return t, true
}

// keptXattr reports whether attributes of that name are packed and unpacked.
// Others describe the machine (security.selinux) or a file system's inner life
// (trusted.overlay.*) and must not be carried from one to another.
func keptXattr(name string) bool {
	switch name {
	case xattrCapability, xattrACL, xattrDefaultACL:
		return true
	}
	return strings.HasPrefix(name, xattrUser) && len(name) > len(xattrUser) &&
		len(name) <= maxName && !strings.ContainsRune(name, 0)
}

const (
	xattrUser       = "user."
	xattrCapability = "security.capability"
	xattrACL        = "system.posix_acl_access"
	xattrDefaultACL = "system.posix_acl_default"
)
