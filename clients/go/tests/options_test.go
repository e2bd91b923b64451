package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/redis/go-redis/v9"
)

func TestSharersAndPermits(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		for name, opts := range map[string][]dlock.Option{
			"shared": {dlock.Shared()}, "permits": {dlock.Permits(2)},
		} {
			one, two := f.acquire(opts...), f.acquire(opts...)
			if _, err := f.c.TryAcquire(ctx, f.key); !errors.Is(err, dlock.ErrNotAcquired) {
				t.Fatal(name, err)
			}
			seen, err := f.c.Inspect(ctx, f.key)
			if err != nil || seen.Mode != name || seen.HoldersCount != 2 || len(seen.Holders) != 2 {
				t.Fatalf("%+v %v", seen, err)
			}
			if name == "permits" {
				if _, err := f.c.TryAcquire(ctx, f.key, opts...); !errors.Is(err, dlock.ErrNotAcquired) {
					t.Fatal(err)
				}
			}
			f.release(one)
			f.release(two)
		}
	})
}

func TestAReentrantHoldEndsWithItsLastRelease(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		token := dlock.NewToken()
		one := f.acquire(dlock.Reentrant(token))
		two := f.acquire(dlock.Reentrant(token))
		if one.Fence() != two.Fence() || one.Token() != token {
			t.Fatal(one.Fence(), two.Fence())
		}
		f.release(one)
		f.release(one)
		if f.free() || two.Err() != nil || !errors.Is(one.Err(), dlock.ErrReleased) {
			t.Fatal(two.Err(), one.Err())
		}
		if _, err := f.c.TryAcquire(ctx, f.key, dlock.Reentrant(token), dlock.Shared()); err == nil {
			t.Fatal("entered in another mode")
		}
		f.release(two)
		f.mustBeFree()
		third := f.acquire(dlock.Reentrant(token))
		if third.Fence() <= one.Fence() {
			t.Fatal(third.Fence())
		}
		f.release(third)
	})
}

func TestLabelOwnerDelayAndEphemeralReachTheServer(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire(dlock.Label("the label"), dlock.Ephemeral(), dlock.Delay(time.Minute), dlock.Owner("me"))
		seen, err := f.c.Inspect(ctx, f.key)
		if err != nil || seen.Holders[0].Label != "the label" || !seen.Holders[0].Ephemeral || seen.Holders[0].Addr == "" {
			t.Fatalf("%+v %v", seen, err)
		}
		if !strings.Contains(seen.Holders[0].String(), "the label") {
			t.Fatal(seen.Holders[0].String())
		}
		// The default label names the function that called, unless a go statement did.
		waiting, stop := context.WithCancel(ctx)
		go f.c.Acquire(waiting, f.key)
		f.until("it waits", func() bool { return f.queued() == 1 })
		if w, err := f.c.Waiters(ctx, f.key, 1); err != nil || !strings.HasSuffix(w[0].Label, fmt.Sprint(":", os.Getpid())) {
			t.Fatalf("%+v %v", w, err)
		}
		stop()
		f.until("it has left the queue", func() bool { return f.queued() == 0 })
		// The end of its connection ends the hold, and the delay follows.
		if err := f.rdb.ClientKillByFilter(ctx, "ID", fmt.Sprint(seen.Holders[0].Client)).Err(); err != nil {
			t.Fatal(err)
		}
		f.until("the hold has ended", func() bool { held, err := h.Held(ctx); return err == nil && !held })
		if !errors.Is(h.Err(), dlock.ErrLost) {
			t.Fatal(h.Err())
		}
		seen, err = f.c.Inspect(ctx, f.key)
		if err != nil || seen.Delay <= 0 || seen.Delay > time.Minute {
			t.Fatalf("%+v %v", seen, err)
		}
		for l, err := range f.c.List(ctx, f.key) {
			if err != nil || l.Delay <= 0 || l.Delay > time.Minute || l.Holders != 0 || l.Token != "" {
				t.Fatalf("%+v %v", l, err)
			}
		}
		f.c.Break(ctx, f.key)
		h.Release(ctx)
	})
}

func TestAnEphemeralWaiterIsGrantedTheLock(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		first := f.acquire()
		granted := f.waiting(f.c, dlock.Ephemeral())
		f.release(first)
		f.release(<-granted)
		f.mustBeFree()
	})
}

func TestADeadlockIsAnError(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		other := f.key + ":other"
		a := f.acquire(dlock.Owner("one"))
		b, err := f.c.Acquire(ctx, other, dlock.Owner("two"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			h, err := f.c.Acquire(ctx, other, dlock.Owner("one"))
			if err == nil {
				err = h.Release(ctx)
			}
			done <- err
		}()
		f.until("it waits", func() bool { w, _ := f.c.Waiters(ctx, other, 10); return len(w) == 1 })
		_, err = f.c.Acquire(ctx, f.key, dlock.Owner("two"))
		var deadlock *dlock.DeadlockError
		if !errors.Is(err, dlock.ErrDeadlock) || !errors.As(err, &deadlock) || !strings.Contains(deadlock.Cycle, " -> ") {
			t.Fatal(err)
		}
		f.release(b)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		f.release(a)
	})
}

