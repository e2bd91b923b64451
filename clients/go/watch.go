package dlock

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A hold that is older than watchAfter is watched: the server reports each change of the lock (CLIENT TRACKING), so the
// client finds a loss before the next renewal does. A watcher has two connections to a server. Over one, it reads the
// locks by DLOCK.HOLDS, which begins the tracking. The other one is subscribed to the reports. A report is only a hint,
// since renewals cause reports, too. After a report, the watcher reads the lock again, which also repeats the tracking.
// If the hold is missing, the client asks the master before it counts the hold as lost.

const (
	// watchAfter is the age from which a hold is watched. Shorter holds cost no request.
	watchAfter = 100 * time.Millisecond
	// watchGrid is the step to which readings after reports are rounded, so that they form pipelines.
	watchGrid = 20 * time.Millisecond
	// readPause is the least time between two readings of a lock. A lock with many sharers may change often.
	readPause = 100 * time.Millisecond
	// watchPause is the least time between the start of a watcher that fails and the start of the next one.
	watchPause = time.Second
	// reportChannel is the channel of the reports of the server.
	reportChannel = "__redis__:invalidate"
)

// watcher watches the holds of one server.
type watcher struct {
	c    *Client
	stop context.CancelFunc
	// ended is closed once the connections are closed.
	ended chan struct{}

	// The client's lock guards the fields below.

	// conn is the connection that reads the locks. nil: it is not ready.
	conn  *ownConn
	holds map[string]map[*hold]struct{}
	idle  *time.Timer
	// failed: a connection broke. denied: the user lacks a right that a watcher needs.
	failed, denied bool
}

// watch begins or repeats the watching of holds that are due for it.
func (c *Client) watch(due []*hold) {
	ctx := context.Background()
	nodes := map[*redis.Client][]*hold{}
	for _, h := range due {
		// A nil node stands for an unknown one.
		node, _ := c.serverOf(ctx, h.key)
		nodes[node] = append(nodes[node], h)
	}
	for node, holds := range nodes {
		c.mu.Lock()
		w, next := c.watcherOf(node)
		var conn *ownConn
		if w != nil {
			conn = w.conn
		}
		for _, h := range holds {
			if h.state != holding {
				continue
			}
			if w == nil {
				h.watchAt = next
				h.plan()
			} else {
				w.add(h)
			}
		}
		c.unlock()
		if conn != nil {
			w.read(conn, holds)
		}
	}
}

// watcherOf returns the watcher of a node, which it begins if there is none. Without a watcher, it returns the time of
// the next attempt.
func (c *Client) watcherOf(node *redis.Client) (w *watcher, next instant) {
	if w = c.watchers[node]; w != nil {
		return w, 0
	}
	at := now()
	if node == nil {
		return nil, max(c.watchFrom, at.add(watchPause))
	}
	if at < c.watchFrom {
		return nil, c.watchFrom
	}
	running, stop := context.WithCancel(context.Background())
	w = &watcher{c: c, stop: stop, ended: make(chan struct{}), holds: map[string]map[*hold]struct{}{}}
	c.watchers[node] = w
	go w.run(running, node)
	return w, 0
}

func (w *watcher) add(h *hold) {
	if h.watcher != nil && h.watcher != w {
		h.watcher.remove(h)
	}
	h.watcher = w
	if w.holds[h.key] == nil {
		w.holds[h.key] = map[*hold]struct{}{}
	}
	w.holds[h.key][h] = struct{}{}
}

func (w *watcher) remove(h *hold) {
	h.watcher = nil
	delete(w.holds[h.key], h)
	if len(w.holds[h.key]) > 0 {
		return
	}
	if delete(w.holds, h.key); len(w.holds) > 0 {
		return
	}
	if w.conn == nil {
		w.stop()
	} else if w.idle == nil {
		w.idle = time.AfterFunc(linger, w.stopIdle)
	} else {
		w.idle.Reset(linger)
	}
}

func (w *watcher) stopIdle() {
	w.c.mu.Lock()
	defer w.c.unlock()
	if len(w.holds) == 0 {
		w.stop()
	}
}

// run connects, and receives reports until a connection breaks or ctx is done.
func (w *watcher) run(ctx context.Context, node *redis.Client) {
	defer close(w.ended)
	began := now()
	err := w.receive(ctx, node)
	idle := ctx.Err() != nil
	w.stop()
	c := w.c
	c.mu.Lock()
	defer c.unlock()
	delete(c.watchers, node)
	switch {
	case len(w.holds) == 0:
		return
	case w.denied || kindOf(err) == refused && !strings.Contains(replyOf(err), "redirect"):
		c.watchFrom = never // only renewals find a loss
	case idle && !w.failed:
		c.watchFrom = now() // the watcher ended as idle, and these holds began meanwhile
	default:
		// A FLUSHALL also breaks the watcher, since go-redis cannot read its report. Amid a failover, its connections may
		// lead to two servers: the "redirect" of the reports is refused. So the next one begins soon.
		c.watchFrom = max(now(), began.add(watchPause))
	}
	for _, holds := range w.holds {
		for h := range holds {
			h.watcher, h.watchAt = nil, c.watchFrom
			h.plan()
		}
	}
}

