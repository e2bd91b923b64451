package tests

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
)

func TestALockIsHeldUntilItsRelease(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		first, err := f.c.TryAcquire(ctx, f.key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.c.TryAcquire(ctx, f.key)
		var taken *dlock.NotAcquiredError
		if !errors.Is(err, dlock.ErrNotAcquired) || !errors.As(err, &taken) {
			t.Fatal(err)
		}
		if taken.Holder == nil || taken.Holder.Fence != first.Fence() || !strings.Contains(taken.Holder.Label, "tests.TestALock") {
			t.Fatalf("%+v", taken.Holder)
		}
		if valid := first.Valid(); valid <= 0 || valid > 30*time.Second {
			t.Fatal(valid)
		}
		f.release(first)
		if first.Valid() != 0 || !errors.Is(first.Err(), dlock.ErrReleased) {
			t.Fatal(first.Err())
		}
		second := f.acquire()
		if second.Fence() <= first.Fence() {
			t.Fatal(second.Fence(), first.Fence())
		}
		f.release(second)
		f.release(second)
		f.mustBeFree()
	})
}

func TestAWaiterIsGrantedTheLockAfterTheRelease(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		first := f.acquire()
		var waiters []<-chan *dlock.Hold
		for range 3 {
			waiters = append(waiters, f.waiting(f.c))
		}
		f.release(first)
		fence := first.Fence()
		for _, granted := range waiters {
			h := <-granted
			if h.Fence() <= fence || h.Valid() <= 0 {
				t.Error(h.Fence(), fence, h.Valid())
			}
			fence = h.Fence()
			f.release(h)
		}
		f.mustBeFree()
	})
}

func TestACancelledWaitLeavesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		first := f.acquire()
		waits, cancel := context.WithCancelCause(ctx)
		done := make(chan error)
		go func() {
			_, err := f.c.Acquire(waits, f.key)
			done <- err
		}()
		f.until("it waits", func() bool { return f.queued() == 1 })
		why := errors.New("enough")
		cancel(why)
		if err := <-done; !errors.Is(err, dlock.ErrNotAcquired) || !errors.Is(err, why) {
			t.Fatal(err)
		}
		if f.queued() != 0 {
			t.Fatal("still queued")
		}
		_, err := f.c.Acquire(ctx, f.key, dlock.MaxWait(50*time.Millisecond))
		var taken *dlock.NotAcquiredError
		if !errors.As(err, &taken) || !errors.Is(err, context.DeadlineExceeded) || taken.Holder == nil {
			t.Fatal(err)
		}
		f.release(first)
	})
}

func TestAHoldIsRenewed(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		// Long enough for the pauses of a busy machine.
		h := f.acquire(dlock.TTL(6 * time.Second))
		left := func() time.Duration {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			l, _ := f.c.Left(ctx, f.key)
			return l
		}
		for range 2 {
			f.until("the lease goes down", func() bool { return left() < 5*time.Second })
			f.until("the lease is renewed", func() bool { return left() > 5*time.Second })
		}
		f.release(h)
	})
}

func TestDoReleasesTheLockAndReportsALoss(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		mine := errors.New("mine")
		err := f.c.Do(ctx, f.key, func(ctx context.Context, h *dlock.Hold) error {
			if f.free() {
				t.Error("free")
			}
			return mine
		})
		if err != mine || !f.free() {
			t.Fatal(err)
		}
		for _, result := range []func(context.Context) error{
			func(context.Context) error { return nil },
			context.Cause, // the loss is reported once
		} {
			err = f.c.Do(ctx, f.key, func(ctx context.Context, h *dlock.Hold) error {
				if n, err := f.c.Break(ctx, f.key); n != 1 || err != nil {
					t.Error(n, err)
				}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
					t.Error(context.Cause(ctx))
				}
				return result(ctx)
			}, dlock.TTL(time.Second))
			var lost *dlock.LostError
			if !errors.Is(err, dlock.ErrLost) || !errors.As(err, &lost) || lost.Reason == "" || err.Error() != lost.Error() {
				t.Fatal(err)
			}
		}
	})
}