func TestAnEarlierHoldOfTheSameOwnerIsNoDeadlock(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		// A hold that is unknown to this process, such as one after a lost release.
		f.rdb.Do(ctx, "DLOCK.ACQUIRE", f.key, "earlier", 500, "OWNER", "me")
		f.release(f.acquire(dlock.Owner("me")))
		// A hold that it knows is one.
		h := f.acquire(dlock.Owner("me"))
		if _, err := f.c.Acquire(ctx, f.key, dlock.Owner("me")); !errors.Is(err, dlock.ErrDeadlock) {
			t.Fatal(err)
		}
		f.release(h)
	})
}

func TestAGracePeriodIsAnErrorOrIsWaitedFor(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f, "--dlock.restart-grace", "3000")
		_, err := s.c.TryAcquire(ctx, f.key, dlock.TTL(time.Second))
		var grace *dlock.GraceError
		if !errors.Is(err, dlock.ErrGrace) || !errors.As(err, &grace) || grace.Left <= 0 || grace.Left > 3*time.Second {
			t.Fatal(err)
		}
		if _, err = s.c.Acquire(ctx, f.key, dlock.TTL(time.Second), dlock.MaxWait(ms(10))); !errors.Is(err, dlock.ErrGrace) {
			t.Fatal(err)
		}
		h, err := s.c.Acquire(limited(t), f.key, dlock.TTL(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		h.Release(ctx)
	})
}

func TestAServerWithoutTheModuleIsErrNoModule(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		rdb := redis.NewClient(&redis.Options{Addr: bare(t).Addr()})
		defer rdb.Close()
		for _, opts := range [][]dlock.Option{nil, {dlock.AtLeast(time.Second)}} {
			if _, err := dlock.New(rdb).TryAcquire(ctx, f.key, opts...); !errors.Is(err, dlock.ErrNoModule) {
				t.Fatal(err)
			}
		}
	})
}

func TestAKeyWithDataIsErrNotALock(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.rdb.RPush(ctx, f.key, 1)
		_, try := f.c.TryAcquire(ctx, f.key)
		_, wait := f.c.Acquire(ctx, f.key)
		for _, err := range []error{try, wait} {
			if !errors.Is(err, dlock.ErrNotALock) || !strings.Contains(err.Error(), fmt.Sprintf("%q: a list: WRONGTYPE", f.key)) {
				t.Fatal(err)
			}
		}
		_, left := f.c.Left(ctx, f.key)
		_, inspected := f.c.Inspect(ctx, f.key)
		for _, err := range []error{left, inspected} {
			if !errors.Is(err, dlock.ErrNotALock) {
				t.Fatal(err)
			}
		}
		f.rdb.Del(ctx, f.key)
	})
}

func TestMisuseIsAnErrorBeforeARequest(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for name, opt := range map[string]dlock.Option{
			"ttl": dlock.TTL(0), "negative ttl": dlock.TTL(-time.Second), "long ttl": dlock.TTL(1 << 62), "permits": dlock.Permits(0),
			"many permits": dlock.Permits(1 << 31), "label": dlock.Label(strings.Repeat("x", 256)),
			"owner": dlock.Owner(""), "long owner": dlock.Owner(strings.Repeat("x", 256)), "token": dlock.Reentrant(""),
			"delay": dlock.Delay(-1), "at least": dlock.AtLeast(-1), "max hold": dlock.MaxHold(-1), "wait": dlock.MaxWait(-1),
			"replicas": dlock.Durable(-1, time.Second), "limit": dlock.Durable(1, 0),
		} {
			if _, err := f.c.TryAcquire(ctx, f.key, opt); err == nil || errors.Is(err, dlock.ErrNotAcquired) {
				t.Error(name, err)
			}
			if _, err := dlock.New(f.rdb, opt).TryAcquire(ctx, f.key); err == nil {
				t.Error(name, err)
			}
		}
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": f.s.Addr()}})
		defer ring.Close()
		list := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{f.s.Addr(), bare(t).Addr()}})
		defer list.Close()
		for _, rdb := range []redis.UniversalClient{ring, list} {
			_, err := dlock.New(rdb).TryAcquire(ctx, f.key)
			if err == nil || !strings.Contains(err.Error(), "a list of independent servers is not supported: use") {
				t.Error(err)
			}
		}
		unusable := dlock.New(ring)
		_, inspected := unusable.Inspect(ctx, f.key)
		_, waiters := unusable.Waiters(ctx, f.key, 1)
		for _, err := range []error{inspected, waiters, unusable.Fenced(ctx, f.key, 1, "GET", f.key).Err()} {
			if err == nil || errors.Is(err, dlock.ErrNoAnswer) {
				t.Error(err)
			}
		}
		if _, err := dlock.New(nil).TryAcquire(ctx, f.key); err == nil || !strings.Contains(err.Error(), "New(nil)") {
			t.Error(err)
		}
		if !f.free() {
			t.Error("a request was sent")
		}
	})
}

func TestAtLeastKeepsTheLockClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		f.release(f.acquire(dlock.AtLeast(time.Hour)))
		seen, err := f.c.Inspect(ctx, f.key)
		if err != nil || seen.Mode != "free" || seen.Delay < 59*time.Minute || seen.Delay > time.Hour {
			t.Fatalf("%+v %v", seen, err)
		}
		f.c.Break(ctx, f.key)
		h := f.acquire(dlock.AtLeast(time.Millisecond))
		time.Sleep(2 * time.Millisecond)
		f.release(h)
		f.mustBeFree()
	})
}

func TestALostHoldKeepsNothingClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		for _, opts := range [][]dlock.Option{{dlock.MaxHold(ms(50))}, {dlock.TTL(ms(300)), dlock.NoRenew()}} {
			h := f.acquire(append(opts, dlock.AtLeast(time.Hour))...)
			f.rdb.Do(ctx, "DLOCK.EXTEND", f.key, h.Token(), 3_600_000) // the server still has the hold when it is lost
			<-h.Context().Done()
			if err := h.Release(ctx); !errors.Is(err, dlock.ErrLost) {
				t.Fatal(err)
			}
			f.mustBeFree()
		}
	})
}

func TestTheErrorSaysThatTheLockIsClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		refused := func(want string, opts ...dlock.Option) *dlock.NotAcquiredError {
			t.Helper()
			_, tried := f.c.TryAcquire(ctx, f.key, opts...)
			_, waited := f.c.Acquire(ctx, f.key, append(opts, dlock.MaxWait(ms(20)))...)
			var taken *dlock.NotAcquiredError
			for _, err := range []error{tried, waited} {
				if !errors.As(err, &taken) || !regexp.MustCompile(want).MatchString(err.Error()) {
					t.Error(err)
				} else if taken.Closed < 59*time.Minute || taken.Closed > time.Hour {
					t.Error(taken.Closed)
				}
			}
			return taken
		}
		f.release(f.acquire(dlock.AtLeast(time.Hour)))
		if taken := refused(`not acquired.*; closed for another (59m5|1h0m)`); taken.Holder != nil {
			t.Error(taken.Holder)
		}
		f.c.Break(ctx, f.key)
		h := f.acquire(dlock.Permits(3), dlock.Label("nightly"))
		f.release(f.acquire(dlock.Permits(3), dlock.AtLeast(time.Hour)))
		if taken := refused(`; held by "nightly" .*; closed for another (59m5|1h0m)`, dlock.Permits(3)); taken.Holder == nil || taken.Holder.Held < ms(20) {
			t.Error(taken)
		}
		f.release(h)
		f.c.Break(ctx, f.key)
	})
}

func TestMaxHoldEndsAHold(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire(dlock.MaxHold(ms(50)))
		held := h.Context()
		<-held.Done()
		var lost *dlock.LostError
		if !errors.As(context.Cause(held), &lost) || !strings.Contains(lost.Reason, "MaxHold") {
			t.Fatal(context.Cause(held))
		}
		if err := h.Release(ctx); !errors.Is(err, dlock.ErrLost) || !f.free() {
			t.Fatal(err)
		}
	})
}

func TestExtendSetsTheLease(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire(dlock.NoRenew())
		for _, ttl := range []time.Duration{time.Hour, 5 * time.Second, time.Minute} {
			if err := h.Extend(ctx, ttl); err != nil {
				t.Fatal(err)
			}
			left, _ := f.c.Left(ctx, f.key)
			if left > ttl || left < ttl/2 || h.Valid() > left+time.Second || h.Valid() < ttl/2 {
				t.Fatal(ttl, left, h.Valid())
			}
		}
		if err := h.Extend(ctx, 0); err == nil {
			t.Fatal("no error")
		}
		if err := h.Extend(ctx, ms(500)); err != nil {
			t.Fatal(err)
		}
		<-h.Context().Done()
		if err := h.Extend(ctx, time.Minute); !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
	})
}

