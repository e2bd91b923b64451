package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The errors of this package, for errors.Is. The types with the details are for errors.As.
var (
	// ErrNotAcquired means that the lock was not granted: another client holds it or waits for it, it is closed after a
	// release, or an operator ended the wait. A [NotAcquiredError] has the holder.
	ErrNotAcquired = errors.New("dlock: not acquired")

	// ErrLost means that a hold has ended without its release. A [LostError] has the reason.
	ErrLost = errors.New("dlock: hold lost")

	// ErrReleased is the cause of [Hold.Context] after [Hold.Release].
	ErrReleased = errors.New("dlock: hold released")

	// ErrDeadlock means that the wait would close a cycle of owners that wait for each other. Release what you hold,
	// then try again. A [DeadlockError] shows the cycle.
	ErrDeadlock = errors.New("dlock: deadlock")

	// ErrGrace means that the server may have forgotten holds and grants no new lock yet. A [GraceError] has the time
	// that is left.
	ErrGrace = errors.New("dlock: grace period")

	// ErrNoModule means that the server does not have the module dlock, or an older version of it.
	ErrNoModule = errors.New("dlock: the server lacks the module dlock, or has an older version of it")

	// ErrQueueFull means that the server has too many waiters. Try again later.
	ErrQueueFull = errors.New("dlock: wait queue full")

	// ErrNotALock means that the key holds data, or the lock of a client that locks by SET NX.
	ErrNotALock = errors.New("dlock: the key holds no lock")

	// ErrNotDurable means that too few replicas confirmed the grant in time: see [Durable]. The lock was released.
	ErrNotDurable = errors.New("dlock: not durable")

	// ErrStaleFence means that the gate has seen a greater fence: see [Client.Fenced].
	ErrStaleFence = errors.New("dlock: stale fence")

	// ErrNoAnswer means that it is unknown whether the server carried out the request. The error of go-redis is
	// wrapped, too.
	ErrNoAnswer = errors.New("dlock: no answer")
)

// A NotAcquiredError is the error for a lock that was not acquired, with its holder, or the time for which it stays
// closed. It is an [ErrNotAcquired].
type NotAcquiredError struct {
	Key string
	// Holder is one of the holders. It is nil if there is none (see Closed), or if the server did not show it: the user
	// needs the right +dlock.inspect.
	Holder *Holder
	// Closed is the time for which the lock stays closed: see [AtLeast] and [Delay]. It is 0 if it is not closed, or if
	// the server did not show it.
	Closed time.Duration
	// Err is the cause of the end of the wait, such as context.DeadlineExceeded. It is nil if there was no wait.
	Err error
}

func (e *NotAcquiredError) Error() string {
	text := fmt.Sprintf("dlock: %q not acquired", e.Key)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Holder != nil {
		text += "; " + e.Holder.String()
	}
	if e.Closed > 0 {
		text += fmt.Sprintf("; closed for another %v", e.Closed)
	}
	return text
}

// Unwrap returns ErrNotAcquired and the cause of the end of the wait.
func (e *NotAcquiredError) Unwrap() []error { return withCause(ErrNotAcquired, e.Err) }

// A LostError says why a hold was lost. It is an [ErrLost].
type LostError struct {
	Key   string
	Fence int64
	// Reason is the reason that the client has found, as a text for people. The text of the error has the reason of
	// the server instead, once the client has read it: see [LostError.Incident].
	Reason string
	// Err is the last error of a renewal, if there was one.
	Err error
	// logged is the entry of the server's log about the loss.
	logged atomic.Pointer[Incident]
	// read is closed once the client has read the log. nil: the client does not read it.
	read chan struct{}
}

// Incident returns the entry of the server's log about the loss, or nil. The client reads the log once, right after a
// loss that it has learned from the server. Until then, Incident returns nil. It also returns nil if the user has no
// right to the log (+dlock.log), or the log has no such entry any more.
func (e *LostError) Incident() *Incident { return e.logged.Load() }

func (e *LostError) Error() string {
	reason := e.Reason
	if incident := e.Incident(); incident != nil {
		reason = endings[incident.What]
	}
	text := fmt.Sprintf("dlock: hold of %q lost: %s", e.Key, reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns ErrLost and the last error of a renewal.
func (e *LostError) Unwrap() []error { return withCause(ErrLost, e.Err) }

// A DeadlockError shows the cycle. It is an [ErrDeadlock].
type DeadlockError struct {
	Key string
	// Cycle has the owners as the server shows them: "a -> b -> a".
	Cycle string
}

func (e *DeadlockError) Error() string {
	return fmt.Sprintf("dlock: %q: deadlock: %s", e.Key, e.Cycle)
}

// Unwrap returns ErrDeadlock.
func (e *DeadlockError) Unwrap() error { return ErrDeadlock }

// A GraceError says how long the server grants no new lock. It is an [ErrGrace].
type GraceError struct {
	Key string
	// Left is the rest of the grace period.
	Left time.Duration
}

func (e *GraceError) Error() string {
	return fmt.Sprintf("dlock: %q: the server may have forgotten holds and grants no new lock for another %v", e.Key, e.Left)
}

// Unwrap returns ErrGrace.
func (e *GraceError) Unwrap() error { return ErrGrace }

func withCause(kind, cause error) []error {
	if cause == nil {
		return []error{kind}
	}
	return []error{kind, cause}
}

// wrap returns an error that is both kind and err.
func wrap(kind error, key string, err error) error {
	return fmt.Errorf("%w: %q: %w", kind, key, err)
}

// replyOf returns the text of an error reply, even if a hook of the go-redis client has wrapped it.
func replyOf(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) {
		return reply.Error()
	}
	return err.Error()
}

// firstWord returns the first word of an error reply.
func firstWord(err error) string {
	word, _, _ := strings.Cut(replyOf(err), " ")
	return word
}

// endOf returns the error and the cause of a context, once it is done.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
