package dlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// ctx, locks and rdb are shared by the examples: a client of a server that the tests start.
var (
	ctx   = context.Background()
	rdb   *redis.Client
	locks *dlock.Client
)

func TestMain(m *testing.M) {
	flag.Parse()
	programs := testserver.Programs()
	if len(programs) == 0 || testserver.Module() == "" {
		flag.Set("test.run", "^(Test|Fuzz)") // the examples need a server
		os.Exit(m.Run())
	}
	s := testserver.Start(programs[0].Program)
	rdb = s.Client()
	locks = dlock.New(rdb)
	status := m.Run()
	s.Stop()
	os.Exit(status)
}

func bill(ctx context.Context, invoice int, fence int64) error { return ctx.Err() }

func ExampleClient_Do() {
	err := locks.Do(ctx, "invoice:42", func(ctx context.Context, h *dlock.Hold) error {
		return bill(ctx, 42, h.Fence()) // ctx is cancelled if the lock is lost
	}, dlock.MaxWait(10*time.Second))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_Acquire() {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	h, err := locks.Acquire(ctx, "report")
	if err != nil {
		return // errors.Is(err, dlock.ErrNotAcquired): the error says who holds the lock
	}
	defer h.Release(ctx)
	select {
	case <-h.Context().Done():
		fmt.Println("stop writing:", context.Cause(h.Context()))
	case <-time.After(10 * time.Millisecond):
		fmt.Println("worked with a fence:", h.Fence() > 0)
	}
	// Output: worked with a fence: true
}

func ExampleClient_TryAcquire() {
	h, _ := locks.TryAcquire(ctx, "nightly", dlock.Label("machine 1"))
	_, err := locks.TryAcquire(ctx, "nightly")
	if taken := new(dlock.NotAcquiredError); errors.As(err, &taken) && taken.Holder != nil {
		fmt.Println("held by", taken.Holder.Label) // a nil Holder: closed, or no right to DLOCK.INSPECT
	}
	h.Release(ctx)
	// Output: held by machine 1
}

func ExampleHold_Guard() {
	h, _ := locks.Acquire(ctx, "{account}:lock")
	defer h.Release(ctx)
	// On the server of the lock: written only if the hold still exists there.
	err := h.Guard(ctx, "SET", "{account}:balance", 100).Err()
	fmt.Println(err, errors.Is(err, dlock.ErrLost))
	// Output: <nil> false
}

func ExampleClient_Fenced() {
	h, _ := locks.Acquire(ctx, "account")
	defer h.Release(ctx)
	// On another server with the module: refused if a later holder has written there.
	store := dlock.New(rdb)
	err := store.Fenced(ctx, "{account}:gate", h.Fence(), "SET", "{account}:balance", 100).Err()
	late := store.Fenced(ctx, "{account}:gate", h.Fence()-1, "SET", "{account}:balance", 0).Err()
	fmt.Println(err, errors.Is(late, dlock.ErrStaleFence))
	// Output: <nil> true
}

func ExampleClient_AcquireAll() {
	holds, err := locks.AcquireAll(ctx, []string{"account:1", "account:2"})
	if err != nil {
		return
	}
	defer holds.Release(ctx)
	work, stop := holds.Context(ctx) // cancelled if one of the locks is lost
	defer stop()
	fmt.Println(len(holds), work.Err())
	// Output: 2 <nil>
}

func ExampleClient_AcquirePath() {
	holds, err := locks.AcquirePath(ctx, "tenants/7/invoices") // shared on tenants and tenants/7
	if err != nil {
		return
	}
	defer holds.Release(ctx)
	_, err = locks.AcquirePath(ctx, "tenants/7", dlock.MaxWait(10*time.Millisecond))
	fmt.Println(errors.Is(err, dlock.ErrNotAcquired))
	// Output: true
}

func ExampleLeader() {
	leader := locks.Leader("scheduler", dlock.TTL(10*time.Second))
	err := leader.Run(ctx, func(ctx context.Context, term *dlock.Hold) error {
		fmt.Println("leading") // until ctx is done; then another process leads
		return nil             // resign
	})
	fmt.Println(err)
	// Output:
	// leading
	// <nil>
}

func ExamplePermits() {
	one, _ := locks.TryAcquire(ctx, "printers", dlock.Permits(2))
	two, _ := locks.TryAcquire(ctx, "printers", dlock.Permits(2))
	_, err := locks.TryAcquire(ctx, "printers", dlock.Permits(2))
	fmt.Println(errors.Is(err, dlock.ErrNotAcquired))
	one.Release(ctx)
	two.Release(ctx)
	// Output: true
}

func ExampleReentrant() {
	token := dlock.NewToken() // of one request, handed down its chain of calls
	outer, _ := locks.Acquire(ctx, "tree", dlock.Reentrant(token))
	inner, _ := locks.Acquire(ctx, "tree", dlock.Reentrant(token))
	fmt.Println(inner.Fence() == outer.Fence())
	inner.Release(ctx)
	outer.Release(ctx)
	// Output: true
}

func TestAPairOfAcquireAndReleaseAllocatesLittle(t *testing.T) {
	if locks == nil {
		t.Skip("needs a server")
	}
	allocations := testing.AllocsPerRun(500, func() {
		h, err := locks.Acquire(ctx, "pair")
		if err == nil {
			err = h.Release(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if allocations > 20 {
		t.Error(allocations)
	}
}