func TestGuardedAndFencedWrites(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		data, gate := f.key+":data", f.key+":gate"
		one := f.acquire()
		if v, err := one.Guard(ctx, "INCRBY", data, 5).Int(); v != 5 || err != nil {
			t.Fatal(v, err)
		}
		if err := one.Guard(ctx, "GET", f.key+":none").Err(); err != redis.Nil {
			t.Fatal(err)
		}
		if err := f.c.Fenced(ctx, gate, one.Fence(), "SET", data, "one").Err(); err != nil {
			t.Fatal(err)
		}
		f.c.Break(ctx, f.key)
		two := f.acquire()
		if err := one.Guard(ctx, "SET", data, "late").Err(); !errors.Is(err, dlock.ErrLost) || one.Err() == nil {
			t.Fatal(err)
		}
		if err := f.c.Fenced(ctx, gate, two.Fence(), "SET", data, "two").Err(); err != nil {
			t.Fatal(err)
		}
		err := f.c.Fenced(ctx, gate, one.Fence(), "SET", data, "late").Err()
		var stale *dlock.StaleFenceError
		if !errors.Is(err, dlock.ErrStaleFence) || !errors.As(err, &stale) || stale.Greatest != two.Fence() {
			t.Fatal(err)
		}
		if f.rdb.Get(ctx, data).Val() != "two" {
			t.Fatal("the late write was done")
		}
		f.release(two)
	})
}

func TestSeveralLocksAreAcquiredAllOrNone(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		keys := []string{f.key + ":c", f.key + ":a", f.key + ":b", f.key + ":a"}
		holds, err := f.c.AcquireAll(ctx, keys)
		if err != nil || len(holds) != 3 || holds[0].Key() != f.key+":a" || holds.Valid() <= 0 {
			t.Fatal(holds, err)
		}
		if _, err := f.c.TryAcquireAll(ctx, []string{f.key + ":0", f.key + ":c"}); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if seen, _ := f.c.Inspect(ctx, f.key+":0"); seen != nil {
			t.Fatal("held alone")
		}
		work, stop := holds.Context(ctx)
		defer stop()
		f.c.Break(ctx, f.key+":b")
		holds[1].Held(ctx)
		<-work.Done()
		if !errors.Is(context.Cause(work), dlock.ErrLost) || !errors.Is(holds.Err(), dlock.ErrLost) {
			t.Fatal(context.Cause(work))
		}
		if err := holds.Release(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
		// A lock that is lost during the wait for another one ends the wait.
		blocker, _ := f.c.TryAcquire(ctx, f.key+":z")
		done := make(chan error)
		go func() {
			_, err := f.c.AcquireAll(ctx, []string{f.key + ":z", f.key + ":a"}, dlock.TTL(time.Second))
			done <- err
		}()
		f.until("it waits", func() bool { w, _ := f.c.Waiters(ctx, f.key+":z", 10); return len(w) == 1 })
		f.c.Break(ctx, f.key+":a")
		if err := <-done; !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
		f.release(blocker)
	})
}

func TestAPathExcludesItsAncestorsAndDescendants(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		root := strings.Trim(strings.ReplaceAll(f.key, "/", ":"), "{}")
		holds, err := f.c.AcquirePath(ctx, root+"/b/c")
		if err != nil || len(holds) != 3 || holds[2].Key() != "{"+root+"}/b/c" {
			t.Fatal(holds, err)
		}
		for path, excluded := range map[string]bool{root: true, root + "/b": true, root + "/b/c": true, root + "/b/c/d": true, root + "/x": false} {
			others, err := f.c.AcquirePath(ctx, path, dlock.MaxWait(ms(30)))
			if (err != nil) != excluded {
				t.Error(path, err)
			}
			others.Release(ctx)
		}
		if err := holds.Release(ctx); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"", "/a", "a//b", "a/", "{a}/b"} {
			if _, err := f.c.AcquirePath(ctx, path); err == nil {
				t.Error(path)
			}
		}
		if _, err := f.c.AcquirePath(ctx, root, dlock.Permits(2)); err == nil {
			t.Error("a path with permits")
		}
	})
}

func TestAHoldIsAdopted(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		left := f.acquire(dlock.NoRenew())
		if _, err := left.Forget(ctx); err != nil {
			t.Fatal(err)
		}
		h, err := dlock.New(f.rdb).Adopt(ctx, f.key, left.Token(), dlock.TTL(time.Hour))
		if err != nil || h.Fence() != left.Fence() {
			t.Fatal(err)
		}
		if left, _ := f.c.Left(ctx, f.key); left < 59*time.Minute {
			t.Fatal(left)
		}
		for name, option := range map[string]dlock.Option{
			"Ephemeral": dlock.Ephemeral(), "Durable": dlock.Durable(0, time.Second),
		} {
			if _, err := f.c.Adopt(ctx, f.key, left.Token(), option); err == nil || !strings.Contains(err.Error(), "omit "+name) {
				t.Error(name, err)
			}
		}
		f.release(h)
		if _, err := f.c.Adopt(ctx, f.key, left.Token()); !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
	})
}

