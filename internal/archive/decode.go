package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// decoder reads a tar stream entry by entry. It understands ustar, pax, GNU
// long names and GNU sparse 1.0. It judges form only; what the entries ask for
// is judged by the checker.
type decoder struct {
	br  *bufio.Reader
	lim Limits
	// left and pad are what remains of the current entry and of its last block.
	left, pad int64
}

func newDecoder(ctx context.Context, r io.Reader, lim Limits) *decoder {
	return &decoder{br: bufio.NewReaderSize(&source{ctx: ctx, r: r, max: lim.MaxBytes}, 256<<10), lim: lim}
}

// source ends a stream at the limit and when the context ends.
type source struct {
	ctx    context.Context
	r      io.Reader
	n, max int64
}

func (s *source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, context.Cause(s.ctx)
	}
	// One byte more than allowed is asked for, to tell an end at the limit
	// from a stream beyond it.
	if room := s.max - s.n + 1; int64(len(p)) > room {
		p = p[:room]
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	if s.n > s.max {
		return 0, fmt.Errorf("%w: more than %d bytes", ErrTooBig, s.max)
	}
	return n, err
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// broken turns an end of the stream where none may be into ErrMalformed.
func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the stream is cut short")
	}
	return fmt.Errorf("reading the archive: %w", err)
}

// extension is what the headers before an entry say of it.
type extension struct {
	records  map[string]string
	name     *string // GNU long name
	link     *string
	xattrs   []xattr
	haveable bool
}

// next returns the next entry. It answers io.EOF at the end, after it has seen
// the end mark and nothing but zeros up to the end of the stream.
func (d *decoder) next() (*entry, error) {
	var ext extension
	for {
		if err := d.skip(d.left + d.pad); err != nil {
			return nil, err
		}
		d.left, d.pad = 0, 0
		var blk [blockSize]byte
		if _, err := io.ReadFull(d.br, blk[:]); err != nil {
			return nil, broken(err)
		}
		if blk == zeros {
			if ext.haveable {
				return nil, malformed("a header belongs to no entry")
			}
			return nil, d.end()
		}
		unsigned, signed := checksums(&blk)
		if sum, ok := number(blk[148:156]); !ok || sum != unsigned && sum != signed {
			return nil, malformed("a header's checksum is wrong")
		}
		switch typ := blk[156]; typ {
		case 'x', 'g', 'L', 'K':
			if err := d.extend(&ext, typ, &blk); err != nil {
				return nil, err
			}
		default:
			return d.entry(&blk, &ext)
		}
	}
}

// end reads the second half of the end mark and the rest.
func (d *decoder) end() error {
	var blk [blockSize]byte
	if _, err := io.ReadFull(d.br, blk[:]); err != nil {
		return broken(err)
	}
	for {
		if blk != zeros {
			return malformed("data after the end mark")
		}
		n, err := io.ReadFull(d.br, blk[:])
		switch {
		case errors.Is(err, io.EOF):
			return io.EOF
		case errors.Is(err, io.ErrUnexpectedEOF):
			clear(blk[n:])
		case err != nil:
			return broken(err)
		}
	}
}

