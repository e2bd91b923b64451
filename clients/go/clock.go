package dlock

import "time"

// instant is a time in ns on a clock that does not jump and, on Linux, continues while the machine is suspended.
type instant int64

// never is later than every other instant.
const never instant = 1<<63 - 1

func (t instant) add(d time.Duration) instant {
	if sum := t + instant(d); sum >= t || d < 0 {
		return sum
	}
	return never
}

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

// validity returns how long a lease of this length may be relied on, counted from before its request was sent. Clocks
// differ in rate, and servers round to ms.
func validity(lease time.Duration) time.Duration { return lease - lease/100 - 2*time.Millisecond }