func TestAnAdoptedHoldIsUpgradedByTheServer(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		other := dlock.New(f.rdb)
		adopt := func(left *dlock.Hold) *dlock.Hold {
			t.Helper()
			token, err := left.Forget(ctx)
			if err != nil {
				t.Fatal(err)
			}
			h, err := other.Adopt(ctx, f.key, token)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		sharer := f.acquire(dlock.Shared())
		h := adopt(f.acquire(dlock.Shared()))
		limit, cancel := context.WithTimeout(ctx, ms(20))
		defer cancel()
		if err := h.Upgrade(limit); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		f.hasMode("shared", 2, 0)
		f.release(sharer)
		for range 2 {
			if err := h.Upgrade(ctx); err != nil {
				t.Fatal(err)
			}
			f.hasMode("exclusive", 1, 0)
		}

		// An upgrade that is given up does not share a hold that was exclusive before.
		h = adopt(h)
		ended, end := context.WithCancel(ctx)
		end()
		if err := h.Upgrade(ended); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		f.hasMode("exclusive", 1, 0)
		f.release(h)

		h = adopt(f.acquire(dlock.Permits(3)))
		for _, change := range []func(context.Context) error{h.Upgrade, h.Downgrade} {
			if err := change(ctx); err == nil {
				t.Fatal("the mode of a hold with permits has changed")
			}
			f.hasMode("permits", 1, 0)
		}
		f.release(h)
	})
}

func TestAForgottenHoldIsNeitherRenewedNorReleased(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		left := f.acquire()
		work := left.Context()
		token, err := left.Forget(ctx)
		if err != nil || token != left.Token() || !errors.Is(context.Cause(work), dlock.ErrReleased) || left.Valid() != 0 {
			t.Fatal(err, context.Cause(work))
		}
		if _, err := left.Forget(ctx); !errors.Is(err, dlock.ErrReleased) {
			t.Fatal(err)
		}
		h, err := dlock.New(f.rdb).Adopt(ctx, f.key, token)
		if err != nil {
			t.Fatal(err)
		}
		f.release(left) // does nothing
		if held, err := h.Held(ctx); !held || err != nil {
			t.Fatal(err)
		}
		f.release(h)
		if _, err := f.acquire(dlock.TTL(ms(300))).Forget(ctx); err != nil {
			t.Fatal(err)
		}
		f.until("the lease ends without a renewal", f.free)

		owner := dlock.NewToken()
		for _, opts := range [][]dlock.Option{{dlock.Ephemeral()}, {dlock.Reentrant(owner)}} {
			h := f.acquire(opts...)
			again, _ := f.c.TryAcquire(ctx, f.key, dlock.Reentrant(owner))
			if _, err := h.Forget(ctx); err == nil || h.Err() != nil {
				t.Fatal(err, h.Err())
			}
			if again != nil {
				f.release(again)
			}
			f.release(h)
		}
		h = f.acquire()
		f.c.Break(ctx, f.key)
		h.Held(ctx)
		if _, err := h.Forget(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Fatal(err)
		}
	})
}

func TestADurableGrantNeedsItsReplicas(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		_, err := f.c.TryAcquire(ctx, f.key, dlock.Durable(1, ms(50)))
		if !errors.Is(err, dlock.ErrNotDurable) || !f.free() || !strings.HasSuffix(err.Error(), fmt.Sprintf("%q: 0 copies", f.key)) {
			t.Fatal(err)
		}
		s := own(t, f)
		own(t, f, "--replicaof", "127.0.0.1", fmt.Sprint(s.s.Port))
		f.until("the replica is connected", func() bool {
			return strings.Contains(s.rdb.Info(ctx, "replication").Val(), "state=online")
		})
		h, err := s.c.TryAcquire(ctx, f.key, dlock.Durable(1, 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		s.release(h)
		file := own(t, f, "--appendonly", "yes")
		if strings.HasPrefix(f.rdb.Info(ctx, "server").Val(), "# Server\r\nredis_version:7.0") {
			return // WAITAOF is of Redis 7.2
		}
		h, err = file.c.TryAcquire(ctx, f.key, dlock.Durable(0, 20*time.Second))
		if err != nil && !strings.Contains(err.Error(), "unknown command") {
			t.Fatal(err)
		}
		if err == nil {
			file.release(h)
		}
	})
}

