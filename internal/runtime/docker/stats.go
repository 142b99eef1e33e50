package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/alineod/alineod/internal/runtime"
)

// Stats implements runtime.Runtime.
func (d *Docker) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	info, err := d.Inspect(ctx, id)
	if err != nil {
		return runtime.Stats{}, err
	}
	if info.State != runtime.StateRunning && info.State != runtime.StatePaused {
		return runtime.Stats{}, fmt.Errorf("statistics of %s: %s: %w", id, info.State, runtime.ErrNotRunning)
	}
	var s container.StatsResponse
	err = d.call(ctx, "reading statistics of "+id, func(ctx context.Context) error {
		answer, err := d.cli.ContainerStatsOneShot(ctx, info.Handle)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return json.NewDecoder(answer.Body).Decode(&s)
	})
	if err != nil {
		return runtime.Stats{}, err
	}
	stats := runtime.Stats{
		Time:             d.clock.Now(),
		CPUNanos:         int64(s.CPUStats.CPUUsage.TotalUsage),
		MemoryBytes:      int64(s.MemoryStats.Usage - min(pageCache(s.MemoryStats.Stats), s.MemoryStats.Usage)),
		MemoryPeakBytes:  -1,
		MemoryLimitBytes: -1,
		OOMKills:         oomKills(info.Handle),
		Processes:        int64(s.PidsStats.Current),
	}
	if s.MemoryStats.MaxUsage > 0 { // cgroup v2 does not tell
		stats.MemoryPeakBytes = int64(s.MemoryStats.MaxUsage)
	}
	if s.MemoryStats.Limit > 0 {
		stats.MemoryLimitBytes = int64(min(s.MemoryStats.Limit, 1<<62))
	}
	return stats, nil
}

// pageCache is what the kernel would give back before it kills anything.
func pageCache(stats map[string]uint64) uint64 {
	if v, ok := stats["total_inactive_file"]; ok { // cgroup v1
		return v
	}
	return stats["inactive_file"]
}

// oomKills reads the kernel's own counter, which the engine does not pass on:
// -1 where the engine's control groups are not in sight.
func oomKills(handle string) int64 {
	for _, path := range [...]string{
		"/sys/fs/cgroup/memory/docker/" + handle + "/memory.oom_control",
		"/sys/fs/cgroup/memory/system.slice/docker-" + handle + ".scope/memory.oom_control",
		"/sys/fs/cgroup/docker/" + handle + "/memory.events",
		"/sys/fs/cgroup/system.slice/docker-" + handle + ".scope/memory.events",
	} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if v, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
				if n, err := strconv.ParseInt(v, 10, 64); err == nil {
					return n
				}
			}
		}
	}
	return -1
}
