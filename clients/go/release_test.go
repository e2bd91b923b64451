package dlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Two requests of one owed release can be under way when the server does not answer. Their failures are one outage.
func TestThePauseOfAnOwedReleaseDoublesOncePerOutage(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	c := New(rdb, TTL(24*time.Hour))
	h := c.newHold(context.Background(), "k", "t", c.defaults)
	h.state, h.owedUntil = owed, never
	failed := errors.New("no answer")
	for want := releasePause; want < 20*releasePause; want *= 2 {
		first, second := h.releaseAgain(now()), h.releaseAgain(now())
		h.releasedAgain(first, 0, failed)
		h.releasedAgain(second, 0, failed)
		if h.pause != want {
			t.Fatal(h.pause, want)
		}
	}
	for range 20 {
		h.releasedAgain(h.releaseAgain(now()), 0, failed)
	}
	if h.pause > 2*time.Second {
		t.Fatal("the lock stays closed for this time after the outage:", h.pause)
	}
}
