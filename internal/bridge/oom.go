package bridge

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/alineod/alineod/internal/runtime"
)

// oomKills reads the kernel's counter of processes it killed for memory in
// this process's control group, of either version; -1 where there is none.
func oomKills() int64 {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return -1
	}
	best := int64(-1)
	for _, line := range strings.Split(string(data), "\n") {
		// hierarchy:controllers:path; version 2 has hierarchy 0, no controllers.
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		var base, file string
		switch {
		case parts[1] == "":
			base, file = "/sys/fs/cgroup", "memory.events"
		case hasField(parts[1], "memory"):
			base, file = "/sys/fs/cgroup/memory", "memory.oom_control"
		default:
			continue
		}
		// In a container the path may be the host's, and the mount its end.
		for _, dir := range []string{filepath.Join(base, parts[2]), base} {
			if n, ok := readCounter(filepath.Join(dir, file), "oom_kill"); ok {
				best = max(best, n)
				break
			}
		}
	}
	return best
}

func hasField(list, name string) bool {
	for _, f := range strings.Split(list, ",") {
		if f == name {
			return true
		}
	}
	return false
}

// readCounter finds "name N" in a file of such lines.
func readCounter(path, name string) (int64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	sc := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for sc.Scan() {
		if key, value, _ := strings.Cut(sc.Text(), " "); key == name {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// raiseOOMScore makes the kernel take pid before this process.
func raiseOOMScore(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(runtime.KillableScore), 0)
}
