package tests

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
)

// mode returns the mode of the lock, and the number of its holders and waiters.
func (f *fixture) mode() (string, int64, int64) {
	f.t.Helper()
	seen, err := f.c.Inspect(ctx, f.key)
	if err != nil || seen == nil {
		f.t.Fatal(seen, err)
	}
	return seen.Mode, seen.HoldersCount, seen.Waiters
}

func (f *fixture) hasMode(mode string, holders, waiters int64) {
	f.t.Helper()
	if m, h, w := f.mode(); m != mode || h != holders || w != waiters {
		f.t.Fatal(m, h, w)
	}
}

func TestADowngradeLetsSharersIn(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire()
		fence := h.Fence()
		sharer := f.waiting(f.c, dlock.Shared())
		for range 2 {
			if err := h.Downgrade(ctx); err != nil || h.Fence() != fence {
				t.Fatal(err)
			}
		}
		f.release(<-sharer)
		f.hasMode("shared", 1, 0)
		if err := h.Upgrade(ctx); err != nil || h.Fence() != fence {
			t.Fatal(err)
		}
		f.hasMode("exclusive", 1, 0)
		if err := h.Upgrade(ctx); err != nil {
			t.Fatal(err)
		}
		f.release(h)
		if err := h.Downgrade(ctx); !errors.Is(err, dlock.ErrReleased) {
			t.Fatal(err)
		}
	})
}

func TestAnUpgradeWaitsAheadOfTheOthers(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		one, two := s.acquire(dlock.Shared()), s.acquire(dlock.Shared())
		writer := s.waiting(s.c)
		upgraded := make(chan error)
		go func() { upgraded <- one.Upgrade(limited(t)) }()
		s.until("the upgrade waits", func() bool { return s.queued() == 2 })
		if err := two.Upgrade(ctx); !errors.Is(err, dlock.ErrDeadlock) {
			t.Fatal(err)
		}
		s.hasMode("shared", 2, 2)
		asked := calls(s.rdb, "dlock.acquire")
		s.release(two)
		if err := <-upgraded; err != nil {
			t.Fatal(err)
		}
		if asked = calls(s.rdb, "dlock.acquire") - asked; asked > 2 {
			t.Error("requests after the release:", asked)
		}
		s.hasMode("exclusive", 1, 1)
		s.release(one)
		s.release(<-writer)
	})
}

// In some tries, the server grants the upgrade while the client gives it up.
func TestAnUpgradeThatIsGivenUpLeavesASharedHold(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		for range 20 {
			one, two := f.acquire(dlock.Shared()), f.acquire(dlock.Shared())
			limit, cancel := context.WithCancelCause(ctx)
			why := errors.New("enough")
			upgraded := make(chan error)
			go func() { upgraded <- one.Upgrade(limit) }()
			f.until("the upgrade waits", func() bool { return f.queued() == 1 })
			released := make(chan error)
			go func() {
				time.Sleep(time.Duration(rand.Int64N(int64(ms(1)))))
				released <- two.Release(ctx)
			}()
			time.Sleep(time.Duration(rand.Int64N(int64(ms(1)))))
			cancel(why)
			if err := <-upgraded; err == nil {
				one.Downgrade(ctx)
			} else if !errors.Is(err, dlock.ErrNotAcquired) || !errors.Is(err, why) {
				t.Fatal(err)
			}
			if err := errors.Join(one.Err(), <-released); err != nil {
				t.Fatal(err)
			}
			three := f.acquire(dlock.Shared())
			f.hasMode("shared", 2, 0)
			f.release(three)
			f.release(one)
		}
	})
}

func TestAHoldThatIsLostDuringItsUpgradeLeavesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		one, two := f.acquire(dlock.Shared()), f.acquire(dlock.Shared())
		upgraded := make(chan error)
		go func() { upgraded <- one.Upgrade(limited(t)) }()
		f.until("the upgrade waits", func() bool { return f.queued() == 1 })
		f.rdb.Do(ctx, "DLOCK.RELEASE", f.key, one.Token(), "ALL")
		if held, err := one.Held(ctx); held || err != nil {
			t.Fatal(err)
		}
		if err := <-upgraded; !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
		f.until("only the other one is left", func() bool { _, holders, waiters := f.mode(); return holders == 1 && waiters == 0 })
		f.release(two)
		// The downgrade of a broken hold begins another hold of its token, which the client releases.
		one = f.acquire()
		f.c.Break(ctx, f.key)
		if err := one.Downgrade(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
		f.close(f.c)
		f.mustBeFree()
	})
}

func TestAModeChangeOutlastsALostReply(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		h, err := c.Acquire(ctx, f.key)
		if err != nil {
			t.Fatal(err)
		}
		proxy.CutReply("SHARED")
		if err := h.Downgrade(ctx); !errors.Is(err, dlock.ErrNoAnswer) {
			t.Fatal(err)
		}
		if err := h.Downgrade(ctx); err != nil {
			t.Fatal(err)
		}
		f.hasMode("shared", 1, 0)
		proxy.CutReply("NOTIFY")
		if err := h.Upgrade(limited(t)); err != nil {
			t.Fatal(err)
		}
		f.hasMode("exclusive", 1, 0)
		f.release(h)
	})
}

func TestHoldsWithPermitsOrEnteredTwiceKeepTheirMode(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire(dlock.Permits(2))
		if h.Upgrade(ctx) == nil || h.Downgrade(ctx) == nil {
			t.Fatal("no error")
		}
		f.release(h)
		entered := dlock.Reentrant(dlock.NewToken())
		outer, inner := f.acquire(entered), f.acquire(entered)
		if outer.Downgrade(ctx) == nil {
			t.Fatal("the inner caller has a shared hold")
		}
		f.release(inner)
		if err := outer.Downgrade(ctx); err != nil {
			t.Fatal(err)
		}
		f.release(outer)
	})
}
