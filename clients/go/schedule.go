package dlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The requests that are due without a caller: renewals, claims, repeated requests of waits, owed releases. One timer
// runs them: there is no goroutine while nothing is due. Requests that are due together go out in one pipeline.

// maxBatch is the greatest number of requests in a pipeline.
const maxBatch = 1000

// errand is a request of a hold that is due.
type errand struct {
	h *hold
	// done is called with the answer, while the client is locked.
	done func(h *hold, e *errand, n int64, err error)
	cmd  once
	// conn is the connection of an ephemeral hold. nil: one of the pool.
	conn *ownConn
	sent instant
	// lease of an EXTEND; the number of the call of an ACQUIRE.
	lease time.Duration
	call  int
}

// schedule has the holds that have something to do, the earliest first: a heap.
type schedule []*hold

func (s schedule) less(i, j int) bool { return s[i].due < s[j].due }

func (s schedule) swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i+1, j+1
}

func (s schedule) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !s.less(i, parent) {
			return
		}
		s.swap(i, parent)
		i = parent
	}
}

func (s schedule) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s); child++ {
			if s.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

// set schedules the hold for this time, in place of any earlier choice.
func (s *schedule) set(h *hold, due instant) {
	h.due = due
	if h.place == 0 {
		*s = append(*s, h)
		h.place = len(*s)
	}
	s.up(h.place - 1)
	s.down(h.place - 1)
}

// remove takes the hold out.
func (s *schedule) remove(h *hold) {
	if h.place == 0 {
		return
	}
	i, last := h.place-1, len(*s)-1
	s.swap(i, last)
	(*s)[last] = nil
	*s = (*s)[:last]
	h.place = 0
	if i < last {
		s.up(i)
		s.down(i)
	}
}

// unlock sets the timer, unlocks the client, and calls the functions of after.
func (c *Client) unlock() {
	if len(c.due) > 0 && c.due[0].due < c.armed {
		c.armed = c.due[0].due
		left := max(c.armed.sub(now()), 0)
		if c.timer == nil {
			c.timer = time.AfterFunc(left, c.run)
		} else {
			c.timer.Reset(left)
		}
	}
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// run sends all requests that are due.
func (c *Client) run() {
	c.mu.Lock()
	c.armed = never
	at := now()
	var batch []*errand
	for len(c.due) > 0 && c.due[0].due <= at {
		h := c.due[0]
		c.due.remove(h)
		if e := h.wake(at); e != nil {
			batch = append(batch, e)
		}
	}
	if due := c.toWatch; len(due) > 0 {
		c.toWatch = nil
		go c.watch(due)
	}
	c.unlock()
	c.send(batch)
}

// send sends the requests, and handles their answers. The requests to one server form a pipeline.
func (c *Client) send(batch []*errand) {
	ctx := context.Background()
	shared := batch[:0:0]
	for _, e := range batch {
		if e.conn != nil {
			// Its connection may be busy.
			go c.sendTo(ctx, c.rdb, []*errand{e})
		} else {
			shared = append(shared, e)
		}
	}
	batch = shared
	cluster, _ := c.rdb.(*redis.ClusterClient)
	if cluster == nil || len(batch) < 2 {
		c.sendTo(ctx, c.rdb, batch)
		return
	}
	nodes := map[*redis.Client][]*errand{}
	for _, e := range batch {
		// A nil node stands for an unknown one.
		node, _ := cluster.MasterForKey(ctx, e.h.key)
		nodes[node] = append(nodes[node], e)
	}
	// A node that does not answer must not delay the others.
	var group sync.WaitGroup
	for node, batch := range nodes {
		group.Add(1)
		go func() {
			defer group.Done()
			if node == nil {
				for _, e := range batch {
					c.sendTo(ctx, c.rdb, []*errand{e})
				}
				return
			}
			c.sendTo(ctx, node, batch)
		}()
	}
	group.Wait()
}

func (c *Client) sendTo(ctx context.Context, server redis.Cmdable, batch []*errand) {
	for len(batch) > 0 {
		part := batch[:min(len(batch), maxBatch)]
		batch = batch[len(part):]
		if len(part) == 1 {
			part[0].sent = now()
			c.process(ctx, part[0].conn, part[0].cmd)
		} else {
			c.pipeline(ctx, server, part)
			if c.atReplica(part[0].cmd.Err()) {
				// The others follow once the first one has found a connection to a master.
				part[0].sent = now()
				if !redis.IsReadOnlyError(c.process(ctx, nil, part[0].cmd)) {
					c.pipeline(ctx, server, part[1:])
				}
			}
			for _, e := range part {
				if isRedirect(e.cmd.Err()) {
					// The server has done nothing. The cluster client follows the redirect.
					c.process(ctx, nil, e.cmd)
				}
			}
		}
		c.mu.Lock()
		for _, e := range part {
			n, err := e.cmd.Result()
			e.done(e.h, e, n, err)
		}
		c.unlock()
	}
}

func (c *Client) pipeline(ctx context.Context, server redis.Cmdable, part []*errand) {
	at := now()
	pipe := server.Pipeline()
	for _, e := range part {
		e.sent = at
		pipe.Process(ctx, e.cmd)
	}
	pipe.Exec(ctx) // the error of each command is in the command
	c.readMap(part[0].cmd.Err())
}

// process sends a request over this connection, which follows no redirect, or over one of the pool. If a replica refuses
// it, the address may lead to a new master, but the connections of the pool still to the former one. go-redis closes one
// for each refusal. So process sends the request again as often as the pool has idle connections, and once over a new
// one.
func (c *Client) process(ctx context.Context, conn *ownConn, cmd redis.Cmder) error {
	if conn != nil {
		err := conn.use(func(conn *redis.Conn) error { return conn.Process(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
	err := c.rdb.Process(ctx, cmd)
	if c.atReplica(err) {
		for left := c.rdb.PoolStats().IdleConns + 1; left > 0 && redis.IsReadOnlyError(err); left-- {
			again := c.rdb.Process(ctx, cmd)
			if kindOf(again) == unsent {
				cmd.SetErr(err) // a server was found
				break
			}
			err = again
		}
	}
	c.readMap(err)
	if _, cluster := c.rdb.(*redis.ClusterClient); cluster && isRedirect(err) {
		err = tryAgain{err}
		cmd.SetErr(err)
	}
	return err
}

// atReplica returns whether a replica has refused a request. The subscription may be at a replica, too: it is renewed.
func (c *Client) atReplica(err error) bool {
	if !redis.IsReadOnlyError(err) {
		return false
	}
	c.mu.Lock()
	c.moved()
	c.unlock()
	return true
}

// tryAgain is the reply TRYAGAIN in place of a redirect that the cluster client no longer follows: while a slot moves,
// two nodes can name each other, and the client stops after a few redirects.
type tryAgain struct{ redirect error }

func (e tryAgain) Error() string { return "TRYAGAIN " + e.redirect.Error() }
func (tryAgain) RedisError()     {}

// readMap lets a cluster client read the map of the slots again after a request without an answer: a replica may have
// been promoted. By itself, go-redis reads it every 10 s, and after redirects.
func (c *Client) readMap(err error) {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		if what := kindOf(err); what == unsent || what == unanswered {
			cluster.ReloadState(context.Background())
		}
	}
}

func isRedirect(err error) bool {
	if err == nil || err == redis.Nil {
		return false
	}
	word := firstWord(err)
	return word == "MOVED" || word == "ASK"
}
