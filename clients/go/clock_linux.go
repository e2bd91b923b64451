package dlock

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockBoottime = 7
	// clockError is the greatest error of a distance, and the shortest suspension that now is sure to notice. validity
	// allows for 2 ms.
	clockError = 500 * time.Microsecond
)

var (
	started = time.Now()
	known   atomic.Pointer[distances]
)

// distances are the distances of other clocks from Go's monotonic one, which counts from started.
type distances struct{ wall, boot time.Duration }

// now returns the time of CLOCK_BOOTTIME. Go's own monotonic clock stands still while the machine is suspended, but a
// lease does not. A reading of CLOCK_BOOTTIME is a system call, which takes 12 times as long as time.Now on some virtual
// machines. So now adds the known distance of CLOCK_BOOTTIME to the monotonic clock. Only a suspension changes it, and
// then the distance of the wall clock, too. The wall clock is adjusted in steps or together with the monotonic one.
func now() instant {
	at := time.Now()
	elapsed := at.Sub(started)
	d := known.Load()
	if d == nil || (wallDistance(at)-d.wall).Abs() > clockError {
		d = measureDistances()
		known.Store(d)
		elapsed = time.Since(started)
	}
	return instant(elapsed + d.boot)
}

func wallDistance(at time.Time) time.Duration { return time.Duration(at.UnixNano()) - at.Sub(started) }

// measureDistances reads all clocks, again if the thread was interrupted between the readings.
func measureDistances() *distances {
	for {
		before := time.Now()
		boot, supported := boottime()
		if !supported {
			boot = before.Sub(started)
		}
		if time.Since(before) < clockError {
			return &distances{wallDistance(before), boot - before.Sub(started)}
		}
	}
}

func boottime() (time.Duration, bool) {
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano()), errno == 0
}