func TestTheReadingCommandsAreTyped(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		h := f.acquire(dlock.Label("reader"))
		granted := make(chan error)
		go func() {
			_, err := f.c.Acquire(ctx, f.key, dlock.Label("waiter"))
			granted <- err
		}()
		f.until("it waits", func() bool { return f.queued() == 1 })
		w, err := f.c.Waiters(ctx, f.key, 5)
		if err != nil || w[0].Client != -1 || w[0].Mode != "exclusive" || w[0].Label != "waiter" {
			t.Fatalf("%+v %v", w, err)
		}
		found := 0
		for l, err := range f.c.List(ctx, f.key) {
			if err != nil || l.Key != f.key || l.Holders != 1 || l.Waiters != 1 || l.Left <= 0 {
				t.Fatalf("%+v %v", l, err)
			}
			if l.Token == "" || l.Fence != h.Fence() || l.Label != "reader" || l.Addr == "" || l.Delay != 0 {
				t.Fatalf("%+v", l)
			}
			found++
		}
		if found != 1 {
			t.Fatal(found)
		}
		if n, err := f.c.Cancel(ctx, f.key, w[0].Token); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := <-granted; !errors.Is(err, dlock.ErrNotAcquired) || !strings.Contains(err.Error(), "cancelled") {
			t.Fatal(err)
		}
		f.c.Break(ctx, f.key)
		log, err := f.c.Log(ctx, 10, f.key)
		if err != nil || log[0].What != "broken" || log[0].Label != "reader" || log[0].Fence != h.Fence() || time.Since(log[0].Time) > time.Hour {
			t.Fatalf("%+v %v", log, err)
		}
		h.Release(ctx)
	})
}

func TestALeaderLeadsUntilItIsLost(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		leader := f.c.Leader(f.key, dlock.TTL(time.Second), dlock.Label("the leader"))
		terms := 0
		last := int64(0)
		mine := errors.New("resigned")
		err := leader.Run(limited(t), func(ctx context.Context, term *dlock.Hold) error {
			terms++
			if term.Fence() <= last {
				t.Error("the term did not rise")
			}
			last = term.Fence()
			who, err := leader.Current(ctx)
			if err != nil || who == nil || who.Label != "the leader" {
				t.Error(who, err)
			}
			if terms < 3 {
				f.c.Break(ctx, f.key)
				<-ctx.Done()
				return ctx.Err()
			}
			return mine
		})
		if err != mine || terms != 3 {
			t.Fatal(err, terms)
		}
		if who, err := leader.Current(ctx); who != nil || err != nil {
			t.Fatal(who, err)
		}
		for who, err := range leader.Observe(ctx) {
			if who != nil || err != nil {
				t.Fatal(who, err)
			}
			break
		}
		for _, mode := range []dlock.Option{dlock.Shared(), dlock.Permits(2)} {
			err := f.c.Leader(f.key, mode).Run(limited(t), func(context.Context, *dlock.Hold) error { return nil })
			if err == nil || !strings.Contains(err.Error(), "omit Shared and Permits") {
				t.Error(err)
			}
		}
		stop, cancel := context.WithCancel(ctx)
		err = leader.Run(stop, func(ctx context.Context, term *dlock.Hold) error {
			cancel()
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, context.Canceled) || !f.free() {
			t.Fatal(err)
		}
	})
}

func TestATraceSeesEachStep(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		var steps []string
		note := func(step string) { steps = append(steps, step) }
		c := dlock.New(f.rdb, dlock.Traced(&dlock.Trace{
			Acquired:    func(context.Context, *dlock.Hold, time.Duration) { note("acquired") },
			NotAcquired: func(context.Context, string, time.Duration, error) { note("not acquired") },
			Released:    func(*dlock.Hold, time.Duration) { note("released") },
			Lost:        func(*dlock.Hold, error) { note("lost") },
		}))
		h, _ := c.TryAcquire(ctx, f.key)
		c.TryAcquire(ctx, f.key)
		h.Release(ctx)
		h, _ = c.TryAcquire(ctx, f.key)
		f.c.Break(ctx, f.key)
		h.Held(ctx)
		h.Release(ctx)
		if got := strings.Join(steps, ", "); got != "acquired, not acquired, released, acquired, lost" {
			t.Fatal(got)
		}
	})
}

func TestTheErrorOfALossSaysWhy(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		for what, end := range map[string]func(){
			"broken":   func() { s.c.Break(ctx, s.key) },
			"vanished": func() { s.rdb.Del(ctx, s.key) },
			"flushed":  func() { s.rdb.FlushAll(ctx) },
		} {
			h := s.acquire()
			end()
			err := h.Extend(ctx, time.Minute)
			var lost *dlock.LostError
			if !errors.As(err, &lost) || lost.Incident() == nil || !strings.Contains(what+" vanished", lost.Incident().What) {
				t.Fatal(what, err)
			}
			if again := h.Release(ctx); again != err || again.Error() != err.Error() {
				t.Error(again)
			}
		}
		s.rdb.Do(ctx, "ACL", "SETUSER", "default", "-dlock.log")
		h := s.acquire()
		s.c.Break(ctx, s.key)
		if err := h.Release(ctx); !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), "or it expired") {
			t.Fatal(err)
		}
	})
}

