package dlock

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// replicate waits until the grant is as durable as the options ask, and otherwise releases the hold. WAIT is about the
// last write of its connection, so an EXTEND is sent over that connection first: a replica that has it has the grant.
func (c *Client) replicate(ctx context.Context, h *hold) error {
	d := h.o.durable
	var copies int64
	cmd := newOnce(ctx, []any{"DLOCK.EXTEND", h.keyArg, h.tokenArg, h.o.ttlArg})
	conn, sent, err := h.sendOver(ctx, cmd)
	if conn == nil {
		h.first.abandon(ctx)
		return err
	}
	if err == nil && cmd.Val() == 1 {
		c.mu.Lock()
		h.confirm(sent, h.o.ttl)
		c.unlock()
		if d.replicas == 0 {
			// go-redis has no WAITAOF.
			waitAOF := redis.NewIntSliceCmd(ctx, "waitaof", 1, 0, milliseconds(d.limit))
			if err = conn.Process(ctx, waitAOF); err == nil && len(waitAOF.Val()) > 0 {
				copies = waitAOF.Val()[0]
			}
		} else {
			copies, err = conn.Wait(ctx, d.replicas, d.limit).Result()
		}
	}
	// The release needs a connection, too.
	conn.Close()
	if err == nil && copies >= int64(max(d.replicas, 1)) {
		return h.first.Err()
	}
	lost := h.first.Err()
	h.first.abandon(ctx)
	switch {
	case lost != nil:
		return lost
	case err != nil:
		return wrap(ErrNotDurable, h.key, err)
	}
	return wrap(ErrNotDurable, h.key, fmt.Errorf("%d copies", copies))
}
