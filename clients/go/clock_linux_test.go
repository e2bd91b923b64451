package dlock

import (
	"testing"
	"time"
)

// The machine was suspended for an hour, and the wall clock has been set since.
func TestNowCountsASuspension(t *testing.T) {
	d := measureDistances()
	for _, wall := range []time.Duration{time.Hour, -time.Hour, time.Millisecond} {
		known.Store(&distances{wall: d.wall - wall, boot: d.boot - time.Hour})
		before, _ := boottime()
		at := time.Duration(now())
		after, _ := boottime()
		if at < before || at > after+2*clockError {
			t.Error(before, at, after)
		}
	}
}