func TestAPathClosesNoneOfItsAncestors(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		root := strings.Trim(strings.ReplaceAll(f.key, "/", ":"), "{}")
		closing := []dlock.Option{dlock.AtLeast(time.Hour), dlock.Delay(time.Hour)}
		holds, err := f.c.AcquirePath(limited(t), root+"/x", closing...)
		if err != nil || holds.Release(ctx) != nil {
			t.Fatal(err)
		}
		expires, err := f.c.AcquirePath(limited(t), root+"/y", append(closing, dlock.TTL(3*time.Second), dlock.NoRenew())...)
		if err != nil {
			t.Fatal(err)
		}
		f.until("it is lost", func() bool { return expires.Err() != nil })
		holds, err = f.c.AcquirePath(limited(t), root+"/z")
		if err != nil || holds.Release(ctx) != nil {
			t.Fatal(err)
		}
		if _, err := f.c.AcquirePath(ctx, root+"/x/below", dlock.MaxWait(ms(20))); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
	})
}

func TestATooLongAtLeastIsAnErrorBeforeTheWork(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		for range 2 {
			f.release(f.acquire(dlock.AtLeast(time.Nanosecond)))
			err := f.c.Do(ctx, f.key, func(context.Context, *dlock.Hold) error {
				t.Error("the work begins")
				return nil
			}, dlock.AtLeast(48*time.Hour))
			if err == nil || errors.Is(err, dlock.ErrNoModule) || !strings.Contains(err.Error(), "dlock.max-ttl") || !f.free() {
				t.Fatal(err)
			}
		}
		token, err := f.acquire().Forget(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.c.Adopt(ctx, f.key, token, dlock.AtLeast(48*time.Hour)); err == nil || !strings.Contains(err.Error(), "dlock.max-ttl") {
			t.Fatal(err)
		}
		h, err := f.c.Adopt(ctx, f.key, token, dlock.AtLeast(time.Nanosecond))
		if err != nil {
			t.Fatal(err)
		}
		f.release(h)
	})
}

// refused is an error reply of a server.
type refused string

func (r refused) Error() string { return string(r) }
func (refused) RedisError()     {}

// refusing returns a switch: while it has an error, a RELEASE with a DELAY is refused with it, as an older server does.
func refusing(rdb redis.UniversalClient) *atomic.Pointer[refused] {
	refusal := new(atomic.Pointer[refused])
	hook := before(func(cmd redis.Cmder) error {
		if r := refusal.Load(); r != nil && strings.EqualFold(cmd.Name(), "dlock.release") && slices.Contains(cmd.Args(), any("DELAY")) {
			return *r
		}
		return nil
	})
	rdb.AddHook(&hook)
	return refusal
}

func TestAtLeastNeedsAServerThatKnowsIt(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		refusal := refusing(f.rdb)
		for text, want := range map[refused]error{
			"ERR syntax error": dlock.ErrNoModule, "NOPERM this user has no permissions": nil,
		} {
			h := f.acquire(dlock.AtLeast(time.Nanosecond))
			token, err := h.Forget(ctx)
			if err != nil {
				t.Fatal(err)
			}
			refusal.Store(&text)
			other := dlock.New(f.rdb)
			_, tried := other.TryAcquire(ctx, f.key+"x", dlock.AtLeast(time.Hour))
			_, waited := other.Acquire(limited(t), f.key+"x", dlock.AtLeast(time.Hour))
			_, adopted := other.Adopt(ctx, f.key, token, dlock.AtLeast(time.Hour))
			for _, err := range []error{tried, waited, adopted} {
				if err == nil || !errors.Is(err, text) || want != nil && !errors.Is(err, want) {
					t.Error(err)
				}
			}
			if seen, err := f.c.Inspect(ctx, f.key+"x"); seen != nil || err != nil {
				t.Error(seen, err)
			}
			h, err = other.Adopt(ctx, f.key, token)
			if err != nil {
				t.Fatal(err)
			}
			f.release(h)
			refusal.Store(nil)
		}
	})
}

func TestAServerThatHasRefusedADelayIsAskedAgain(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		refusal := refusing(f.rdb)
		h := f.acquire(dlock.AtLeast(time.Hour))
		old := refused("ERR syntax error")
		refusal.Store(&old)
		if err := h.Release(ctx); !errors.Is(err, old) {
			t.Fatal(err)
		}
		f.until("the lock is free", f.free)
		if h, err := f.c.TryAcquire(ctx, f.key, dlock.AtLeast(time.Hour)); !errors.Is(err, dlock.ErrNoModule) {
			t.Fatal(h, err)
		}
	})
}

func TestEachServerOfAClusterOrASentinelIsAskedForItsDelay(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
		failover.Options().Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", f.s.Addr())
		}
		defer failover.Close()
		nodes := clusterClient(t, sharedCluster(t, program(f)))
		for name, rdb := range map[string]redis.UniversalClient{"sentinel": failover, "cluster": nodes} {
			refusal, c := refusing(rdb), dlock.New(rdb)
			h, err := c.TryAcquire(ctx, f.key, dlock.AtLeast(time.Nanosecond))
			if err != nil {
				t.Fatal(name, err)
			}
			f.release(h)
			old := refused("ERR syntax error") // of another node, or after a failover
			refusal.Store(&old)
			if h, err := c.TryAcquire(ctx, f.key+"x", dlock.AtLeast(time.Nanosecond)); !errors.Is(err, dlock.ErrNoModule) {
				t.Error(name, h, err)
			}
			f.close(c)
		}
	})
}

