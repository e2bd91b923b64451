package dlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Hold is a lock that was acquired. Its methods may be called by several goroutines at once.
type Hold struct {
	h *hold
	// parent is the context that was given to Acquire.
	parent context.Context

	// The client's lock guards the fields below.

	released bool
	ctx      context.Context
	cancel   context.CancelCauseFunc
}

// Key returns the name of the lock.
func (h *Hold) Key() string { return h.h.key }

// Fence returns the number of the hold: greater than that of every earlier hold of the lock, and below 2^53. Store it
// with your data, and let the store reject lower ones.
func (h *Hold) Fence() int64 {
	h.h.c.mu.Lock()
	defer h.h.c.mu.Unlock()
	return h.h.fence
}

// Token returns the secret that owns the hold: for [Client.Adopt] in another process, after [Hold.Forget] or the death
// of this one. Keep it out of logs.
func (h *Hold) Token() string { return h.h.token }

// Valid returns how long the hold is certain without another renewal, and 0 once it is lost or released. It reads the
// clock: a process that was stopped past its lease sees the loss at once.
func (h *Hold) Valid() time.Duration {
	c := h.h.c
	c.mu.Lock()
	defer c.unlock()
	if h.released || h.h.isLost() || h.h.state != holding {
		return 0
	}
	return h.h.validUntil.sub(now())
}

// Err returns nil while the hold is certain, a [LostError] once it is lost, and [ErrReleased] after its release. It
// reads the clock.
func (h *Hold) Err() error {
	c := h.h.c
	c.mu.Lock()
	defer c.unlock()
	return h.err()
}

func (h *Hold) err() error {
	err := h.h.ended()
	if err == nil && h.released {
		return ErrReleased
	}
	return err
}

// Context returns a context that is cancelled when the hold is lost or released; [context.Cause] returns the reason: a
// [LostError] or [ErrReleased]. If another client or an operator ends the hold, the context is normally cancelled
// within 0.2 s: the package documentation has the exceptions. A renewed hold counts as lost a tenth of its lease before
// the end, so that the work has time to stop. The context has the values of the one that was given to Acquire, but not
// its deadline. Its Err reads the clock.
func (h *Hold) Context() context.Context {
	c := h.h.c
	c.mu.Lock()
	defer c.unlock()
	return h.context()
}

func (h *Hold) context() context.Context {
	if h.ctx == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(h.parent))
		h.ctx, h.cancel = &holdContext{ctx, h.h}, cancel
		if err := h.err(); err != nil {
			cancel(err)
		}
	}
	return h.ctx
}

// end cancels the context of the Hold when the client is unlocked.
func (h *Hold) end(cause error) {
	if cancel := h.cancel; cancel != nil {
		h.h.c.after = append(h.h.c.after, func() { cancel(cause) })
	}
}

// Extend sets the lease to ttl from now, longer or shorter; later renewals keep this length. It returns an [ErrLost] if
// the hold is lost. After an error without an answer, the validity is at most the earlier one, and at most the
// requested one.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < time.Millisecond || ttl > maxDuration {
		return misuse("Extend(%v): the lease must be 1ms to %v", ttl, maxDuration)
	}
	return h.h.extend(ctx, h, ttl)
}

// Held asks the server whether it still has the hold.
func (h *Hold) Held(ctx context.Context) (bool, error) {
	n, err := h.h.c.integer(ctx, "DLOCK.HOLDS", h.h.keyArg, h.h.tokenArg)
	if isGone(n, err) {
		c := h.h.c
		c.mu.Lock()
		h.h.loseElsewhere()
		c.unlock()
		withReason(h.Err()) // so that the next call of Err returns the reason of the server
		return false, nil
	}
	if err != nil {
		return false, explain(h.h.key, err)
	}
	return true, nil
}

