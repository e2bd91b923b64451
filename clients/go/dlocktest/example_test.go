package dlocktest_test

import (
	"context"
	"errors"
	"fmt"

	dlock "github.com/dlock/dlock/clients/go"
)

// Exclusive is what the program needs of a lock, as a type of its own. A test passes another function.
type Exclusive func(ctx context.Context, key string, work func(ctx context.Context, fence int64) error) error

// WithDlock returns the function for production.
func WithDlock(locks *dlock.Client) Exclusive {
	return func(ctx context.Context, key string, work func(ctx context.Context, fence int64) error) error {
		return locks.Do(ctx, key, func(ctx context.Context, h *dlock.Hold) error { return work(ctx, h.Fence()) })
	}
}

// Bill is the code under test.
func Bill(ctx context.Context, exclusive Exclusive, invoice int) error {
	return exclusive(ctx, fmt.Sprint("invoice:", invoice), func(ctx context.Context, fence int64) error {
		fmt.Println("billed with the fence", fence)
		return nil
	})
}

// A test without a server passes functions that stand for a free lock and for a taken one.
func Example_withoutServer() {
	ctx := context.Background()
	free := func(ctx context.Context, _ string, work func(ctx context.Context, fence int64) error) error {
		return work(ctx, 7)
	}
	fmt.Println(Bill(ctx, free, 42))
	taken := func(_ context.Context, key string, _ func(ctx context.Context, fence int64) error) error {
		return &dlock.NotAcquiredError{Key: key}
	}
	fmt.Println(errors.Is(Bill(ctx, taken, 42), dlock.ErrNotAcquired))
	// Output:
	// billed with the fence 7
	// <nil>
	// true
}
