//go:build !linux

package dlock

import (
	"sync/atomic"
	"time"
)

var (
	started = time.Now()
	// startedWall has no monotonic reading, so time.Since of it follows the wall clock.
	startedWall = started.Round(0)
	// suspended is the greatest difference seen between the wall clock and the monotonic clock, in ns.
	suspended atomic.Int64
)

// now returns the time on Go's monotonic clock plus the time for which that clock seems to have stood still: the wall
// clock shows it. A wall clock that is set forward ends leases early; none lasts longer for a wall clock.
func now() instant {
	elapsed := time.Since(started)
	behind := int64(time.Now().Round(0).Sub(startedWall) - elapsed)
	for {
		known := suspended.Load()
		if behind <= known {
			return instant(elapsed) + instant(known)
		}
		if suspended.CompareAndSwap(known, behind) {
			return instant(elapsed) + instant(behind)
		}
	}
}
