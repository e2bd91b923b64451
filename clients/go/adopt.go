package dlock

import "context"

// Adopt takes over the hold of a token from another process, which has given it up by [Hold.Forget] or is dead: a living
// one would renew the hold, with its own lease, and release it. Adopt sets the lease, and renews it as the options say.
// The hold keeps its mode, whatever the options say. [Ephemeral] and [Durable] are errors: they are requests of an
// acquisition. Adopt returns an [ErrLost] if the server has no hold of this token.
// After an error the hold still belongs to its previous owner and ends with its lease.
func (c *Client) Adopt(ctx context.Context, key, token string, opts ...Option) (*Hold, error) {
	if c.err != nil {
		return nil, c.err
	}
	o, err := c.defaults.apply(opts)
	if err != nil {
		return nil, err
	}
	if o.ephemeral {
		return nil, misuse("%q: the hold to adopt is there already; omit Ephemeral", key)
	}
	if o.durable != nil {
		return nil, misuse("%q: the hold to adopt is there already; omit Durable", key)
	}
	if o.atLeast > 0 {
		if err := c.checkDelay(ctx, key, o.atLeast, false); err != nil {
			return nil, err
		}
	}
	h := c.newHold(ctx, key, token, o)
	sent := now()
	held, err := c.integer(ctx, "DLOCK.EXTEND", h.keyArg, h.tokenArg, o.ttlArg)
	fence := int64(0)
	if err == nil && held == 1 {
		// A fence of 1 raises nothing: CONFIRM returns the fence of the hold.
		fence, err = c.integer(ctx, "DLOCK.CONFIRM", h.keyArg, h.tokenArg, 1, o.ttlArg)
		err = checkFence(fence, err)
	}
	switch what := kindOf(err); {
	case what == null, what == answered && held == 0:
		return nil, &LostError{Key: key, Reason: "the server has no hold of this token"}
	case what == answered && sent.add(validity(o.ttl)) > now():
		c.mu.Lock()
		defer c.unlock()
		h.adopted, h.observed = true, true
		h.begin(fence, now(), sent.add(validity(o.ttl)))
		h.plan()
		return &h.first, nil
	case what == answered:
		return nil, errLate(key)
	case what == refused && firstWord(err) == "WRONGTYPE":
		return nil, c.notALock(ctx, key, err)
	}
	return nil, explain(key, err)
}
