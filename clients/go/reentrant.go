package dlock

import "context"

// entered is a lock with the token of a reentrant hold.
type entered struct{ key, token string }

// entry is the hold of an entered lock.
type entry struct {
	// h is nil while the lock is being acquired.
	h *hold
	// ready is closed when h is set or the acquisition has failed.
	ready chan struct{}
}

// enter acquires a lock with the token of the options, or enters the hold that this client has with it.
func (c *Client) enter(ctx context.Context, key string, waits bool, o *options) (*Hold, error) {
	name := entered{key, o.token}
	c.mu.Lock()
	for e := c.entered[name]; e != nil; e = c.entered[name] {
		if e.h != nil {
			if e.h.isLost() || e.h.state != holding {
				delete(c.entered, name)
				continue
			}
			if e.h.o.shared != o.shared || e.h.o.permits != o.permits {
				c.unlock()
				return nil, misuse("%q: it is held in another mode", key)
			}
			e.h.entries++
			h := &Hold{h: e.h, parent: ctx}
			if e.h.others == nil {
				e.h.others = map[*Hold]struct{}{}
			}
			e.h.others[h] = struct{}{}
			c.unlock()
			return h, nil
		}
		ready := e.ready
		c.unlock()
		if !waits {
			return nil, &NotAcquiredError{Key: key}
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, &NotAcquiredError{Key: key, Err: endOf(ctx)}
		}
		c.mu.Lock()
	}
	for h := range c.debts {
		if h.key == key && h.token == o.token {
			// Its release must not end the new hold.
			h.settle()
		}
	}
	e := &entry{ready: make(chan struct{})}
	c.entered[name] = e
	c.unlock()

	h, err := c.begin(ctx, key, o.token, waits, o)

	c.mu.Lock()
	defer c.unlock()
	close(e.ready)
	if err != nil {
		delete(c.entered, name)
		return nil, err
	}
	e.h = h
	return &h.first, nil
}

// left forgets a reentrant hold that has ended.
func (c *Client) left(h *hold) {
	name := entered{h.key, h.token}
	if e := c.entered[name]; e != nil && e.h == h {
		delete(c.entered, name)
	}
}
