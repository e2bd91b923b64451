package dlock

import (
	"os"
	"path"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// labels has the label for each return address that has called this package: a string as an any, or nil for an address
// within this package.
var labels sync.Map

var hostAndPid = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
})

var thisPackage = reflect.TypeOf(Hold{}).PkgPath()

// callerLabel returns the default label: host, process, and the function that called this package or its
// adapter locker.
func callerLabel() any {
	// A call of Acquire has three frames of this package. Each frame costs time.
	var pcs [4]uintptr
	for skip := 2; ; skip += len(pcs) {
		callers := pcs[:runtime.Callers(skip, pcs[:])]
		if len(callers) == 0 {
			return hostAndPid()
		}
		for _, pc := range callers {
			label, known := labels.Load(pc)
			if !known {
				label = labelOf(pc)
				labels.Store(pc, label)
			}
			if label != nil {
				return label
			}
		}
	}
}

func labelOf(pc uintptr) any {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if isOurs(frame.Function) {
		return nil
	}
	if frame.Function == "runtime.goexit" { // go client.Acquire(..)
		return hostAndPid()
	}
	text := hostAndPid() + " " + path.Base(frame.Function)
	if len(text) > maxText {
		text = text[:maxText]
	}
	return text
}

// isOurs returns whether a function belongs to this package or to its adapter locker.
func isOurs(function string) bool {
	rest, ours := strings.CutPrefix(function, thisPackage)
	return ours && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "/locker."))
}
