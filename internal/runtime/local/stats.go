package local

import (
	"context"
	"fmt"
	"time"

	"github.com/alineod/alineod/internal/runtime"
)

// ticksPerSecond is the unit of the kernel's accounts: 100 on every
// architecture that Go runs on.
const ticksPerSecond = 100

// Stats implements runtime.Runtime: the sum over the processes that live. What
// processes used that have ended counts where a living one waited for them.
func (l *Local) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	if err := ctx.Err(); err != nil {
		return runtime.Stats{}, fmt.Errorf("reading statistics of %s: %w", id, err)
	}
	_, first, err := l.live(id)
	if err != nil {
		return runtime.Stats{}, err
	}
	found, err := processesOf(id, first)
	if err != nil {
		return runtime.Stats{}, fmt.Errorf("reading statistics of %s: %w", id, err)
	}
	stats := runtime.Stats{
		Time: l.clock.Now(), MemoryPeakBytes: -1, MemoryLimitBytes: -1, OOMKills: -1, Processes: int64(len(found)),
	}
	for _, s := range found {
		stats.CPUNanos += s.cpuTicks * (int64(time.Second) / ticksPerSecond)
		stats.MemoryBytes += s.residentKiB << 10
	}
	return stats, nil
}
