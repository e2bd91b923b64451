package dlock

import (
	"context"
	"errors"
	"iter"
	"time"
)

// observePause is the pause between two requests for the present leader.
const observePause = time.Second

// A Leader elects one of many processes.
type Leader struct {
	c    *Client
	key  string
	opts []Option
}

// Leader returns the election of the lock with this name. The fence of a hold is the number of its term. With Shared or
// Permits, which would let several processes lead at once, Run returns an error.
func (c *Client) Leader(key string, opts ...Option) *Leader {
	return &Leader{c: c, key: key, opts: opts}
}

// Run waits until this process is the leader, and then calls lead with a context that is cancelled when ctx is done or
// the process is no longer the leader. It does so again whenever the lead was lost. When lead returns before, Run
// resigns and returns its error. When ctx is done, Run resigns and returns the cause.
func (l *Leader) Run(ctx context.Context, lead func(ctx context.Context, term *Hold) error) error {
	if o, err := l.c.defaults.apply(l.opts); err == nil && (o.shared || o.permits > 0) {
		return misuse("%q: a leader is the only holder of its lock; omit Shared and Permits", l.key)
	}
	pause := 50 * time.Millisecond
	for {
		term, err := l.c.Acquire(ctx, l.key, l.opts...)
		switch {
		case err == nil:
			pause = 50 * time.Millisecond
			if err = l.term(ctx, term, lead); !errors.Is(err, errTermLost) {
				return err
			}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !l.mayPass(err):
			return err
		}
		// The server is away, or in a grace period, or the wait was cancelled: campaign again.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, 2*time.Second)
		}
	}
}

var errTermLost = errors.New("dlock: term lost")

func (l *Leader) term(ctx context.Context, term *Hold, lead func(ctx context.Context, term *Hold) error) error {
	work, stop := term.within(ctx)
	defer stop()
	defer term.Release(ctx) // continues in the background if there is no answer
	err := lead(work, term)
	switch {
	case ctx.Err() != nil && (err == nil || errors.Is(err, context.Cause(ctx)) || errors.Is(err, context.Canceled)):
		return context.Cause(ctx)
	case errors.Is(term.Err(), ErrLost):
		return errTermLost
	}
	return err
}

// mayPass returns whether a later campaign may succeed.
func (l *Leader) mayPass(err error) bool {
	var grace *GraceError
	switch {
	case errors.Is(err, ErrNoAnswer), errors.Is(err, ErrNotAcquired), errors.Is(err, ErrQueueFull), errors.As(err, &grace):
		return true
	case errors.Is(err, ErrNoModule), errors.Is(err, ErrNotALock), errors.Is(err, errList):
		return false
	}
	what := kindOf(err)
	return what == unsent || what == busy || what == notNow
}

// Current returns the present leader, and nil if there is none.
func (l *Leader) Current(ctx context.Context) (*Holder, error) {
	seen, err := l.c.Inspect(ctx, l.key)
	if err != nil || seen == nil || len(seen.Holders) == 0 {
		return nil, err
	}
	return &seen.Holders[0], nil
}

// Observe iterates over the leaders, the present one first, and nil for a time without one, until ctx is done. It looks
// once a second, so it may miss a short term.
func (l *Leader) Observe(ctx context.Context) iter.Seq2[*Holder, error] {
	return func(yield func(*Holder, error) bool) {
		fence := int64(-1)
		for ctx.Err() == nil {
			leader, err := l.Current(ctx)
			seen := int64(0)
			if leader != nil {
				seen = leader.Fence
			}
			if (err != nil && ctx.Err() == nil) || (err == nil && seen != fence) {
				if !yield(leader, err) {
					return
				}
			}
			if err == nil {
				fence = seen
			}
			select {
			case <-ctx.Done():
			case <-time.After(observePause):
			}
		}
	}
}
