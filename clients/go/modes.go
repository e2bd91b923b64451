package dlock

import (
	"context"
	"fmt"
	"time"
)

// Requests for another mode of a hold. Each names a lease of 1 ms. The server retains the later end, so the lease of the
// hold does not change. If a late request begins a new hold, that one ends after 1 ms.

// Upgrade makes a shared hold exclusive, once no other client shares the lock. It waits ahead of all other waiters, and
// the hold remains shared meanwhile. The fence and the validity stay. If another sharer waits for its upgrade, too, the
// error is an [ErrDeadlock]: release the hold, so that the other one can continue. If ctx is done before, or after
// another error, the hold is shared, as it was.
//
// An exclusive hold stays as it is. A hold with [Permits] cannot be upgraded. The mode of a hold that was adopted is
// that of the server.
func (h *Hold) Upgrade(ctx context.Context) error { return withReason(h.h.upgrade(ctx, h)) }

// Downgrade makes an exclusive hold a shared one, without a gap: sharers that wait are granted the lock. The fence and
// the validity stay. A shared hold stays as it is. A hold that was entered again by [Reentrant], or that has
// [Permits], cannot be downgraded.
//
// The hold counts as shared from the call on. After an [ErrNoAnswer], the server may still have it as exclusive: call
// Downgrade again.
func (h *Hold) Downgrade(ctx context.Context) error { return withReason(h.h.downgrade(ctx, h)) }

func (h *hold) downgrade(ctx context.Context, handle *Hold) error {
	// A claim under way would make the hold exclusive again.
	if err := h.lockQuiet(ctx, handle); err != nil {
		return err
	}
	var err error
	switch {
	case h.o.permits > 0:
		err = misuse("%q: a hold with permits cannot be downgraded", h.key)
	case h.entries > 1:
		err = misuse("%q: it was entered again, and another caller may need it as exclusive", h.key)
	default:
		h.setShared(true)
	}
	h.c.unlock()
	if err != nil {
		return err
	}
	return h.share(ctx)
}

func (h *hold) upgrade(ctx context.Context, handle *Hold) (err error) {
	c := h.c
	// A claim under way would give up the position.
	if err := h.lockQuiet(ctx, handle); err != nil {
		return err
	}
	switch {
	case h.o.permits > 0:
		err = misuse("%q: a hold with permits cannot be upgraded", h.key)
	case h.woken != nil:
		err = misuse("%q: another call of Upgrade is under way", h.key)
	}
	if err != nil || !h.o.shared && !h.adopted {
		c.unlock()
		return err
	}
	h.woken = make(chan struct{}, 1)
	held := handle.context()
	c.join(h)
	c.unlock()
	if err = h.waitForUpgrade(ctx, held); err != nil {
		h.undoUpgrade(ctx)
	}
	c.mu.Lock()
	defer c.unlock()
	h.woken = nil
	c.part(h)
	if ended := h.ended(); ended != nil {
		return ended
	}
	return err
}

// callsKept is how many calls of an upgrade can still get a message. The position of an older one has ended.
const callsKept = 6

