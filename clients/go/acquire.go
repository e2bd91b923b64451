package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// answerLimit is how long a failed acquisition waits for the answer to its release, and for the name of the holder.
const answerLimit = 250 * time.Millisecond

func (c *Client) acquire(ctx context.Context, key string, waits bool, opts []Option) (*Hold, error) {
	if c.err != nil {
		return nil, c.err
	}
	o := c.defaults
	if len(opts) > 0 {
		var err error
		if o, err = c.defaults.apply(opts); err != nil {
			return nil, err
		}
	}
	if waits && o.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.maxWait)
		defer cancel()
	}
	if o.reentrant {
		return c.enter(ctx, key, waits, o)
	}
	h, err := c.begin(ctx, key, NewToken(), waits, o)
	if err != nil {
		return nil, err
	}
	return &h.first, nil
}

// begin acquires the lock with this token.
func (c *Client) begin(ctx context.Context, key, token string, waits bool, o *options) (*hold, error) {
	h := c.newHold(ctx, key, token, o)
	if h.labelArg = o.labelArg; !o.labelSet {
		h.labelArg = callerLabel()
	}
	if end, limited := ctx.Deadline(); limited {
		h.deadline = h.started.add(time.Until(end))
	}
	err := ctx.Err()
	if err != nil {
		err = &NotAcquiredError{Key: key, Err: endOf(ctx)}
	}
	if err == nil && o.atLeast > 0 {
		err = c.checkDelay(ctx, key, o.atLeast, waits)
	}
	if err == nil {
		err = c.obtain(ctx, h, waits)
	}
	if err == nil && o.ephemeral {
		err = c.bind(ctx, h)
	}
	if err == nil && o.durable != nil {
		err = c.replicate(ctx, h)
	}
	if trace := o.trace; trace != nil {
		waited := now().sub(h.started)
		if err == nil && trace.Acquired != nil {
			trace.Acquired(ctx, &h.first, waited)
		}
		if err == nil {
			h.observe()
		}
		if err != nil && trace.NotAcquired != nil {
			trace.NotAcquired(ctx, key, waited, err)
		}
	}
	return h, err
}

func (c *Client) newHold(ctx context.Context, key, token string, o *options) *hold {
	h := &hold{
		c: c, key: key, token: token, keyArg: key, tokenArg: token, o: o, started: now(),
		lease: o.ttl, shortest: maxDuration, longest: o.ttl,
	}
	h.first.h, h.first.parent = h, ctx
	return h
}

// obtain gets a grant from the server.
func (c *Client) obtain(ctx context.Context, h *hold, waits bool) error {
	c.mu.Lock()
	if waits && h.started < c.contended[h.key] {
		// The lock is probably still taken: the first request asks for a position.
		c.enqueue(h)
		c.askNow(ctx, h)
		return c.await(ctx, h)
	}
	c.unlock()
	// The first request is sent after this moment.
	sent := h.started
	for late := 0; ; sent = now() {
		cmd := newOnce(ctx, h.acquireArgs(0))
		c.process(ctx, nil, cmd)
		if waits && kindOf(cmd.Err()) == busy {
			sent, _ = c.inTurn(ctx, func() error { return c.process(ctx, nil, cmd) })
		}
		n, err := cmd.Result()
		err = checkFence(n, err)
		what, at := kindOf(err), now()

		c.mu.Lock()
		switch what {
		case answered:
			if until := sent.add(validity(h.lease)); at < until {
				h.begin(n, at, until)
				h.plan()
				c.unlock()
				return nil
			}
			if late++; late == maxLate {
				h.giveUp()
				c.unlock()
				return errLate(h.key)
			}
			c.unlock()
			continue
		case null:
			c.noteTaken(h.key)
		case refused:
			if h.adapt(err) {
				c.unlock()
				continue
			}
		case unanswered:
			h.noteUnanswered()
			if waits {
				break
			}
			settled := h.giveUp()
			c.unlock()
			answeredSoon(settled)
			return c.unobtained(ctx, h.key, err)
		}
		outage := what == unanswered || what == unsent && c.findsMaster
		if waits && (what == null || what == notNow || outage || firstWord(err) == "GRACE") {
			return c.waitAfter(ctx, h, sent, err)
		}
		h.leave(over)
		c.unlock()
		return c.unobtained(ctx, h.key, err)
	}
}

