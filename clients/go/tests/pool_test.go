package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// pooled returns a client with a pool of this size. Its requests wait for a connection for this time.
func (f *fixture) pooled(size int, wait time.Duration) (*redis.Client, *dlock.Client) {
	rdb := redis.NewClient(&redis.Options{
		Addr: f.s.Addr(), ReadTimeout: testserver.Limit, PoolSize: size, PoolTimeout: wait,
	})
	f.t.Cleanup(func() { rdb.Close() })
	return rdb, dlock.New(rdb)
}

// patient returns a context that ends before a request of pooled gives up.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(ctx, testserver.Limit/3)
	t.Cleanup(cancel)
	return ctx
}

func TestEphemeralWaitsTakeNoConnection(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		_, c := f.pooled(3, testserver.Limit)
		first, err := c.Acquire(patient(t), f.key)
		if err != nil {
			t.Fatal(err)
		}
		var waiters []<-chan *dlock.Hold
		for range 6 {
			waiters = append(waiters, f.waiting(c, dlock.Ephemeral()))
		}
		if err := first.Release(patient(t)); err != nil {
			t.Fatal(err)
		}
		for _, granted := range waiters {
			h := <-granted
			if seen, err := f.c.Inspect(ctx, f.key); err != nil || !seen.Holders[0].Ephemeral || seen.Holders[0].Fence != h.Fence() {
				t.Fatalf("%+v %v", seen, err)
			}
			f.release(h)
		}
	})
}

func TestEphemeralHoldsUseTheirConnections(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		_, c := f.pooled(3, testserver.Limit)
		var holds []*dlock.Hold
		for i := range 3 {
			h, err := c.Acquire(patient(t), fmt.Sprint(f.key, i), dlock.Ephemeral())
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		// All connections of the pool are taken.
		for _, h := range holds {
			if err := h.Extend(patient(t), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		for _, h := range holds {
			if err := h.Release(patient(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestAReleaseAfterAFailedDurableGrantHasAConnection(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		began := time.Now()
		_, c := f.pooled(1, testserver.Limit)
		_, err := c.TryAcquire(patient(t), f.key, dlock.Durable(1, ms(20)))
		if !errors.Is(err, dlock.ErrNotDurable) || !f.free() || time.Since(began) > testserver.Limit/2 {
			t.Fatal(err)
		}
	})
}

func TestTheFirstRequestOfAWaitEndsWithTheContext(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		rdb := redis.NewClient(&redis.Options{Addr: s.s.Addr(), ReadTimeout: testserver.Limit, ContextTimeoutEnabled: true, MaxRetries: -1})
		defer rdb.Close()
		c := dlock.New(rdb)
		f.release(s.acquire())
		h := s.acquire()
		waits, stop := context.WithCancel(ctx)
		go c.Acquire(waits, f.key) // the lock is contended, and messages arrive
		f.until("it waits for messages", func() bool {
			return s.queued() == 1 && len(s.rdb.PubSubChannels(ctx, "dlock:*").Val()) == 1
		})
		s.s.Pause()
		limit, cancel := context.WithTimeout(ctx, ms(100))
		defer cancel()
		began := time.Now()
		_, err := c.Acquire(limit, f.key)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > testserver.Limit/2 {
			t.Error(took, err)
		}
		s.s.Continue()
		stop()
		h.Release(ctx)
	})
}
