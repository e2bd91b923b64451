package dlock

import (
	"context"
	"fmt"
	"time"
)

// An Option changes an acquisition. An option that is given to [New] is the default of all acquisitions of the client.
type Option func(*options)

// TTL sets the lease, from 1 ms to the server's dlock.max-ttl (a day by default). The default is 30 s.
//
// If the holder dies, the lock is free after the lease. A living holder renews the lease after each third.
func TTL(ttl time.Duration) Option { return func(o *options) { o.ttl = ttl } }

// Shared shares the lock with other shared holders, but with no exclusive one.
func Shared() Option {
	return func(o *options) { o.shared, o.permits = true, 0 }
}

// Permits allows at most n holders, from 1 to 2147483647: a semaphore.
func Permits(n int) Option {
	return func(o *options) { o.shared, o.permits, o.permitsSet = false, n, true }
}

// NoRenew leaves the lease as it is: the hold is lost at its end, unless [Hold.Extend] sets a new one.
func NoRenew() Option { return func(o *options) { o.noRenew = true } }

// MaxWait limits the wait of [Client.Acquire] and [Client.Do], in addition to the context. With Do, the context limits
// the work, too.
func MaxWait(limit time.Duration) Option { return func(o *options) { o.maxWait = limit } }

// MaxHold declares the hold lost after this time and ends its renewal. Without it, work that hangs keeps its lock for
// ever.
func MaxHold(limit time.Duration) Option { return func(o *options) { o.maxHold = limit } }

// AtLeast keeps the lock closed for at least this time after it was acquired, even if the hold is released earlier:
// for jobs that finish faster than the clocks of their machines differ. A hold that is lost keeps nothing closed. The
// server needs dlock 0.1.0; with an older version, the acquisition or [Client.Adopt] fails with [ErrNoModule]. A time of
// more than the server's dlock.max-ttl is an error, too.
func AtLeast(d time.Duration) Option { return func(o *options) { o.atLeast = d } }

// Delay keeps the lock closed for this time after a hold that was not released: it expired, or its connection broke.
// Meanwhile, late writes of the dead holder can arrive. A wait then takes one more round trip, as a grant that no client
// has claimed ends without the delay.
func Delay(d time.Duration) Option { return func(o *options) { o.delay = d } }

// Label sets the text by which people recognise the holder, at most 255 bytes. The default has the host, the process
// and the function that called this package.
func Label(text string) Option { return func(o *options) { o.label, o.labelSet = text, true } }

// Owner names the owner of the hold for the deadlock search of the server, 1 to 255 bytes: one name for each goroutine
// that waits while it holds other locks. An owner must not release a hold while it waits.
func Owner(name string) Option { return func(o *options) { o.owner, o.ownerSet = name, true } }

// Ephemeral ends the hold when its connection closes, which it does if the process dies. The hold has a connection of
// the client's pool to itself until its release: let the pool have more connections than there are such holds. A wait
// has none. It needs a client of one server, of Sentinel or of Redis Cluster.
func Ephemeral() Option { return func(o *options) { o.ephemeral = true } }

// Reentrant enters the lock again if this client holds it with the same token: the new [Hold] shares the hold of the
// first one, which ends with the last release. Choose a token for one chain of calls (see [NewToken]), and never use it
// for another one. Entering again sends no request.
func Reentrant(token string) Option {
	return func(o *options) { o.token, o.reentrant = token, true }
}

// Durable acquires only if at least this number of replicas report the grant within the time limit (WAIT). With 0
// replicas, the append only file of the server must have the grant (WAITAOF, from Redis 7.2 and on Valkey). Otherwise
// the lock is released, and the error is [ErrNotDurable].
func Durable(replicas int, limit time.Duration) Option {
	return func(o *options) { o.durable = &durability{replicas, limit} }
}

// Traced calls the functions of the trace, for logs and metrics.
func Traced(trace *Trace) Option { return func(o *options) { o.trace = trace } }

// A Trace has functions that are called at the steps of an acquisition. Any of them may be nil. They must not block.
type Trace struct {
	// Acquired is called when a lock was acquired, with the time since the call of Acquire.
	Acquired func(ctx context.Context, h *Hold, waited time.Duration)
	// NotAcquired is called when an acquisition has failed.
	NotAcquired func(ctx context.Context, key string, waited time.Duration, err error)
	// Released is called when a hold was released or given up by Forget, with the time for which it was held.
	Released func(h *Hold, held time.Duration)
	// Lost is called when a hold was lost, also if only its release has found the loss.
	Lost func(h *Hold, err error)
}

type durability struct {
	replicas int
	limit    time.Duration
}

type options struct {
	ttl, maxWait, maxHold, atLeast, delay time.Duration
	shared, permitsSet                    bool
	permits                               int
	noRenew, labelSet, ownerSet           bool
	ephemeral, reentrant                  bool
	label, owner, token                   string
	durable                               *durability
	trace                                 *Trace
	// wire has the words of ACQUIRE after the ttl, as the values that go-redis takes: made once, by words.
	wire []any
	// ttlArg is the ttl in ms, labelArg the label, or nil if it is empty.
	ttlArg, labelArg any
}

const (
	defaultTTL = 30 * time.Second
	maxText    = 255
	maxPermits = 1<<31 - 1
	// Longer durations do not fit the ms of a server.
	maxDuration = 100 * 365 * 24 * time.Hour
)

// apply returns the options changed by opts, and checked.
func (o options) apply(opts []Option) (*options, error) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return &o, o.check()
}

// check returns an error that says which option is out of range.
func (o *options) check() error {
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"TTL", o.ttl, time.Millisecond},
		{"MaxWait", o.maxWait, 0},
		{"MaxHold", o.maxHold, 0},
		{"AtLeast", o.atLeast, 0},
		{"Delay", o.delay, 0},
	} {
		if d.value < d.least || d.value > maxDuration {
			return misuse("%s is %v; it must be %v to %v", d.name, d.value, d.least, maxDuration)
		}
	}
	if o.permitsSet && (o.permits < 1 || o.permits > maxPermits) && !o.shared {
		return misuse("Permits(%d): the number must be 1 to %d", o.permits, maxPermits)
	}
	if len(o.label) > maxText {
		return misuse("the label has %d bytes; at most %d are allowed", len(o.label), maxText)
	}
	if o.ownerSet && (o.owner == "" || len(o.owner) > maxText) {
		return misuse("the owner has %d bytes; it must have 1 to %d", len(o.owner), maxText)
	}
	if o.reentrant && (o.token == "" || len(o.token) > maxText) {
		return misuse("the token has %d bytes; it must have 1 to %d", len(o.token), maxText)
	}
	if d := o.durable; d != nil && (d.replicas < 0 || d.limit <= 0 || d.limit > maxDuration) {
		return misuse("Durable(%d, %v): the replicas must be 0 or more, and the limit above 0", d.replicas, d.limit)
	}
	o.ttlArg, o.labelArg = milliseconds(o.ttl), nil
	if o.label != "" {
		o.labelArg = o.label
	}
	o.words()
	return nil
}

// words makes the words of ACQUIRE after the ttl. It leaves EPHEMERAL to bind.
func (o *options) words() {
	o.wire = nil
	switch {
	case o.shared:
		o.wire = append(o.wire, "SHARED")
	case o.permits > 0:
		o.wire = append(o.wire, "PERMITS", o.permits)
	}
	if o.delay > 0 {
		o.wire = append(o.wire, "DELAY", milliseconds(o.delay))
	}
}

// misuse returns an error about a call that can never succeed.
func misuse(format string, args ...any) error {
	return fmt.Errorf("dlock: "+format, args...)
}
