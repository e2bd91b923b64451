package dlock

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// An Inspection is a lock as its server sees it.
type Inspection struct {
	// Mode is "exclusive", "shared", "permits", "string" (a lock of SET NX), or "free" without a holder.
	Mode string
	// Permits is the limit of the last grant, and 0 in another mode.
	Permits int64
	// Fence is the greatest of the holders, and 0 without one.
	Fence int64
	// Holders has at most 1000 of the holders, HoldersCount is the number of all.
	Holders      []Holder
	HoldersCount int64
	// Waiters is the length of the wait queue.
	Waiters int64
	// Delay is the time for which the lock stays closed although it has no holder.
	Delay time.Duration
}

// A Holder is a holder of a lock.
type Holder struct {
	Token string
	Count int64
	Fence int64
	// Left is the rest of its lease, Held the time since the grant.
	Left, Held time.Duration
	Label      string
	Ephemeral  bool
	// Client is the CLIENT ID of its connection, and Addr the address. 0 and empty: unknown.
	Client int64
	Addr   string
}

// String describes the holder to people, without its token.
func (h *Holder) String() string {
	text := "held"
	if h.Label != "" {
		text += fmt.Sprintf(" by %q", h.Label)
	}
	if h.Addr != "" {
		text += " at " + h.Addr
	}
	return text + " for " + inSeconds(h.Held)
}

// inSeconds returns a time for people: three digits, or all digits of the whole seconds. The server counts milliseconds.
func inSeconds(d time.Duration) string {
	switch s := d.Seconds(); {
	case d < time.Millisecond:
		return "less than 0.001 s"
	case s < 999.5:
		return fmt.Sprintf("%.3g s", s)
	default:
		return fmt.Sprintf("%.0f s", s)
	}
}

// A Waiter is a client in the wait queue.
type Waiter struct {
	// Client is the CLIENT ID of its connection; -1: it waits without one.
	Client int64
	Token  string
	Mode   string
	// Waited is the time since it joined. Left is the rest of its wait; -1: no limit.
	Waited, Left time.Duration
	Label        string
}

// A Listed is a lock in a [Client.List].
type Listed struct {
	Key     string
	Mode    string
	Holders int64
	Waiters int64
	// Left is the rest of the longest lease; negative: no holder. Held is the time since the first grant.
	Left, Held time.Duration
	// Delay is the time for which the lock stays closed although it has no holder.
	Delay time.Duration
	// Token, Fence, Label and Addr are of the first holder, and empty or 0 without one.
	Token, Label, Addr string
	Fence              int64
}

// An Incident is an entry of DLOCK.LOG.
type Incident struct {
	ID   int64
	Time time.Time
	// What has the kind of the incident, such as "expired", "broken" or "deadlock".
	What       string
	DB         int64
	Key, Label string
	// Token has the first bytes of the token.
	Token   string
	Client  int64
	Address string
	Fence   int64
	// Held or Waited is the length of the hold or wait; the other one is 0.
	Held, Waited time.Duration
}

// Inspect returns the state of the lock, and nil if it has no holder, no waiter and no delay.
func (c *Client) Inspect(ctx context.Context, key string) (*Inspection, error) {
	if c.err != nil {
		return nil, c.err
	}
	seen, err := c.inspect(ctx, key, 1000)
	if kindOf(err) == null {
		return nil, nil
	}
	if err != nil {
		return nil, explain(key, err)
	}
	return seen, nil
}

func (c *Client) inspect(ctx context.Context, key string, holders int) (*Inspection, error) {
	reply, err := c.once(ctx, "DLOCK.INSPECT", key, "COUNT", holders).Result()
	if err != nil {
		return nil, err
	}
	return readInspection(reply), nil
}

// freePause is the longest pause between two inspections of WaitUntilFree.
const freePause = 500 * time.Millisecond