// waitAfter waits for the lock after a first request that was sent at this time, and had this error. It unlocks the
// client.
func (c *Client) waitAfter(ctx context.Context, h *hold, sent instant, err error) error {
	c.enqueue(h)
	switch kindOf(err) {
	case null:
		c.askNow(ctx, h)
		return c.await(ctx, h)
	case notNow:
		h.wait.lastErr = err
		c.due.set(h, together(c.outagePause()))
	case unanswered, unsent:
		h.wait.lastErr, h.wait.downSince = err, sent
		c.due.set(h, together(c.outagePause()))
	default:
		if !h.pauseFor(err) {
			h.giveUp()
			c.unlock()
			return refusal(h.key, err)
		}
	}
	c.unlock()
	return c.await(ctx, h)
}

// askNow sends the first request for a position from the goroutine of the caller, if messages arrive already, and
// unlocks the client.
func (c *Client) askNow(ctx context.Context, h *hold) {
	if !c.listener.subscribed {
		c.unlock()
		return
	}
	c.due.remove(h)
	e := h.ask()
	c.unlock()
	c.sendTo(ctx, c.rdb, []*errand{e})
}

// unobtained returns the error of an acquisition that did not wait.
func (c *Client) unobtained(ctx context.Context, key string, err error) error {
	switch kindOf(err) {
	case null:
		failed := &NotAcquiredError{Key: key}
		failed.Holder, failed.Closed = c.obstacle(ctx, key)
		return failed
	case refused:
		if firstWord(err) == "WRONGTYPE" {
			return c.notALock(ctx, key, err)
		}
		return refusal(key, err)
	case busy:
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", explain(key, err), endOf(ctx))
		}
	}
	if endedBy(ctx, err) {
		return &NotAcquiredError{Key: key, Err: endOf(ctx)}
	}
	return explain(key, err)
}

// endedBy returns whether a request failed because its context was done: that is no failure of the server.
func endedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && kindOf(err) == unanswered && errors.Is(err, ctx.Err())
}

// await waits for the end of a wait.
func (c *Client) await(ctx context.Context, h *hold) error {
	select {
	case <-h.wait.outcome:
	case <-ctx.Done():
	}
	c.mu.Lock()
	w := h.wait
	if h.state == holding && ctx.Err() == nil {
		c.dequeue(h)
		if h.asks == 0 && h.claimAt == 0 {
			h.wait = nil
		}
		c.unlock()
		return nil
	}
	err := w.err
	lost := h.lost
	settled := h.giveUp()
	c.unlock()
	switch {
	case lost != nil && ctx.Err() == nil:
		return lost
	case err != nil && kindOf(err) == refused && firstWord(err) == "WRONGTYPE":
		return c.notALock(ctx, h.key, err)
	case err != nil:
		return err
	case w.lastErr != nil && !endedBy(ctx, w.lastErr):
		// It is unknown whether another client holds the lock.
		return fmt.Errorf("%w (%w)", explain(h.key, w.lastErr), endOf(ctx))
	}
	failed := &NotAcquiredError{Key: h.key, Err: endOf(ctx)}
	if answeredSoon(settled) && ctx.Err() == context.DeadlineExceeded {
		failed.Holder, failed.Closed = c.obstacle(context.WithoutCancel(ctx), h.key)
	}
	return failed
}

// answeredSoon waits for the answer to the release of a failed acquisition, but not for long: nothing is left on the
// server then.
func answeredSoon(settled <-chan struct{}) bool { return answeredIn(settled, answerLimit) }

func answeredIn(settled <-chan struct{}, d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-settled:
		return true
	case <-limit.C:
		return false
	}
}

// obstacle returns a holder of the lock, or nil, and the time for which the lock stays closed.
func (c *Client) obstacle(ctx context.Context, key string) (*Holder, time.Duration) {
	seen, err := c.inspect(ctx, key, 1)
	if err != nil {
		return nil, 0
	}
	if len(seen.Holders) == 0 {
		return nil, seen.Delay
	}
	return &seen.Holders[0], seen.Delay
}

// notALock returns the error for a key that holds something else.
func (c *Client) notALock(ctx context.Context, key string, err error) error {
	kind, _ := c.once(ctx, "TYPE", key).Text()
	if kind == "string" {
		kind += "; if it is the lock of a client that locks by SET NX, set dlock.honour-strings"
	}
	return wrap(ErrNotALock, key, fmt.Errorf("a %s: %w", kind, err))
}

