package tests

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/redis/go-redis/v9"
)

// lostByItself waits until the client reports a loss without a call of the test.
func lostByItself(t *testing.T, h *dlock.Hold) {
	t.Helper()
	work, began := h.Context(), time.Now()
	select {
	case <-work.Done():
		t.Log("lost after", time.Since(began)) // shown by go test -v
	case <-limited(t).Done():
		t.Fatal("the loss is not reported")
	}
	if err := context.Cause(work); !errors.Is(err, dlock.ErrLost) {
		t.Fatal(err)
	}
	h.Release(ctx)
}

// The first renewal is after 20 min, so only the watcher can report the loss.
func TestALossIsReportedWithoutARenewal(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		c := dlock.New(s.rdb, dlock.TTL(time.Hour))
		acquire := func(opts ...dlock.Option) *dlock.Hold {
			h, err := c.Acquire(ctx, s.key, opts...)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		watched := func() {
			read := calls(s.rdb, "dlock.holds")
			s.until("the hold is watched", func() bool { return calls(s.rdb, "dlock.holds") > read })
		}
		h := acquire()
		s.c.Break(ctx, s.key)
		lostByItself(t, h) // before it was watched

		h = acquire(dlock.NoRenew())
		watched()
		s.c.Break(ctx, s.key)
		lostByItself(t, h)

		h = acquire()
		watched()
		if err := h.Extend(ctx, 2*time.Hour); err != nil {
			t.Fatal(err)
		}
		watched() // again, as the extension was reported
		s.rdb.Del(ctx, s.key)
		lostByItself(t, h)

		one, two := acquire(dlock.Shared()), acquire(dlock.Shared())
		watched()
		s.rdb.Do(ctx, "DLOCK.RELEASE", s.key, one.Token(), "ALL")
		lostByItself(t, one)
		if err := two.Release(ctx); err != nil {
			t.Fatal(err)
		}

		h = acquire()
		watched()
		s.rdb.FlushAll(ctx)
		lostByItself(t, h)
		if n := calls(s.rdb, "dlock.extend"); n != 1 {
			t.Fatal("renewals:", n)
		}
	})
}

func TestAWatcherThatBreaksIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		proxy, c := s.proxied(time.Minute)
		h, err := c.Acquire(ctx, s.key, dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		s.until("the hold is watched", func() bool { return calls(s.rdb, "dlock.holds") > 0 })
		proxy.Drop()
		s.c.Break(ctx, s.key)
		lostByItself(t, h)
	})
}

func TestAWatcherBetweenTwoServersIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s, other := own(t, f), own(t, f)
		for range 50 { // so that the server of the lock does not have the CLIENT ID
			conn := redis.NewClient(&redis.Options{Addr: other.s.Addr()})
			conn.Ping(ctx)
			conn.Close()
		}
		rdb := redis.NewClient(&redis.Options{Addr: s.s.Addr()})
		t.Cleanup(func() { rdb.Close() })
		if err := rdb.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		var dialled atomic.Int32
		rdb.Options().Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
			address := s.s.Addr()
			if dialled.Add(1) == 1 {
				address = other.s.Addr()
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
		h, err := newClient(t, rdb).Acquire(ctx, s.key, dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		s.until("the hold is watched", func() bool { return calls(s.rdb, "dlock.holds") > 0 })
		s.c.Break(ctx, s.key)
		lostByItself(t, h)
	})
}

func TestWithoutTheRightsALossIsFoundByTheRenewal(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, denied := range []string{"-client|tracking", "-dlock.holds", "resetchannels"} {
			s := own(t, f)
			s.rdb.Do(ctx, "ACL", "SETUSER", "default", denied)
			// Renewed after 5 s, and not lost in a stall of a few seconds.
			h := s.acquire(dlock.TTL(15 * time.Second))
			s.until("the hold is renewed", func() bool { return h.Err() != nil || calls(s.rdb, "dlock.extend") > 0 })
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			s.c.Break(ctx, s.key)
			lostByItself(t, h)
		}
	})
}
