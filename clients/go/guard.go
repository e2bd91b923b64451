package dlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Guard runs a command only if the server has the hold at this moment, in one step, and returns its reply: for data on
// the server of the lock (in a cluster: in its slot). Otherwise the error is an [ErrLost], and the command was not run.
//
//	err := hold.Guard(ctx, "SET", "{invoice}:total", 42).Err()
//
// The server refuses scripts and commands that scripts may not run. The command is sent once: after an [ErrNoAnswer],
// read your data to see whether it was run.
func (h *Hold) Guard(ctx context.Context, command ...any) *redis.Cmd {
	cmd := h.h.c.once(ctx, append([]any{"DLOCK.GUARD", h.h.keyArg, h.h.tokenArg}, command...)...)
	err := cmd.Err()
	if err == nil || kindOf(err) != refused || firstWord(err) != "NOTHELD" {
		setErr(cmd, h.h.key)
		return cmd
	}
	c := h.h.c
	c.mu.Lock()
	h.h.loseElsewhere()
	lost := h.h.lost
	c.unlock()
	if lost == nil {
		lost = &LostError{Key: h.h.key, Fence: h.Fence(), Reason: "it was released"}
	}
	cmd.SetErr(fmt.Errorf("%w: %w", withReason(lost), err))
	return cmd
}

// Fenced runs a command on the server of this client, and raises the gate, a key there, to the fence, in one step: for
// data on another server than that of the lock. If the gate has seen a greater fence, the error is an [ErrStaleFence],
// and the command was not run. Use one gate for each lock. The command is sent once, as by [Hold.Guard].
//
//	err := store.Fenced(ctx, "{invoice}:gate", hold.Fence(), "SET", "{invoice}:total", 42).Err()
func (c *Client) Fenced(ctx context.Context, gate string, fence int64, command ...any) *redis.Cmd {
	if c.err != nil {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(c.err)
		return cmd
	}
	cmd := c.once(ctx, append([]any{"DLOCK.FENCED", gate, fence}, command...)...)
	if err := cmd.Err(); err != nil && kindOf(err) == refused && firstWord(err) == "STALEFENCE" {
		_, rest, _ := strings.Cut(replyOf(err), " ")
		greatest, _, _ := strings.Cut(rest, " ")
		seen, _ := strconv.ParseInt(greatest, 10, 64)
		cmd.SetErr(&StaleFenceError{Gate: gate, Fence: fence, Greatest: seen})
		return cmd
	}
	setErr(cmd, gate)
	return cmd
}

// A StaleFenceError has the greatest fence that a gate has seen. It is an [ErrStaleFence].
type StaleFenceError struct {
	Gate            string
	Fence, Greatest int64
}

func (e *StaleFenceError) Error() string {
	return fmt.Sprintf("dlock: fence %d is stale: the gate %q has seen %d", e.Fence, e.Gate, e.Greatest)
}

// Unwrap returns ErrStaleFence.
func (e *StaleFenceError) Unwrap() error { return ErrStaleFence }

// once runs a command, which go-redis sends once.
func (c *Client) once(ctx context.Context, args ...any) *redis.Cmd {
	cmd := newOnceAny(ctx, args...)
	c.process(ctx, nil, cmd)
	return cmd.Cmd
}

// onceAt runs a command at this server.
func onceAt(ctx context.Context, server processor, args ...any) *redis.Cmd {
	cmd := newOnceAny(ctx, args...)
	server.Process(ctx, cmd)
	return cmd.Cmd
}

// setErr explains the error of a command, except redis.Nil and the replies of the user's own command.
func setErr(cmd *redis.Cmd, key string) {
	if err := cmd.Err(); err != nil && (kindOf(err) == unanswered || strings.Contains(err.Error(), "unknown command")) {
		cmd.SetErr(explain(key, err))
	}
}