// WaitUntilFree waits until the lock has no holder, no waiter and no delay. It acquires nothing: another client may have
// the lock by the time of the return. It inspects the lock after random pauses of up to 0.5 s, so the user needs the
// right +dlock.inspect. If ctx is done first, it returns an error that is context.DeadlineExceeded or Canceled. Like
// Acquire, it outlasts an outage of up to 10 s, but not a first request that finds no server at the address.
func (c *Client) WaitUntilFree(ctx context.Context, key string) error {
	if c.err != nil {
		return c.err
	}
	var downSince instant
	for found := c.findsMaster; ; {
		sent := now()
		_, err := c.inspect(ctx, key, 1)
		what := kindOf(err)
		found = found || what != unsent
		switch what {
		case null:
			return nil
		case refused:
			return c.unobtained(ctx, key, err)
		case unsent, unanswered:
			if downSince == 0 {
				downSince = sent
			}
			if !found || now().sub(downSince) > keep {
				return explain(key, err)
			}
		default:
			downSince = 0
		}
		select {
		case <-time.After(freePause/2 + rand.N(freePause/2)):
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%w (%w)", explain(key, err), endOf(ctx))
			}
			return fmt.Errorf("dlock: %q is not free: %w", key, endOf(ctx))
		}
	}
}

// Waiters returns the wait queue, the head first, at most limit waiters (1 to 1000).
func (c *Client) Waiters(ctx context.Context, key string, limit int) ([]Waiter, error) {
	if c.err != nil {
		return nil, c.err
	}
	reply, err := c.once(ctx, "DLOCK.WAITERS", key, "COUNT", limit).Result()
	if err != nil {
		return nil, explain(key, err)
	}
	return readEach(reply, readWaiter), nil
}

// List iterates over the locks of the server, or of all masters of a cluster, that are held, waited for or in a delay.
// With a pattern (in the syntax of the command KEYS), only over the locks with matching names. A lock that exists during
// the whole iteration is listed at least once. After an error, the iteration ends.
func (c *Client) List(ctx context.Context, pattern string) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		masters, err := c.masters(ctx)
		if err != nil {
			yield(Listed{}, err)
			return
		}
		for _, master := range masters {
			for cursor := any(int64(0)); ; {
				args := []any{"DLOCK.LIST", cursor}
				if pattern != "" {
					args = append(args, "MATCH", pattern)
				}
				reply, err := onceAt(ctx, master, args...).Slice()
				if err == nil && len(reply) != 2 {
					err = misuse("DLOCK.LIST: unexpected reply")
				}
				if err != nil {
					yield(Listed{}, explain("list", err))
					return
				}
				for _, listed := range readEach(reply[1], readListed) {
					if !yield(listed, nil) {
						return
					}
				}
				if cursor = reply[0]; text(cursor) == "0" {
					break
				}
			}
		}
	}
}

// Log returns recent incidents, newest first, at most limit of each server. With a key, only those of this lock.
func (c *Client) Log(ctx context.Context, limit int, key string) ([]Incident, error) {
	masters, err := c.masters(ctx)
	if err != nil {
		return nil, err
	}
	args := []any{"DLOCK.LOG", "COUNT", limit}
	if key != "" {
		args = append(args, "KEY", key)
	}
	var all []Incident
	for _, master := range masters {
		reply, err := onceAt(ctx, master, args...).Result()
		if err != nil {
			return nil, explain("log", err)
		}
		all = append(all, readEach(reply, readIncident)...)
	}
	return all, nil
}

// Cancel removes the waiters of a token from the wait queue, and returns how many. Their wait ends with an
// [ErrNotAcquired].
func (c *Client) Cancel(ctx context.Context, key, token string) (int64, error) {
	return c.explained(ctx, key, "DLOCK.CANCEL", key, token)
}

// Break ends every hold of the lock, and a delay, and returns how many holds. The next waiter is granted the lock at
// once, while the old holder continues until it notices. For operators.
func (c *Client) Break(ctx context.Context, key string) (int64, error) {
	return c.explained(ctx, key, "DLOCK.BREAK", key)
}