func TestTheCheckOfAtLeastEndsNoHold(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		token := dlock.NewToken()
		fence, err := f.rdb.Do(ctx, "DLOCK.ACQUIRE", f.key, token, 30_000).Int64()
		if err != nil {
			t.Fatal(err)
		}
		h, err := f.c.TryAcquire(ctx, f.key, dlock.Reentrant(token), dlock.AtLeast(time.Hour))
		if err != nil || h.Fence() != fence {
			t.Fatal(err)
		}
		f.release(h)
		f.c.Break(ctx, f.key)
	})
}

func TestAnErrorOfTheReleaseReachesTheCallerOfDo(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		err := s.c.Do(ctx, s.key, func(context.Context, *dlock.Hold) error {
			return s.rdb.ConfigSet(ctx, "dlock.max-ttl", "60000").Err()
		}, dlock.AtLeast(time.Hour))
		if err == nil || !strings.Contains(err.Error(), "DELAY") {
			t.Fatal(err)
		}
	})
}

func TestAnEndedWaitIsTheErrorOfTheContextAndItsCause(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		mine := errors.New("mine")
		h := f.acquire()
		defer f.release(h)
		limit, stop := context.WithTimeoutCause(ctx, ms(20), mine)
		defer stop()
		_, err := f.c.Acquire(limit, f.key)
		_, late := f.c.Acquire(limit, f.key)
		for _, err := range []error{err, late} {
			if !errors.Is(err, dlock.ErrNotAcquired) || !errors.Is(err, mine) || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
	})
}

func TestTheContextOfAnEntryEndsWithItsRelease(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		entered := dlock.Reentrant(dlock.NewToken())
		type name struct{}
		outer := f.acquire(entered)
		inner, err := f.c.Acquire(context.WithValue(ctx, name{}, "inner"), f.key, entered)
		if err != nil {
			t.Fatal(err)
		}
		around, within := outer.Context(), inner.Context()
		if within.Value(name{}) != "inner" {
			t.Error("the values of another call")
		}
		f.release(inner)
		if !errors.Is(context.Cause(within), dlock.ErrReleased) || around.Err() != nil || inner.Context().Err() == nil {
			t.Error(context.Cause(within), around.Err(), inner.Context().Err())
		}
		third := f.acquire(entered).Context()
		f.release(outer)
		if around.Err() == nil || third.Err() != nil {
			t.Error(around.Err(), third.Err())
		}
		f.c.Break(ctx, f.key)
		outer.Held(ctx)
		if !errors.Is(context.Cause(third), dlock.ErrLost) {
			t.Error(context.Cause(third))
		}
	})
}

// wrapping is a hook that puts a text around each error.
type wrapping struct{}

func (wrapping) DialHook(next redis.DialHook) redis.DialHook { return next }
func (wrapping) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (wrapping) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := next(ctx, cmd); err != nil {
			return fmt.Errorf("shop: %s: %w", cmd.Name(), err)
		}
		return nil
	}
}

func TestErrorsThatAHookWrapsAreRecognised(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		rdb := s.s.Client()
		defer rdb.Close()
		rdb.AddHook(wrapping{})
		c := dlock.New(rdb)
		s.rdb.Do(ctx, "ACL", "SETUSER", "default", "resetchannels")
		first := s.acquire()
		granted := s.waiting(c) // has no right to the channel, so it polls
		s.release(first)
		s.release(<-granted)
		h, err := c.Acquire(ctx, s.key, dlock.Owner("me"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Acquire(ctx, s.key, dlock.Owner("me")); !errors.Is(err, dlock.ErrDeadlock) {
			t.Error(err)
		}
		c.Fenced(ctx, "gate", 7, "SET", "data", 1)
		if err := c.Fenced(ctx, "gate", 6, "SET", "data", 1).Err(); !errors.Is(err, dlock.ErrStaleFence) {
			t.Error(err)
		}
		s.rdb.Set(ctx, s.key, "data", 0)
		if err := h.Guard(ctx, "SET", "data", 1).Err(); !errors.Is(err, dlock.ErrLost) && !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Error(err)
		}
		if held, err := h.Held(ctx); held || err != nil {
			t.Error(held, err)
		}
		if err := h.Release(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Error(err)
		}
		if _, err := c.TryAcquire(ctx, s.key); !errors.Is(err, dlock.ErrNotALock) {
			t.Error(err)
		}
	})
}
