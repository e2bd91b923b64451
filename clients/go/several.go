package dlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Holds are several locks that were acquired together.
type Holds []*Hold

// AcquireAll acquires all locks or none, one after the other in the order of their names, so that clients with
// overlapping sets never deadlock. Names that occur twice are acquired once. The holds are renewed meanwhile; if one is
// lost before all are acquired, AcquireAll returns its [LostError].
func (c *Client) AcquireAll(ctx context.Context, keys []string, opts ...Option) (Holds, error) {
	return c.acquireEach(ctx, sorted(keys), true, func(string) []Option { return opts })
}

// TryAcquireAll acquires all locks if no client holds or waits for one of them, and none otherwise.
func (c *Client) TryAcquireAll(ctx context.Context, keys []string, opts ...Option) (Holds, error) {
	return c.acquireEach(ctx, sorted(keys), false, func(string) []Option { return opts })
}

// AcquirePath acquires a path such as "a/b/c": the ancestors "a" and "a/b" shared, the path itself exclusively, or
// shared if the options say so. So a path excludes all that are above or below it, and no others. The keys are "{a}",
// "{a}/b" and "{a}/b/c": all in one slot of a cluster. [AtLeast] and [Delay] keep the path and its descendants closed,
// but not its ancestors. [Permits] is an error.
func (c *Client) AcquirePath(ctx context.Context, path string, opts ...Option) (Holds, error) {
	keys, err := pathKeys(path)
	if err != nil {
		return nil, err
	}
	if o, err := c.defaults.apply(opts); err == nil && o.permits > 0 {
		return nil, misuse("%q: a path is exclusive or shared; omit Permits", path)
	}
	leaf := keys[len(keys)-1]
	return c.acquireEach(ctx, keys, true, func(key string) []Option {
		if key == leaf {
			return opts
		}
		return append(slices.Clone(opts), Shared(), AtLeast(0), Delay(0))
	})
}

// pathKeys returns the keys of a path, the root first.
func pathKeys(path string) ([]string, error) {
	parts := strings.Split(path, "/")
	for _, part := range parts {
		if part == "" || strings.ContainsAny(part, "{}") {
			return nil, misuse("%q is no path: its parts must not be empty or have braces", path)
		}
	}
	keys := make([]string, len(parts))
	key := "{" + parts[0] + "}"
	for i := range parts {
		if i > 0 {
			key += "/" + parts[i]
		}
		keys[i] = key
	}
	return keys, nil
}

func sorted(keys []string) []string {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (c *Client) acquireEach(ctx context.Context, keys []string, waits bool, opts func(key string) []Option) (holds Holds, err error) {
	if len(keys) == 0 {
		return nil, misuse("no locks to acquire")
	}
	// The limit of the wait is for all locks together.
	o, err := c.defaults.apply(opts(keys[0]))
	if err != nil {
		return nil, err
	}
	if waits && o.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.maxWait)
		defer cancel()
	}
	outer := ctx
	defer func() {
		if err != nil {
			for _, h := range slices.Backward(holds) {
				h.abandon(outer)
			}
			holds = nil
		}
	}()
	for _, key := range keys {
		h, err := c.acquire(ctx, key, waits, append(slices.Clone(opts(key)), MaxWait(0)))
		if lost := holds.Err(); lost != nil {
			if h != nil {
				holds = append(holds, h)
			}
			return holds, lost
		}
		if err != nil {
			return holds, err
		}
		holds = append(holds, h)
		// The wait for the next lock ends if this one is lost.
		var stop context.CancelFunc
		ctx, stop = h.within(ctx)
		defer stop()
	}
	return holds, nil
}

// Err returns the first error of [Hold.Err].
func (holds Holds) Err() error {
	for _, h := range holds {
		if err := h.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Valid returns the shortest time of [Hold.Valid].
func (holds Holds) Valid() time.Duration {
	least := maxDuration
	for _, h := range holds {
		least = min(least, h.Valid())
	}
	return least
}

// Context returns a context that is cancelled when ctx is done or one of the holds has ended. Call the function that it
// returns when the work has ended.
func (holds Holds) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	stops := make([]context.CancelFunc, len(holds))
	for i, h := range holds {
		ctx, stops[i] = h.within(ctx)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Release releases all locks, the last one first, and joins the errors.
func (holds Holds) Release(ctx context.Context) error {
	var errs []error
	for _, h := range slices.Backward(holds) {
		errs = append(errs, h.Release(ctx))
	}
	return errors.Join(errs...)
}
