// Package clocktest gives tests a clock that is set forward and back while
// everything else goes on.
package clocktest

import (
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
)

// Shifted is the real clock, set by Shift. Timers run as they do by the
// monotonic clock, which nobody sets. It is safe for concurrent use.
type Shifted struct {
	clockwork.Clock
	shift atomic.Int64
}

// New returns a clock that shows the real time.
func New() *Shifted { return &Shifted{Clock: clockwork.NewRealClock()} }

// Shift sets the clock to the real time plus d.
func (c *Shifted) Shift(d time.Duration) { c.shift.Store(int64(d)) }

// Now is the time that the clock shows.
func (c *Shifted) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.shift.Load())) }

// Since is the time from t to now, as the clock shows it.
func (c *Shifted) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until is the time from now to t, as the clock shows it.
func (c *Shifted) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
