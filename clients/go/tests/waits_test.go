package tests

import (
	"fmt"
	"sync"
	"testing"

	dlock "github.com/dlock/dlock/clients/go"
)

func TestTheMessageIsTheGrant(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		first := s.acquire()
		granted := make(chan *dlock.Hold)
		go func() { granted <- s.acquire() }()
		s.until("it waits", func() bool { return s.queued() == 1 })
		before := calls(s.rdb, "dlock.acquire")
		s.release(first)
		h := <-granted
		if asked := calls(s.rdb, "dlock.acquire") - before; asked != 0 {
			t.Fatalf("%d more requests before the hold", asked)
		}
		// Until the claim is answered, only the rest of the position counts. The claim sets the full lease.
		s.until("the claim sets the full lease", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			left, err := s.c.Left(ctx, s.key)
			return err == nil && left > 20_000_000_000 && h.Valid() > 20_000_000_000
		})
		s.release(h)
	})
}

func TestAThousandWaitsCostOneSubscription(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		const n = 1000
		first := s.acquire()
		var group sync.WaitGroup
		for range n {
			group.Add(1)
			go func() {
				defer group.Done()
				h, err := s.c.Acquire(limited(t), s.key)
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.Release(ctx); err != nil {
					t.Error(err)
				}
			}()
		}
		s.until("all wait", func() bool {
			seen, err := s.c.Inspect(ctx, s.key)
			return err == nil && seen.Waiters == n
		})
		if channels := s.rdb.PubSubChannels(ctx, "*").Val(); len(channels) != 1 || s.rdb.PubSubNumSub(ctx, channels[0]).Val()[channels[0]] != 1 {
			t.Fatal(fmt.Sprint(channels))
		}
		s.release(first)
		group.Wait()
	})
}