func (w *watcher) receive(ctx context.Context, node *redis.Client) error {
	var id atomic.Int64
	rdb := redis.NewClient(w.options(ctx, node, &id))
	defer rdb.Close()
	pubsub := rdb.Subscribe(ctx)
	defer pubsub.Close()
	// Receiving ends when the connection is closed.
	defer context.AfterFunc(ctx, func() { pubsub.Close() })()
	if err := pubsub.Subscribe(ctx, reportChannel); err != nil {
		return err
	}
	target := id.Load()
	conn := &ownConn{conn: rdb.Conn()}
	defer conn.close()
	if err := conn.conn.Do(ctx, "CLIENT", "TRACKING", "ON", "REDIRECT", target).Err(); err != nil {
		return err
	}
	return receiveAll(ctx, pubsub, func(received any) {
		switch received := received.(type) {
		case *redis.Subscription:
			w.c.mu.Lock()
			w.conn = conn
			var holds []*hold
			for _, of := range w.holds {
				for h := range of {
					holds = append(holds, h)
				}
			}
			w.c.unlock()
			w.read(conn, holds)
		case *redis.Message:
			w.report(received.PayloadSlice)
		}
	})
}

// options returns the options of the two connections. Each stores its CLIENT ID in id when it opens.
func (w *watcher) options(ctx context.Context, node *redis.Client, id *atomic.Int64) *redis.Options {
	opts := *node.Options()
	opts.Protocol, opts.MaxRetries, opts.MinIdleConns, opts.DialerRetries = 2, -1, 0, 1
	// After PoolSize failures, go-redis would dial in the background.
	opts.PoolSize = 10
	dial := opts.Dialer
	opts.Dialer = func(dialing context.Context, network, addr string) (net.Conn, error) {
		dialing, cancel := context.WithCancel(dialing)
		defer cancel()
		// Dialing ends with the watcher: the dialer of Sentinel must not be used after the node is closed.
		defer context.AfterFunc(ctx, cancel)()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return dial(dialing, network, addr)
	}
	opts.ReadTimeout, opts.WriteTimeout = silence, silence
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	connected := opts.OnConnect
	opts.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		n, err := conn.ClientID(ctx).Result()
		id.Store(n)
		return err
	}
	return &opts
}

// report handles a report of the server: the locks that have changed.
func (w *watcher) report(keys []string) {
	w.c.mu.Lock()
	defer w.c.unlock()
	soon := now()
	for _, key := range keys {
		for h := range w.holds[key] {
			at := max(soon, h.readAt.add(readPause)).add(watchGrid)
			h.watchAt = at - at%instant(watchGrid)
			h.plan()
		}
	}
}

// read reads the locks, which begins or repeats the tracking.
func (w *watcher) read(conn *ownConn, holds []*hold) {
	ctx := context.Background()
	var missing []*errand
	for len(holds) > 0 {
		part := holds[:min(len(holds), maxBatch)]
		holds = holds[len(part):]
		cmds := make([]once, len(part))
		err := conn.use(func(conn *redis.Conn) error {
			pipe := conn.Pipeline()
			for i, h := range part {
				cmds[i] = h.holdsCommand()
				pipe.Process(ctx, cmds[i])
			}
			pipe.Exec(ctx) // the error of each command is in the command
			return nil
		})
		if err != nil {
			break // the watcher has ended
		}
		for i, h := range part {
			n, err := cmds[i].Result()
			switch what := kindOf(err); {
			case isGone(n, err):
				missing = append(missing, &errand{h: h, cmd: h.holdsCommand(), done: (*hold).seen})
			case what == answered:
			case isRedirect(err):
				w.postpone(h)
			default:
				w.fail(what == refused)
			}
		}
	}
	w.c.send(missing)
}

// fail ends the watcher.
func (w *watcher) fail(denied bool) {
	w.c.mu.Lock()
	w.failed, w.denied = true, w.denied || denied
	w.c.unlock()
	w.stop()
}

// postpone ends the watching of a hold after a redirect: its lock is at another server. It begins again after a pause.
func (w *watcher) postpone(h *hold) {
	w.c.mu.Lock()
	defer w.c.unlock()
	if h.state == holding && h.watcher == w {
		w.remove(h)
		h.watchAt = now().add(watchPause)
		h.plan()
	}
}

func (h *hold) holdsCommand() once {
	return newOnce(context.Background(), []any{"DLOCK.HOLDS", h.keyArg, h.tokenArg})
}

// seen handles the answer of the master about a hold that a watcher has not found.
func (h *hold) seen(_ *errand, n int64, err error) {
	if isGone(n, err) {
		h.loseElsewhere()
	}
}