// extend reads a header that speaks of the entry after it.
func (d *decoder) extend(ext *extension, typ byte, blk *[blockSize]byte) error {
	size, ok := number(blk[124:136])
	if !ok || size < 0 {
		return malformed("a header's size is no number")
	}
	if size > maxRecords {
		return fmt.Errorf("%w: a header of %d bytes", ErrTooBig, size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(d.br, body); err != nil {
		return broken(err)
	}
	if err := d.skip(padding(size)); err != nil {
		return err
	}
	if typ == 'L' || typ == 'K' {
		s := cString(body)
		into := &ext.name
		if typ == 'K' {
			into = &ext.link
		}
		if *into != nil {
			return malformed("two long names for one entry")
		}
		*into, ext.haveable = &s, true
		return nil
	}
	records, xattrs, err := parseRecords(body)
	if err != nil {
		return err
	}
	if typ == 'g' {
		// A global header that changed names or sizes would make this reader
		// and another one see different archives.
		delete(records, "comment")
		if len(records)+len(xattrs) > 0 {
			return malformed("a global header that is more than a comment")
		}
		return nil
	}
	if ext.records != nil {
		return malformed("two pax headers for one entry")
	}
	ext.records, ext.xattrs, ext.haveable = records, xattrs, true
	return nil
}

func parseRecords(b []byte) (map[string]string, []xattr, error) {
	records := map[string]string{}
	var xattrs []xattr
	for len(b) > 0 {
		digits := 0
		for digits < len(b) && digits < 8 && b[digits] >= '0' && b[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(string(b[:digits]))
		if err != nil || n > len(b) || n < digits+3 || b[digits] != ' ' || b[n-1] != '\n' {
			return nil, nil, malformed("a pax record's length is wrong")
		}
		k, v, ok := strings.Cut(string(b[digits+1:n-1]), "=")
		if !ok || k == "" {
			return nil, nil, malformed("a pax record has no key")
		}
		b = b[n:]
		if name, ok := strings.CutPrefix(k, paxXattr); ok {
			xattrs = append(xattrs, xattr{unescapeXattr.Replace(name), v})
		} else {
			records[k] = v
		}
	}
	return records, xattrs, nil
}

// entry puts together what the block and the headers before it say.
func (d *decoder) entry(blk *[blockSize]byte, ext *extension) (*entry, error) {
	e := &entry{name: cString(blk[0:100]), link: cString(blk[157:257]), typ: blk[156], xattrs: ext.xattrs}
	if string(blk[257:263]) == "ustar\x00" {
		if prefix := cString(blk[345:500]); prefix != "" {
			e.name = prefix + "/" + e.name
		}
	}
	if e.typ == 0 || e.typ == '7' {
		e.typ = typeReg
	}
	fields := [...]struct {
		name  string
		raw   []byte
		pax   string
		max   int64
		value int64
	}{
		{"mode", blk[100:108], "", math.MaxInt64, 0},
		{"owner", blk[108:116], paxUID, math.MaxUint32 - 1, 0},
		{"group", blk[116:124], paxGID, math.MaxUint32 - 1, 0},
		{"size", blk[124:136], paxSize, math.MaxInt64 - blockSize, 0},
		{"time", blk[136:148], "", math.MaxInt64, 0},
	}
	for i := range fields {
		f := &fields[i]
		v, ok := number(f.raw)
		if s, has := ext.records[f.pax]; has && f.pax != "" {
			n, err := strconv.ParseUint(s, 10, 63)
			v, ok = int64(n), err == nil
		}
		if !ok || v > f.max || v < 0 && f.name != "time" {
			return nil, malformed("an entry's %s is no valid number", f.name)
		}
		f.value = v
	}
	e.mode = uint32(fields[0].value & 0o7777)
	e.uid, e.gid = uint32(fields[1].value), uint32(fields[2].value)
	e.size = fields[3].value
	e.apparent = e.size
	e.mtime.sec = fields[4].value
	if s, ok := ext.records[paxMtime]; ok {
		if e.mtime, ok = parseTime(s); !ok {
			return nil, malformed("an entry's time is no valid number")
		}
	}
	if ext.name != nil {
		e.name = *ext.name
	}
	if ext.link != nil {
		e.link = *ext.link
	}
	if s, ok := ext.records[paxPath]; ok {
		e.name = s
	}
	if s, ok := ext.records[paxLinkpath]; ok {
		e.link = s
	}
	if err := e.readSparse(ext.records); err != nil {
		return nil, err
	}
	if strings.HasSuffix(e.name, "/") {
		if e.typ != typeDir {
			return nil, malformed("the name %q ends in a slash and is no directory's", short(e.name))
		}
		e.name = strings.TrimSuffix(e.name, "/")
	}
	if e.typ != typeReg && e.size != 0 {
		return nil, malformed("%q is no regular file and has content", short(e.name))
	}
	d.left, d.pad = e.size, padding(e.size)
	return e, nil
}

// readSparse takes over the records of a sparse file.
func (e *entry) readSparse(records map[string]string) error {
	for k := range records {
		if !strings.HasPrefix(k, paxSparse) {
			continue
		}
		if records[sparseMajor] != "1" || records[sparseMinor] != "0" {
			return malformed("a sparse file of another format than GNU sparse 1.0")
		}
		n, err := strconv.ParseUint(records[sparseReal], 10, 63)
		if err != nil || records[sparseName] == "" || e.typ != typeReg {
			return malformed("a sparse file's header is incomplete")
		}
		e.sparse, e.name, e.apparent = true, records[sparseName], int64(n)
		return nil
	}
	return nil
}

// Read reads the current entry's content.
func (d *decoder) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > d.left {
		p = p[:d.left]
	}
	n, err := d.br.Read(p)
	d.left -= int64(n)
	if err != nil {
		return n, broken(err)
	}
	return n, nil
}

func (d *decoder) skip(n int64) error {
	for n > 0 {
		step := min(n, 1<<30)
		if _, err := d.br.Discard(int(step)); err != nil {
			return broken(err)
		}
		n -= step
	}
	return nil
}

// segments reads a sparse file's map, hands each stretch of data to f and
// checks that the map is in order, lies within the file and covers exactly the
// content that follows.
func (d *decoder) segments(e *entry, f func(segment)) error {
	start := d.left
	count, err := d.mapNumber()
	if err != nil {
		return err
	}
	if count > maxSegments {
		return fmt.Errorf("%w: %q has %d segments", ErrTooBig, short(e.name), count)
	}
	var end, total int64
	for range count {
		off, err := d.mapNumber()
		if err != nil {
			return err
		}
		n, err := d.mapNumber()
		if err != nil {
			return err
		}
		if off < end || off > e.apparent || n > e.apparent-off {
			return malformed("the sparse map of %q is out of order", short(e.name))
		}
		end, total = off+n, total+n
		if n > 0 {
			f(segment{off, n})
		}
	}
	pad := padding(start - d.left)
	if pad > d.left {
		return malformed("the sparse map of %q does not fit", short(e.name))
	}
	if err := d.skip(pad); err != nil {
		return err
	}
	d.left -= pad
	if total != d.left {
		return malformed("the sparse map of %q does not fit its content", short(e.name))
	}
	return nil
}

// mapNumber reads one line of a sparse map.
func (d *decoder) mapNumber() (int64, error) {
	var v int64
	for i := 0; ; i++ {
		if d.left == 0 {
			return 0, malformed("a sparse map is cut short")
		}
		c, err := d.br.ReadByte()
		if err != nil {
			return 0, broken(err)
		}
		d.left--
		switch {
		case c == '\n' && i > 0:
			return v, nil
		case c < '0' || c > '9' || i >= 19 || v > math.MaxInt64/10-1:
			return 0, malformed("a sparse map holds no number")
		}
		v = v*10 + int64(c-'0')
	}
}

// number reads a numeric field: octal digits, or binary where the first bit is
// set, as GNU tar writes what does not fit.
func number(field []byte) (int64, bool) {
	if field[0]&0x80 != 0 {
		v := int64(0)
		negative := field[0]&0x40 != 0
		if negative {
			v = -1
		}
		for i, c := range field {
			if i == 0 {
				// The first bit only marks the format.
				c &= 0x7f
				if negative {
					c |= 0x80
				}
			}
			if v > math.MaxInt64>>8 || v < math.MinInt64>>8 {
				return 0, false
			}
			v = v<<8 | int64(c)
		}
		return v, true
	}
	s := strings.Trim(string(field), " \x00")
	if s == "" {
		return 0, true
	}
	v, err := strconv.ParseUint(s, 8, 63)
	return int64(v), err == nil
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// short cuts a name for a message.
func short(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
