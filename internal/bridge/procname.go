package bridge

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// commandOf is a process's command line, or its name in brackets where it has
// none, in at most 1 KiB of valid text.
func commandOf(dir, name string) string {
	const keep = 1024
	f, err := os.Open(dir + "/cmdline")
	if err != nil {
		return "[" + name + "]"
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, keep))
	data = bytes.TrimRight(data, "\x00")
	if len(data) == 0 {
		return "[" + strings.ToValidUTF8(name, "\uFFFD") + "]"
	}
	return strings.ToValidUTF8(string(bytes.ReplaceAll(data, []byte{0}, []byte{' '})), "\uFFFD")
}

// userOf names the owner of a process; names is a cache by number.
func userOf(dir string, names map[string]string) string {
	st, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	uid := strconv.Itoa(int(st.Sys().(*syscall.Stat_t).Uid))
	name, known := names[uid]
	if !known {
		name = uid
		if a, err := lookupAccount("/", uid); err == nil && a.name != "" {
			name = a.name
		}
		names[uid] = name
	}
	return name
}