// Left returns the rest of the longest lease of the lock, and -1 if there is no holder.
func (c *Client) Left(ctx context.Context, key string) (time.Duration, error) {
	ms, err := c.explained(ctx, key, "DLOCK.PTTL", key)
	if err != nil || ms < 0 {
		return -1, err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (c *Client) explained(ctx context.Context, key string, args ...any) (int64, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.integer(ctx, args...)
	if err != nil {
		return 0, explain(key, err)
	}
	return n, nil
}

// processor sends commands to one server.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// masters returns the masters of a cluster, or the one server.
func (c *Client) masters(ctx context.Context) ([]processor, error) {
	if c.err != nil {
		return nil, c.err
	}
	cluster, ok := c.rdb.(*redis.ClusterClient)
	if !ok {
		return []processor{c.rdb}, nil
	}
	var mu sync.Mutex
	var masters []processor
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, master)
		return nil
	})
	if err != nil {
		return nil, explain("cluster", err)
	}
	return masters, nil
}

// serverOf returns the server of a lock.
func (c *Client) serverOf(ctx context.Context, key string) (*redis.Client, error) {
	switch rdb := c.rdb.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		node, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			return nil, explain(key, err)
		}
		return node, nil
	}
	return nil, misuse("this needs a *redis.Client or a *redis.ClusterClient, not a %T", c.rdb)
}

func readInspection(reply any) *Inspection {
	m := pairs(reply)
	return &Inspection{
		Mode: text(m["mode"]), Permits: number(m["permits"]), Fence: number(m["fence"]),
		HoldersCount: number(m["holders-count"]), Waiters: number(m["waiters"]), Delay: ms(m["delay"]),
		Holders: readEach(m["holders"], readHolder),
	}
}

// readEach reads a list of maps.
func readEach[T any](reply any, read func(m map[string]any) T) []T {
	var all []T
	for _, item := range list(reply) {
		all = append(all, read(pairs(item)))
	}
	return all
}

func readHolder(h map[string]any) Holder {
	return Holder{
		Token: text(h["token"]), Count: number(h["count"]), Fence: number(h["fence"]),
		Left: ms(h["pttl"]), Held: ms(h["held"]), Label: text(h["label"]), Ephemeral: number(h["ephemeral"]) == 1,
		Client: number(h["client"]), Addr: text(h["addr"]),
	}
}

func readWaiter(w map[string]any) Waiter {
	return Waiter{
		Client: number(w["client"]), Token: text(w["token"]), Mode: text(w["mode"]),
		Waited: ms(w["waited"]), Left: ms(w["left"]), Label: text(w["label"]),
	}
}

func readListed(l map[string]any) Listed {
	return Listed{
		Key: text(l["key"]), Mode: text(l["mode"]), Holders: number(l["holders"]), Waiters: number(l["waiters"]),
		Left: ms(l["pttl"]), Held: ms(l["held"]), Delay: ms(l["delay"]),
		Token: text(l["token"]), Fence: number(l["fence"]), Label: text(l["label"]), Addr: text(l["addr"]),
	}
}

func readIncident(i map[string]any) Incident {
	return Incident{
		ID: number(i["id"]), Time: time.UnixMilli(number(i["time"])), What: text(i["what"]), DB: number(i["db"]),
		Key: text(i["key"]), Label: text(i["label"]), Token: text(i["token"]), Client: number(i["client"]),
		Address: text(i["address"]), Fence: number(i["fence"]), Held: ms(i["held"]), Waited: ms(i["waited"]),
	}
}

// pairs reads a map: RESP2 sends it as an array of names and values in turn.
func pairs(reply any) map[string]any {
	m := map[string]any{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			m[text(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			m[text(reply[i])] = reply[i+1]
		}
	}
	return m
}

func list(reply any) []any {
	l, _ := reply.([]any)
	return l
}

func text(reply any) string {
	switch reply := reply.(type) {
	case string:
		return reply
	case int64:
		return fmt.Sprint(reply)
	}
	return ""
}

func number(reply any) int64 {
	switch reply := reply.(type) {
	case int64:
		return reply
	case bool:
		if reply {
			return 1
		}
	}
	return 0
}

func ms(reply any) time.Duration {
	return time.Duration(min(max(number(reply), -1), maxDuration.Milliseconds())) * time.Millisecond
}