// bind binds an ephemeral hold to a connection of its own. The wait before has none: waits could take all connections
// of the pool, and no holder could release then.
func (c *Client) bind(ctx context.Context, h *hold) error {
	c.mu.Lock()
	cmd := newOnce(ctx, append(h.acquireArgs(1), "EPHEMERAL"))
	c.unlock()
	conn, sent, err := h.sendOver(ctx, cmd)
	if conn == nil {
		h.first.abandon(ctx)
		return err
	}
	c.mu.Lock()
	what := kindOf(err)
	switch {
	case h.ended() != nil:
	case what == answered && cmd.Val() == h.fence:
		h.conn = &ownConn{conn: conn}
		h.confirm(sent, h.o.ttl)
		c.unlock()
		return h.first.Err()
	case what == answered, what == null:
		h.loseAndRelease()
	case what == unanswered:
		h.orphan = true
	}
	lost := h.ended()
	c.unlock()
	conn.Close()
	if lost != nil {
		return lost
	}
	h.first.abandon(ctx)
	return c.unobtained(ctx, h.key, err)
}

// sendOver sends a request of a hold over a connection to its server, which the caller closes. While the pool is busy or
// the cluster client's map of the slots is old, it tries again until the hold has ended or ctx is done; after the refusal
// of a replica, as process does. It returns the time before the last try. Without a server, it returns no connection.
func (h *hold) sendOver(ctx context.Context, cmd once) (conn *redis.Conn, sent instant, err error) {
	held, stop := h.first.within(ctx)
	defer stop()
	cluster, _ := h.c.rdb.(*redis.ClusterClient)
	for left := h.c.rdb.PoolStats().IdleConns; ; {
		server, err := h.c.serverOf(ctx, h.key)
		if err != nil {
			return nil, now(), err
		}
		conn, sent = server.Conn(), now()
		if err = conn.Process(ctx, cmd); kindOf(err) == busy {
			sent, err = h.c.inTurn(held, func() error { return conn.Process(ctx, cmd) })
		}
		if h.c.atReplica(err) && left > 0 {
			left--
			conn.Close()
			continue
		}
		if cluster == nil || !isRedirect(err) {
			return conn, sent, err
		}
		cluster.ReloadState(ctx)
		select {
		case <-time.After(10 * busyPause):
		case <-held.Done():
			return conn, sent, err
		}
		conn.Close()
	}
}

// checkDelay returns an error unless the server has accepted the DELAY of the release.
func (c *Client) checkDelay(ctx context.Context, key string, atLeast time.Duration, waits bool) error {
	longest := milliseconds(atLeast)
	c.mu.Lock()
	known := c.delay
	c.mu.Unlock()
	if longest <= known {
		return nil
	}
	// A fresh token holds nothing, so this has no effect, however late it arrives.
	token := NewToken()
	probe := func(delay int64) error {
		send := func() error {
			_, err := c.integer(ctx, "DLOCK.RELEASE", key, token, "ALL", "DELAY", delay)
			return err
		}
		err := send()
		if waits && kindOf(err) == busy {
			_, err = c.inTurn(ctx, send)
		}
		return err
	}
	begun := now()
	err := probe(longest)
	// As in a wait: the first request must find a server, or the master has failed.
	waits = waits && (kindOf(err) != unsent || c.findsMaster)
	for waits && ctx.Err() == nil {
		what := kindOf(err)
		if what == notNow {
			begun = now()
		} else if what != unanswered && what != unsent || now().sub(begun) >= keep {
			break
		}
		c.mu.Lock()
		pause := c.outagePause()
		c.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		err = probe(longest)
	}
	switch what := kindOf(err); {
	case what == answered:
		if !c.findsMaster {
			c.mu.Lock()
			c.delay = max(c.delay, longest)
			c.mu.Unlock()
		}
		return nil
	case what == refused && firstWord(err) == "ERR":
		if kindOf(probe(0)) == answered {
			return misuse("%q: AtLeast is %v, but the server allows no more than its dlock.max-ttl: %w", key, atLeast, err)
		}
		return wrap(ErrNoModule, key, fmt.Errorf("AtLeast needs dlock 0.1.0 on the server: %w", err))
	}
	return c.unobtained(ctx, key, err)
}
