package dlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Client acquires locks on one server, over a go-redis client. It may be used by several goroutines at once. While
// no lock is held, waited for or owed a release, it has no goroutine and no connection of its own.
type Client struct {
	rdb redis.UniversalClient
	// defaults are the options of New.
	defaults *options
	// err is the error of New.
	err error
	// turns limits the callers that try again because the pool is busy: see inTurn.
	turns      chan struct{}
	channel    string
	channelArg any

	// mu guards the fields below and the state of all holds. Leave it by unlock.
	mu    sync.Mutex
	due   schedule
	timer *time.Timer
	// armed is when the timer ends; never: it does not run.
	armed instant
	// toWatch has the holds that are due for watching, watchers the watcher of each server. No watcher begins before
	// watchFrom.
	toWatch   []*hold
	watchers  map[*redis.Client]*watcher
	watchFrom instant
	// after has the functions that unlock calls once the lock is free.
	after []func()
	// waits has the holds that wait. calls maps the id of each call that the server may still grant to its hold.
	waits     map[*hold]struct{}
	calls     map[string]*hold
	listener  *listener
	contended map[string]instant
	// owned counts the holds of this client by key and owner.
	owned map[owned]int
	// debts has the holds in the state owed.
	debts map[*hold]struct{}
	// free is closed once there are no debts, if Close waits for that.
	free    chan struct{}
	entered map[entered]*entry
	// findsMaster: a cluster or a sentinel names the server. If none is at its address, it has probably failed.
	findsMaster bool
	// delay is the longest DELAY of a RELEASE that the server is known to accept, in ms. It stays 0 if findsMaster: then
	// the next request may find another server.
	delay int64
}

// owned is a lock with its owner.
type owned struct{ key, owner string }

// New returns a client over a go-redis client of one server, of Sentinel, or of Redis Cluster. The options are the
// defaults of each acquisition. Their mistakes are reported by the first one.
//
// The go-redis client remains yours: the Client uses its connections, hooks and options, but never lets it send a
// request twice, whatever its MaxRetries says.
func New(rdb redis.UniversalClient, defaults ...Option) *Client {
	channel := "dlock:" + newSecret()
	c := &Client{
		rdb: rdb, turns: make(chan struct{}, poolSize(rdb)), channel: channel, channelArg: channel, armed: never,
		waits: map[*hold]struct{}{}, calls: map[string]*hold{}, contended: map[string]instant{}, owned: map[owned]int{},
		debts: map[*hold]struct{}{}, entered: map[entered]*entry{},
		watchers: map[*redis.Client]*watcher{},
	}
	switch rdb := rdb.(type) {
	case *redis.Client:
		c.findsMaster = rdb.Options().Addr == "FailoverClient" // as NewFailoverClient sets it
	case *redis.ClusterClient:
		c.findsMaster = true
	case *redis.Ring:
		c.err = errList
	case nil:
		c.err = misuse("New(nil): a go-redis client is needed")
	default:
		c.watchFrom = never // see serverOf
	}
	var err error
	c.defaults, err = options{ttl: defaultTTL}.apply(defaults)
	if c.err == nil {
		c.err = err
	}
	return c
}

// TryAcquire acquires the lock if no client holds it or waits for it. Otherwise it returns an [ErrNotAcquired].
func (c *Client) TryAcquire(ctx context.Context, key string, opts ...Option) (*Hold, error) {
	return c.acquire(ctx, key, false, opts)
}

// Acquire waits in the queue of the server until the lock is granted: first come, first served, without polling. The
// wait ends with an [ErrNotAcquired] when ctx is done, after [MaxWait], or when an operator cancels it; then nothing is
// left on the server. If the last request had failed by then, its error is returned instead, with that of ctx.
//
// Acquire outlasts broken connections, an outage or a failover of up to 10 s, temporary refusals such as LOADING, and a
// pool without a free connection. After a longer outage, it returns the error of the last request. If the first request
// to a single server, which no cluster and no Sentinel has named, finds no server at the address, its error is returned
// at once: the address is probably wrong. If an answer tells of a grant that no message has announced, and no other
// message comes for 3 s, the subscription is opened anew: it may still lead to a former master.
func (c *Client) Acquire(ctx context.Context, key string, opts ...Option) (*Hold, error) {
	return c.acquire(ctx, key, true, opts)
}

// Do acquires the lock as Acquire does, calls work, and releases the lock. The context of the work is cancelled when ctx
// is done or the hold is lost; [context.Cause] says which. Do returns the error of the work, joined with a [LostError]
// if the hold was lost before the work had ended, or with the error by which the server refused the release. A release
// without an answer continues in the background and is no error.
func (c *Client) Do(ctx context.Context, key string, work func(ctx context.Context, h *Hold) error, opts ...Option) (err error) {
	h, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	ctx, stop := h.within(ctx)
	defer func() {
		stop()
		released := h.Release(ctx)
		if (errors.Is(released, ErrLost) || kindOf(released) == refused) && !errors.Is(err, released) {
			err = errors.Join(err, released)
		}
	}()
	return work(ctx, h)
}

// within returns a context that is cancelled when ctx is done or the hold has ended.
func (h *Hold) within(ctx context.Context) (context.Context, context.CancelFunc) {
	held := h.Context()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	return ctx, func() {
		stop()
		cancel(ErrReleased)
	}
}

// Close waits until each release that is owed is answered or its lease has ended, or until ctx is done: call it before
// the process exits, and before you close the go-redis client. It releases no holds. The client can be used afterwards.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if l := c.listener; l != nil && len(c.waits) == 0 {
		l.stop()
		c.listener = nil
	}
	var ending []chan struct{}
	for _, w := range c.watchers {
		if len(w.holds) == 0 {
			w.stop()
			ending = append(ending, w.ended)
		}
	}
	if len(c.debts) > 0 {
		if c.free == nil {
			c.free = make(chan struct{})
		}
		ending = append(ending, c.free)
	}
	c.unlock()
	for _, ended := range ending {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *Client) owes(h *hold) { c.debts[h] = struct{}{} }

func (c *Client) settled(h *hold) {
	delete(c.debts, h)
	if len(c.debts) == 0 && c.free != nil {
		close(c.free)
		c.free = nil
	}
}

// integer sends a command once, and returns its integer.
func (c *Client) integer(ctx context.Context, args ...any) (int64, error) {
	cmd := newOnce(ctx, args)
	c.process(ctx, nil, cmd)
	return cmd.Result()
}
