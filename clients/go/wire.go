package dlock

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// once is a command that go-redis must not send again by itself. A second copy could be executed long after the first,
// and the client would not know. Redirects of a cluster are followed all the same, as the server has then done nothing.
type once struct{ *redis.IntCmd }

func (once) NoRetry() bool { return true }

func newOnce(ctx context.Context, args []any) once {
	cmd := redis.NewIntCmd(ctx, args...)
	cmd.SetFirstKeyPos(1)
	return once{cmd}
}

// onceAny is a once with a reply of any type.
type onceAny struct{ *redis.Cmd }

func (onceAny) NoRetry() bool { return true }

func newOnceAny(ctx context.Context, args ...any) onceAny {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(1)
	return onceAny{cmd}
}

// ownConn is a connection for one hold or one watcher. go-redis allows no Close while a request is under way, so close
// waits.
type ownConn struct {
	mu     sync.RWMutex
	conn   *redis.Conn
	closed bool
}

// use calls f with the connection, and returns its error, unless the connection is closed.
func (c *ownConn) use(f func(conn *redis.Conn) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return redis.ErrClosed
	}
	return f(c.conn)
}

// close closes the connection once no request is under way.
func (c *ownConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.conn.Close()
	}
}

// kind classifies the end of a request.
type kind uint8

const (
	// The server answered with an integer.
	answered kind = iota
	// The server answered null.
	null
	// The server refused: it has done nothing.
	refused
	// The server cannot answer at this moment: it has done nothing. A wait asks again.
	notNow
	// The request was never sent.
	unsent
	// The request was never sent, as all connections of the pool were busy. A caller with a limit of its own tries again
	// until then.
	busy
	// The server may have carried out the request, or may still do so.
	unanswered
)

// kindOf classifies the error of a request.
func kindOf(err error) kind {
	if err == nil {
		return answered
	}
	var reply redis.Error // allocated
	switch {
	case errors.Is(err, redis.Nil):
		return null
	case errors.As(err, &reply):
		switch firstWord(err) {
		case "BUSY", "NOREPLICAS", "OOM", "MISCONF", "LOADING", "READONLY", "UNBLOCKED", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN":
			return notNow
		}
		return refused
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return busy
	case errors.Is(err, redis.ErrClosed):
		return unsent
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return unsent
	}
	return unanswered
}

// isGone returns whether an answer means that the server does not have the hold: 0, or WRONGTYPE.
func isGone(n int64, err error) bool {
	what := kindOf(err)
	return what == answered && n == 0 || what == refused && firstWord(err) == "WRONGTYPE"
}

// checkFence returns the error of a request for a fence, or an error if the answer cannot be a fence.
func checkFence(n int64, err error) error {
	if err == nil && (n < 1 || n > maxFence) {
		return misuse("the server answered with the fence %d", n)
	}
	return err
}

// busyPause is the pause before a request that found all connections of the pool busy is tried again.
const busyPause = 10 * time.Millisecond

// inTurn repeats a request that found the pool busy, until it gets a connection or ctx is done. It returns the time
// before the last try. At most one caller for each connection of the pool tries at a time, first come, first served:
// the tries of thousands would take the processor from the callers that have a connection.
func (c *Client) inTurn(ctx context.Context, send func() error) (sent instant, err error) {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return now(), redis.ErrPoolTimeout
	}
	for {
		sent = now()
		if err = send(); kindOf(err) != busy {
			return sent, err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return sent, err
		}
	}
}

// poolSize returns the greatest number of connections of the go-redis client to a server.
func poolSize(rdb redis.UniversalClient) int {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options().PoolSize
	case *redis.ClusterClient:
		return rdb.Options().PoolSize
	}
	return 1
}

// whenRoom returns the time at which the background tries again after a busy pool.
func whenRoom() instant { return together(busyPause) }

// together returns the time after a pause. It is rounded, so that the requests of one moment form a pipeline, which
// needs one connection.
func together(pause time.Duration) instant {
	at := now().add(pause + busyPause)
	return at - at%instant(busyPause)
}

// refusal returns the error of this package for an error reply to ACQUIRE.
func refusal(key string, err error) error {
	word, rest, _ := strings.Cut(replyOf(err), " ")
	switch word {
	case "DEADLOCK":
		return &DeadlockError{Key: key, Cycle: rest}
	case "GRACE":
		ms, _, _ := strings.Cut(rest, " ")
		left, err := strconv.ParseUint(ms, 10, 40)
		if err != nil {
			left = 1000
		}
		return &GraceError{Key: key, Left: time.Duration(left) * time.Millisecond}
	case "QUEUEFULL":
		return wrap(ErrQueueFull, key, err)
	}
	return explain(key, err)
}

// explain adds the error of this package to an error of go-redis.
func explain(key string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "unknown command") && strings.Contains(strings.ToUpper(text), "DLOCK."):
		return wrap(ErrNoModule, key, err)
	case strings.Contains(text, "cluster support disabled"):
		return wrap(errList, key, err)
	case firstWord(err) == "WRONGTYPE":
		return wrap(ErrNotALock, key, err)
	case kindOf(err) == unanswered:
		return wrap(ErrNoAnswer, key, err)
	}
	return wrap(errFailed, key, err)
}

var (
	errFailed = errors.New("dlock: failed")
	errList   = errors.New("dlock: a list of independent servers is not supported: use the address of one server, " +
		"Sentinel or Redis Cluster; for a quorum use the command dlock or the client for Rust, Python or Node")
)

// NewToken returns a fresh token, as DLOCK.TOKEN does: 20 random bytes of the operating system as 27 characters.
func NewToken() string {
	var random [20]byte
	rand.Read(random[:])
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// milliseconds rounds up, so that a positive duration never becomes 0.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