// Release ends the hold. It is sent even if ctx is done, and waits for the answer as long as the options of the go-redis
// client say. A pool timeout means that nothing was sent: Release tries again until the lease has ended, or for 5s once
// ctx is done. If there is no answer, the client repeats the release in the background until it is confirmed or the
// lease has ended, and Release returns an [ErrNoAnswer]: see [Client.Close].
//
// Release returns an [ErrLost] if the hold was lost before. A second call does nothing.
func (h *Hold) Release(ctx context.Context) error { return h.h.release(ctx, h) }

// Forget gives the hold up without a release, and returns its token: another process can take the hold over by
// [Client.Adopt] until its lease ends. Forget waits until no renewal is under way, at most until ctx is done. The hold
// counts as released then. An [Ephemeral] hold cannot be given up, nor one that was entered again by [Reentrant].
func (h *Hold) Forget(ctx context.Context) (token string, err error) {
	return h.h.token, withReason(h.h.giveAway(ctx, h))
}

const (
	// claimDelay is the pause between the message of a grant and the request that sets the full lease. A hold that is
	// released within it costs no such request, and the claims of one moment form a pipeline.
	claimDelay = 5 * time.Millisecond
	// grid is the step to which renewals are rounded, so that they form pipelines.
	grid = 100 * time.Millisecond
	// releaseLimit is the least time for which Release waits if its request could not be sent at once.
	releaseLimit = 5 * time.Second
	// releasePause is the first pause before an owed release is repeated, and longestPause the longest one.
	releasePause = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

type state uint8

const (
	// acquiring: the first request is under way.
	acquiring state = iota
	waiting
	holding
	// owed: the release has no answer yet, or must be repeated.
	owed
	over
)

// hold is the hold of one token, from its first request to the end of its last one.
type hold struct {
	c        *Client
	key      string
	token    string
	keyArg   any
	tokenArg any
	labelArg any
	o        *options
	started  instant
	// deadline of the wait. 0: none.
	deadline instant
	// conn is the connection of an ephemeral hold. nil: it has none of its own.
	conn *ownConn
	// first is the Hold that Acquire returns. others are those of later entries, see Reentrant.
	first  Hold
	others map[*Hold]struct{}

	// The client's lock guards the fields below.

	state state
	// Place in the schedule, from 1; 0: not scheduled.
	place int
	due   instant
	wait  *wait
	// asks is the number of ACQUIREs under way.
	asks int
	// orphan: an ACQUIRE has no answer, and may be executed later.
	orphan bool
	// nameless: the requests name no owner.
	nameless bool
	// adopted: the mode is that of another process. The options may name another one, until the server has told it.
	adopted bool

	fence      int64
	receivedAt instant
	validUntil instant
	// lease is the lease of the renewals.
	lease time.Duration
	// shortest is the shortest lease, and longest the longest one, that a request of this hold may still set.
	shortest, longest time.Duration
	// extendClaims: the next claim is an EXTEND.
	extendClaims bool
	// claimAt is when the claim of a grant by message is due; 0: the server has the full lease.
	claimAt instant
	// renewAt is when the next renewal is due, endsAt the end by MaxHold.
	renewAt, endsAt instant
	// watchAt is the time of the next reading of the lock by the watcher, readAt that of the last one. watchAt 0: the next
	// report sets it.
	watchAt, readAt instant
	watcher         *watcher
	// renewing is the number of EXTENDs under way. quiet, if there is one, is closed once it and asks are 0.
	renewing int
	quiet    chan struct{}
	// woken receives a value at each message during an upgrade. nil: no upgrade is under way.
	woken   chan struct{}
	failure error
	entries int
	// observed: the trace knows the hold, but not its end.
	observed bool
	lost     *LostError

	// Of an owed release.

	// releasing: the RELEASE of the caller is under way. Another one could arrive first, and the caller's would find no
	// hold.
	releasing bool
	owedUntil instant
	pause     time.Duration
	// lastRelease is the last RELEASE of the background. Failures of earlier ones change nothing: they are of the same
	// outage.
	lastRelease *errand
	settled     chan struct{}
	// awaited: a call of Release waits for the answer.
	awaited bool
	// confirmed: the server has answered a release of the background.
	confirmed bool
	// unused: the caller never had the hold, or the server knows no DELAY, so AtLeast does not count.
	unused bool
}

func (h *hold) acquireArgs(more int) []any {
	args := make([]any, 0, 4+len(h.o.wire)+4+more)
	args = append(args, "DLOCK.ACQUIRE", h.keyArg, h.tokenArg, h.o.ttlArg)
	return h.named(append(args, h.o.wire...))
}

// named adds the label and the owner, which the server shows.
func (h *hold) named(args []any) []any {
	if h.labelArg != nil {
		args = append(args, "LABEL", h.labelArg)
	}
	if h.o.ownerSet && !h.nameless {
		args = append(args, "OWNER", h.o.owner)
	}
	return args
}

// begin starts the hold at this time; it is valid until then. The client is locked, here and in all that follows.
func (h *hold) begin(fence int64, at, until instant) {
	h.state = holding
	h.fence, h.validUntil, h.receivedAt = fence, until, at
	h.endsAt = never
	if h.o.maxHold > 0 {
		h.endsAt = h.receivedAt.add(h.o.maxHold)
	}
	h.renewAt = h.nextRenewal(h.receivedAt)
	h.watchAt = at.add(watchAfter)
	h.entries = 1
	if h.o.ownerSet {
		h.c.owned[owned{h.key, h.o.owner}]++
	}
	if h.wait != nil {
		h.signal()
	}
}

// nextRenewal returns the time of the renewal after one at this time: a third of the lease later, so that two thirds
// are left for retries.
func (h *hold) nextRenewal(at instant) instant {
	due := at.add(h.lease / 3)
	if h.lease >= 10*grid {
		due -= due % instant(grid)
	}
	return due
}

// confirm counts the lease from a request that the server has answered.
func (h *hold) confirm(sent instant, lease time.Duration) {
	if h.isLost() {
		return
	}
	// An unanswered request may still set a shorter lease.
	h.validUntil = sent.add(validity(min(lease, h.shortest)))
	h.claimAt, h.failure = 0, nil
	h.renewAt = h.nextRenewal(sent)
	h.plan()
}

// lostAt returns when the hold counts as lost.
func (h *hold) lostAt() instant {
	at := h.validUntil
	if !h.o.noRenew {
		at = at.add(-min(h.lease, h.validUntil.sub(h.receivedAt)) / 10)
	}
	return min(at, h.endsAt)
}

// plan schedules the next request or the end of the hold.
func (h *hold) plan() {
	due := h.lostAt()
	if h.claimAt != 0 {
		due = min(due, h.claimAt)
	}
	if !h.o.noRenew {
		due = min(due, h.renewAt)
	}
	if h.watchAt != 0 {
		due = min(due, h.watchAt)
	}
	h.c.due.set(h, due)
}

// wake returns the request that is due, or nil.
func (h *hold) wake(at instant) *errand {
	switch h.state {
	case waiting:
		return h.ask()
	case holding:
		if h.isLostAt(at) {
			return nil
		}
		if h.watchAt != 0 && at >= h.watchAt {
			h.watchAt, h.readAt = 0, at
			h.c.toWatch = append(h.c.toWatch, h)
		}
		if h.claimAt != 0 && at >= h.claimAt {
			h.claimAt = at.add(h.lease / 6)
			if h.extendClaims {
				return h.renewal()
			}
			// The same request as the next call: its answer shows the fence, which EXTEND does not.
			h.plan()
			return h.ask()
		}
		if !h.o.noRenew && at >= h.renewAt {
			// Without an answer by then, another one is sent over another connection.
			h.renewAt = at.add(h.lease / 6)
			return h.renewal()
		}
		h.plan()
	case owed:
		return h.releaseAgain(at)
	}
	return nil
}

func (h *hold) renewal() *errand {
	lease := min(h.lease, h.shortest)
	h.renewing++
	h.plan()
	return &errand{
		h: h, done: (*hold).renewed, lease: lease, conn: h.conn,
		cmd: newOnce(context.Background(), []any{"DLOCK.EXTEND", h.keyArg, h.tokenArg, milliseconds(lease)}),
	}
}

// noteQuiet wakes Extend once no request that sets the lease is under way.
func (h *hold) noteQuiet() {
	if h.quiet != nil && (h.state != holding || h.renewing == 0 && h.asks == 0 && h.claimAt == 0) {
		close(h.quiet)
		h.quiet = nil
	}
}

// renewed handles the answer to an EXTEND.
func (h *hold) renewed(e *errand, n int64, err error) {
	h.renewing--
	defer h.noteQuiet()
	if h.state != holding {
		return
	}
	switch what := kindOf(err); {
	case what == answered && n == 1:
		if e.lease <= h.lease {
			h.confirm(e.sent, e.lease)
		}
	case isGone(n, err):
		h.loseElsewhere()
	default:
		if what == unanswered {
			h.shortest = min(h.shortest, e.lease)
		}
		h.failure = err
		retry := h.retryAt(what)
		h.renewAt = min(h.renewAt, retry)
		if h.claimAt != 0 {
			h.claimAt = min(h.claimAt, retry)
		}
		h.plan()
	}
}

// retryAt returns when a renewal or claim that failed is repeated.
func (h *hold) retryAt(what kind) instant {
	if what == busy {
		return whenRoom()
	}
	return together(min(h.lease/60+rand.N(h.lease/60+1), time.Second))
}

func (h *hold) extend(ctx context.Context, handle *Hold, ttl time.Duration) (err error) {
	c := h.c
	defer func() { err = withReason(err) }()
	// Two requests at once could arrive in either order, and the later one sets the lease.
	if err := h.lockQuiet(ctx, handle); err != nil {
		return err
	}
	sent := now()
	// The server may set a shorter lease even if its answer never arrives.
	h.validUntil = min(h.validUntil, sent.add(validity(ttl)))
	h.longest = max(h.longest, ttl)
	before := h.lease
	h.lease = min(before, ttl)
	h.renewing++
	h.renewAt, h.claimAt = never, 0
	h.plan()
	conn := h.conn
	c.unlock()

	cmd := newOnce(ctx, []any{"DLOCK.EXTEND", h.keyArg, h.tokenArg, milliseconds(ttl)})
	c.process(ctx, conn, cmd)
	n, err := cmd.Result()

	c.mu.Lock()
	defer c.unlock()
	h.renewing--
	defer h.noteQuiet()
	if err := handle.err(); err != nil {
		return err
	}
	switch what := kindOf(err); {
	case what == answered && n == 1:
		h.lease = ttl
		h.confirm(sent, ttl)
		if h.shortest < ttl {
			return fmt.Errorf("%w: %q: only %v are certain, as an earlier, shorter request for a lease has no answer",
				ErrNoAnswer, h.key, h.shortest)
		}
		return nil
	case isGone(n, err):
		h.loseElsewhere()
		return h.lost
	default:
		if what == unanswered {
			h.shortest = min(h.shortest, ttl)
		} else {
			h.lease = before
		}
		h.renewAt = now()
		h.plan()
		return explain(h.key, err)
	}
}

// lockQuiet waits until no request that sets the lease or the mode is under way, and locks the client. After an error,
// the client is not locked.
func (h *hold) lockQuiet(ctx context.Context, handle *Hold) error {
	c := h.c
	c.mu.Lock()
	for handle.err() == nil && (h.renewing+h.asks > 0 || h.claimAt != 0) {
		if h.quiet == nil {
			h.quiet = make(chan struct{})
		}
		quiet := h.quiet
		c.unlock()
		select {
		case <-quiet:
		case <-ctx.Done():
			return endOf(ctx)
		}
		c.mu.Lock()
	}
	err := handle.err()
	if err != nil {
		c.unlock()
	}
	return err
}

// ended returns the error of a hold that has ended, or nil.
func (h *hold) ended() error {
	switch {
	case h.isLost():
		return h.lost
	case h.state != holding:
		return ErrReleased
	}
	return nil
}

// isLost returns whether the hold is lost. It reads the clock, and marks the hold as lost if its time has passed.
func (h *hold) isLost() bool {
	if h.state == holding {
		return h.isLostAt(now())
	}
	return h.lost != nil
}

func (h *hold) isLostAt(at instant) bool {
	if h.state == holding {
		switch {
		case at >= h.endsAt:
			h.lose(h.lostError(fmt.Sprintf("it was held for longer than the MaxHold of %v", h.o.maxHold), nil))
		case at >= h.lostAt():
			h.lose(h.lostError("its lease ended without a renewal", h.failure))
		}
	}
	return h.lost != nil
}

// lose ends a hold without a release. At the server, it ends with the lease at the latest.
func (h *hold) lose(why *LostError) {
	h.lost = why
	h.leave(over)
	h.noteQuiet()
	h.end(h.lost)
	h.report(h.lost)
}

// loseAndRelease loses the hold, and releases its token: at the server, the token may have another hold, or a position.
func (h *hold) loseAndRelease() {
	h.loseElsewhere()
	h.oweRelease()
}

// oweRelease releases the token of a hold that has ended, in the background.
func (h *hold) oweRelease() {
	h.unused = true
	h.state = owed
	h.owedUntil = now().add(h.owedFor())
	h.c.owes(h)
	h.c.due.set(h, now())
}

// leave ends the state holding or waiting.
func (h *hold) leave(next state) {
	if h.state == holding && h.o.ownerSet {
		name := owned{h.key, h.o.owner}
		if h.c.owned[name]--; h.c.owned[name] == 0 {
			delete(h.c.owned, name)
		}
	}
	h.c.due.remove(h)
	if h.watcher != nil {
		h.watcher.remove(h)
	}
	h.state = next
	if next == over && h.conn != nil {
		go h.conn.close()
	}
}

// end cancels the contexts of the hold.
func (h *hold) end(cause error) {
	h.first.end(cause)
	for handle := range h.others {
		handle.end(cause)
	}
	if h.o.reentrant {
		h.c.left(h)
	}
}

// holdContext is the context of a hold. Its Err and Done read the clock first, so work that was stopped past the lease
// sees the loss before anything else.
type holdContext struct {
	context.Context
	h *hold
}

func (c *holdContext) Err() error {
	c.check()
	return c.Context.Err()
}

func (c *holdContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *holdContext) check() {
	c.h.c.mu.Lock()
	c.h.isLost()
	c.h.c.unlock()
}

// abandon releases a hold that its caller never had, so that AtLeast does not keep the lock closed.
func (h *Hold) abandon(ctx context.Context) {
	h.h.c.mu.Lock()
	// Another caller has had a reentrant hold that was entered again.
	if h.h.entries == 1 {
		h.h.unused = true
	}
	h.h.c.unlock()
	h.Release(ctx) // continues in the background if there is no answer
}

// release ends an entry of the hold, and with the last one the hold.
func (h *hold) release(ctx context.Context, handle *Hold) (err error) {
	c := h.c
	defer func() { err = withReason(err) }()
	at := now()
	c.mu.Lock()
	if handle.released {
		c.unlock()
		return nil
	}
	lost := h.isLostAt(at)
	handle.released = true
	h.entries--
	if h.entries > 0 {
		handle.end(ErrReleased)
		delete(h.others, handle)
	}
	if h.entries > 0 || h.state == owed {
		c.unlock()
		if lost {
			return h.lost
		}
		return nil
	}
	h.leave(owed)
	h.end(ErrReleased)
	h.owedUntil = at.add(h.owedFor())
	last := h.asks == 0
	n, broken, err := h.sendRelease(ctx, at)
	defer c.unlock()
	what := kindOf(err)
	sent := what == answered || isGone(n, err)
	if sent {
		h.confirmRelease(last)
	} else {
		h.withoutDelay(err)
		h.repeatRelease(longestPause)
	}
	switch {
	case lost:
		return h.lost
	case sent && n == 0 && kindOf(broken) != unanswered:
		gone := h.endedElsewhere()
		h.report(gone)
		return gone
	}
	h.report(nil)
	switch {
	case sent && n == 0:
		return explain(h.key, broken) // it may have ended the hold
	case sent:
		return nil
	case what == unsent, what == busy:
		return wrap(ErrNoAnswer, h.key, err)
	}
	return explain(h.key, err)
}

// giveAway ends the hold without a release.
func (h *hold) giveAway(ctx context.Context, handle *Hold) error {
	// A renewal under way could set its lease after that of the new owner.
	if err := h.lockQuiet(ctx, handle); err != nil {
		return err
	}
	c := h.c
	defer c.unlock()
	switch {
	case h.conn != nil:
		return misuse("%q: an ephemeral hold ends with its connection: no other process can take it over", h.key)
	case h.entries > 1:
		return misuse("%q: it was entered again, and another caller may need it", h.key)
	}
	handle.released = true
	h.entries = 0
	h.leave(over)
	h.end(ErrReleased)
	h.report(nil)
	return nil
}

// observe lets the trace learn of the end of a hold, once it knows the hold.
func (h *hold) observe() {
	h.c.mu.Lock()
	defer h.c.unlock()
	h.observed = true
	if h.lost != nil {
		h.report(h.lost)
	}
}

// report tells the trace, once, how the hold has ended. nil: it was released.
func (h *hold) report(lost *LostError) {
	trace := h.o.trace
	if trace == nil || !h.observed {
		return
	}
	h.observed = false
	switch {
	case lost == nil && trace.Released != nil:
		h.c.after = append(h.c.after, func() { trace.Released(&h.first, now().sub(h.receivedAt)) })
	case lost != nil && trace.Lost != nil:
		h.c.after = append(h.c.after, func() { trace.Lost(&h.first, lost) })
	}
}

// sendRelease sends the RELEASE of the caller, and returns its answer and the error of the connection of the hold. A
// request that could not be sent is left to the background, within the limits of Release. The client is locked before
// and afterwards.
func (h *hold) sendRelease(ctx context.Context, at instant) (n int64, broken, err error) {
	c, conn := h.c, h.conn
	sending := context.WithoutCancel(ctx)
	cmd := newOnce(sending, h.releaseArgs(at))
	h.releasing = true
	c.owes(h)
	c.unlock()

	c.process(sending, conn, cmd)
	broken = cmd.Err()
	what := kindOf(broken)
	elsewhere := isRedirect(broken) || redis.IsReadOnlyError(broken)
	if conn != nil && (what == unanswered || what == unsent || elsewhere) {
		// The connection of the hold is broken, was closed at its loss, or leads to a server that is not the master of
		// the lock any more.
		c.process(sending, nil, cmd)
	}
	n, err = cmd.Result()

	c.mu.Lock()
	h.releasing = false
	what = kindOf(err)
	if what != unsent && what != busy {
		return n, broken, err
	}
	// The background sends it, with others.
	settled := make(chan struct{})
	h.settled, h.awaited = settled, true
	c.due.set(h, now())
	c.unlock()
	if what == busy {
		// Nothing is owed any more once the lease has ended.
		select {
		case <-settled:
		case <-ctx.Done():
		}
	}
	answeredIn(settled, releaseLimit)
	c.mu.Lock()
	h.awaited = false
	if h.confirmed {
		n, err = 1, nil
	}
	return n, broken, err
}

// owedFor returns how long the server may retain something of the token: the longest lease that any request may set,
// and the queue position.
func (h *hold) owedFor() time.Duration {
	d := h.longest
	if h.wait != nil {
		d = max(d, keep) + keep
	}
	return d
}

func (h *hold) releaseArgs(at instant) []any {
	args := make([]any, 0, 6)
	args = append(args, "DLOCK.RELEASE", h.keyArg, h.tokenArg, "ALL")
	if h.o.atLeast > 0 && h.receivedAt != 0 && !h.unused && h.lost == nil {
		if left := h.o.atLeast - at.sub(h.receivedAt); left > 0 {
			args = append(args, "DELAY", milliseconds(left))
		}
	}
	return args
}

// withoutDelay leaves the DELAY out of the next RELEASE if the server refuses it: an older one may have become master.
func (h *hold) withoutDelay(err error) {
	if h.o.atLeast > 0 && kindOf(err) == refused && firstWord(err) == "ERR" {
		h.unused = true
		h.c.delay = 0 // the next acquisition asks again
	}
}

// confirmRelease ends the debt of a release that was answered, unless an ACQUIRE may be executed after it. last: no
// ACQUIRE was under way when it was sent.
func (h *hold) confirmRelease(last bool) {
	switch {
	case h.state != owed:
	case h.asks > 0:
		// The answer to the ACQUIRE schedules the next release.
		h.c.due.set(h, h.owedUntil)
	case !last:
		h.c.due.set(h, now())
	case h.orphan && !h.o.reentrant && now() < h.owedUntil:
		// Close does not wait for the repetitions.
		h.c.settled(h)
		h.repeatRelease(max(longestPause, h.longest/20))
	default:
		h.settle()
	}
}

// undoLate schedules another RELEASE, after an ACQUIRE that may have been executed after the last one.
func (h *hold) undoLate() {
	if !h.releasing {
		h.c.due.set(h, now())
	}
}

// repeatRelease schedules the next RELEASE after a pause, which doubles each time up to the longest one.
func (h *hold) repeatRelease(longest time.Duration) {
	if now() >= h.owedUntil {
		h.settle()
		return
	}
	h.pause = min(max(2*h.pause, releasePause), longest)
	h.c.due.set(h, now().add(h.pause))
}

// settle ends the debt.
func (h *hold) settle() {
	if h.state != owed {
		return
	}
	h.leave(over)
	h.c.settled(h)
	if h.settled != nil {
		close(h.settled)
		h.settled = nil
	}
}

// releaseAgain returns the next RELEASE of an owed hold.
func (h *hold) releaseAgain(at instant) *errand {
	if at >= h.owedUntil {
		h.settle()
		return nil
	}
	// If this request has no answer by then, another one is sent.
	h.c.due.set(h, at.add(longestPause))
	e := &errand{h: h, cmd: newOnce(context.Background(), h.releaseArgs(at)), done: (*hold).releasedAgain}
	if h.asks == 0 {
		e.call = 1
	}
	h.lastRelease = e
	return e
}

func (h *hold) releasedAgain(e *errand, n int64, err error) {
	if h.state != owed {
		return
	}
	switch what := kindOf(err); {
	case what == answered, isGone(n, err):
		h.confirmed = true
		if n > 0 {
			h.noteGrant()
		}
		if h.settled != nil && h.asks == 0 {
			close(h.settled)
			h.settled = nil
		}
		h.confirmRelease(e.call == 1)
	case what == busy:
		h.c.due.set(h, whenRoom())
	case h.awaited:
		h.c.due.set(h, together(h.c.outagePause()))
	case h.lastRelease == e:
		h.withoutDelay(err)
		h.repeatRelease(longestPause)
	}
}

// giveUp releases the token of an acquisition that has failed. It returns a channel that is closed once the server has
// answered.
func (h *hold) giveUp() <-chan struct{} {
	h.settled = make(chan struct{})
	h.unused = true
	settled := h.settled
	if h.wait != nil {
		h.c.dequeue(h)
	}
	h.leave(owed)
	h.owedUntil = now().add(h.owedFor())
	h.c.owes(h)
	h.c.due.set(h, now())
	return settled
}