// waitForUpgrade asks until the hold is exclusive, or ctx is done or the hold has ended.
func (h *hold) waitForUpgrade(ctx, held context.Context) error {
	c := h.c
	mute, failed := false, error(nil)
	// The messages of the last calls: the server can read a call after a later one.
	var messages []callMessage
	forget := func(kept int) {
		c.mu.Lock()
		for ; len(messages) > kept; messages = messages[1:] {
			delete(c.calls, messages[0].id)
		}
		c.unlock()
	}
	defer forget(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for call := 1; ; {
		select {
		case <-timer.C:
		case <-h.woken:
		case <-held.Done():
			return context.Cause(held)
		case <-ctx.Done():
			if failed != nil {
				return fmt.Errorf("%w (%w)", failed, endOf(ctx))
			}
			return &NotAcquiredError{Key: h.key, Err: endOf(ctx)}
		}
		c.mu.Lock()
		unknown := h.adopted
		c.unlock()
		more := []any{"QUEUE", keep.Milliseconds()}
		switch {
		case unknown:
			// It may be exclusive: without a position, nothing must be undone.
			more = nil
		case !mute:
			forget(callsKept - 1)
			m := newCallMessage()
			messages = append(messages, m)
			more = append(more, "NOTIFY", c.channelArg, m.of(call))
			c.mu.Lock()
			c.calls[m.id] = h
			c.unlock()
			call++
		}
		n, err := h.askInMode(ctx, false, more...)
		pause := pollPause
		switch what := kindOf(err); {
		case what == answered:
			return h.confirmMode(n, false)
		case what == null:
			failed = nil
			c.mu.Lock()
			h.setShared(true)
			if c.listener.subscribed && !mute {
				pause = keep / 3
			}
			if unknown {
				pause = 0
			}
			c.unlock()
		case what == refused && firstWord(err) == "NOPERM" && !mute:
			mute, pause = true, 0
		case ctx.Err() != nil:
			// Not a failure of the server.
		case what != refused, firstWord(err) == "GRACE":
			failed = refusal(h.key, err)
		default:
			return refusal(h.key, err)
		}
		timer.Reset(pause)
	}
}

// undoUpgrade leaves the queue. If the upgrade was granted meanwhile, the hold is shared again.
func (h *hold) undoUpgrade(ctx context.Context) {
	c := h.c
	c.mu.Lock()
	if h.ended() != nil {
		if h.state == over {
			h.oweRelease() // the position belongs to the token
		}
		c.unlock()
		return
	}
	unknown := h.adopted
	c.unlock()
	if unknown {
		return
	}
	done := make(chan struct{})
	go func() {
		h.share(context.WithoutCancel(ctx)) // without an answer, the position ends soon
		close(done)
	}()
	answeredSoon(done)
}

// share makes the hold shared. With QUEUE, a request in another mode also gives up the position of an upgrade.
func (h *hold) share(ctx context.Context) error {
	n, err := h.askInMode(ctx, true, "QUEUE", 1)
	switch kindOf(err) {
	case answered:
		return h.confirmMode(n, true)
	case null:
		return h.confirmMode(0, true)
	}
	return refusal(h.key, err)
}

// askInMode sends an ACQUIRE in this mode.
func (h *hold) askInMode(ctx context.Context, shared bool, more ...any) (int64, error) {
	c := h.c
	c.mu.Lock()
	args := []any{"DLOCK.ACQUIRE", h.keyArg, h.tokenArg, 1}
	if shared {
		args = append(args, "SHARED")
	}
	args = append(h.named(args), more...)
	h.asks++
	conn := h.conn
	c.unlock()
	cmd := newOnce(ctx, args)
	c.process(ctx, conn, cmd)
	c.mu.Lock()
	defer c.unlock()
	h.asks--
	h.noteQuiet()
	if h.state == owed {
		h.undoLate()
	}
	return cmd.Result()
}

// confirmMode handles the answer to a request for a mode: the fence of the hold, or of another one, and 0 for none.
func (h *hold) confirmMode(fence int64, shared bool) error {
	h.c.mu.Lock()
	defer h.c.unlock()
	if err := h.ended(); err != nil {
		return err
	}
	if fence != h.fence {
		h.loseAndRelease()
		return h.lost
	}
	h.setShared(shared)
	return nil
}

// setShared sets the mode of later requests. It copies the options, which other holds may share.
func (h *hold) setShared(shared bool) {
	h.adopted = false
	if h.o.shared != shared {
		changed := *h.o
		changed.shared = shared
		changed.words()
		h.o = &changed
	}
}

// wakeUpgrade lets an upgrade that waits ask again.
func (h *hold) wakeUpgrade() {
	if h.woken != nil {
		select {
		case h.woken <- struct{}{}:
		default:
		}
	}
}
