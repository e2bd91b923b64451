package dlock

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// now reads CLOCK_BOOTTIME. Go's own monotonic clock stands still while the machine is suspended, but a lease does not.
func now() instant {
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return instant(time.Since(started))
	}
	return instant(t.Nano())
}

var started = time.Now()
