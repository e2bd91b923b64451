package dlock

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// keep is the time that the server retains a queue position after each request for it.
	keep = 10 * time.Second
	// pollPause is the pause between two requests of a wait that receives no messages.
	pollPause = 250 * time.Millisecond
	// subscribing is the longest delay of a first request because the subscription is not there yet.
	subscribing = time.Second
	// silence is the time without a message after which the subscription is checked.
	silence = 3 * time.Second
	// linger is the time that the subscription outlasts the last wait.
	linger = 200 * time.Millisecond
	// contendedFor is the time for which a lock that was found taken counts as contended: the next acquisition of it
	// asks for a position at once.
	contendedFor = time.Second
	maxContended = 1000
	// idLength and secretLength are the lengths of the random parts of a message.
	idLength     = 11
	secretLength = 11
	maxFence     = 1<<53 - 1
)

// wait is the wait of a hold in the queue of the server.
type wait struct {
	// calls has each call that can still get a message, so none that the server has refused, and none that was
	// not sent.
	calls []call
	// call is the number of the last call.
	call int
	// grant is the number of the call that was granted by message, null that of the last one that was answered null.
	// 0: none.
	grant, null int
	keep        time.Duration
	// mute: the user has no right to the channel, so the request names none.
	mute bool
	// expects: a grant would come by message. The last answer was null, and since then no message has come, and the
	// subscription has not changed.
	expects bool
	// again: ask once more after the present request, because a message arrived meanwhile.
	again bool
	// downSince is the send time of the first request since the last answer. 0: the last request was answered.
	downSince instant
	late      int
	// lastErr is the last error of a request. The wait continues in spite of it.
	lastErr error
	// err ends the wait.
	err error
	// outcome receives once the wait has ended.
	outcome chan struct{}
}

// call is a request of a wait that may still be granted by message.
type call struct {
	number int
	// message has random parts of its own for each call, as the message of a grant publishes them.
	message callMessage
	// lease is the longest one of a grant by message, and until the end of its validity. It counts from before the call
	// was sent: the server knew the message only afterwards, so the hold began later.
	lease time.Duration
	until instant
}

func newSecret() string {
	var random [16]byte
	cryptorand.Read(random[:])
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// callMessage is the message of a call: "<id>.<call> <secret>". The server publishes the secret with a grant only. So
// another client cannot forge a grant from any other message that it has read.
type callMessage struct{ id, secret string }

func newCallMessage() callMessage {
	random := newSecret()
	return callMessage{random[:idLength], random[idLength:]}
}

func (m callMessage) of(call int) string { return m.id + "." + strconv.Itoa(call) + " " + m.secret }

// message is a message that ends a wait, as the server publishes it: "<id>.<call> <word> [<fence> <secret>]".
type message struct {
	id   string
	call int
	word string
	// fence is 0 if there is none.
	fence  int64
	secret string
}

// parseMessage reads a message. It returns false if this cannot be a message to a wait.
func parseMessage(text string) (message, bool) {
	if len(text) < idLength+3 || text[idLength] != '.' {
		return message{}, false
	}
	m := message{id: text[:idLength]}
	number, rest, found := strings.Cut(text[idLength+1:], " ")
	call, err := strconv.Atoi(number)
	if !found || err != nil || call < 1 || strconv.Itoa(call) != number {
		return message{}, false
	}
	m.call = call
	words := strings.Split(rest, " ")
	m.word = words[0]
	if m.word == "granted" && len(words) > 2 {
		m.fence, m.secret = parseFence(words[1]), words[2]
	}
	return m, true
}

// parseFence returns 0 for anything but a decimal number from 1 to 2^53 - 1.
func parseFence(text string) int64 {
	fence, err := strconv.ParseInt(text, 10, 64)
	if err != nil || fence < 1 || fence > maxFence || strconv.FormatInt(fence, 10) != text {
		return 0
	}
	return fence
}

// listener is the subscription of a client.
type listener struct {
	stop context.CancelFunc
	// restart closes the present connection.
	restart func()
	// subscribed: messages arrive. tried: the first attempt to subscribe has ended.
	subscribed, tried bool
	// misses: a message that the server must have sent has not come, nor has any other since then.
	misses bool
	idle   *time.Timer
}

// enqueue begins the wait of the hold. The client must be locked.
func (c *Client) enqueue(h *hold) {
	h.state = waiting
	at := now()
	h.wait = &wait{keep: keep, outcome: make(chan struct{}, 1)}
	c.join(h)
	if !c.listener.tried {
		at = at.add(subscribing)
	}
	c.due.set(h, at)
}

// join subscribes, if no other wait has done so.
func (c *Client) join(h *hold) {
	c.waits[h] = struct{}{}
	if c.listener == nil {
		ctx, stop := context.WithCancel(context.Background())
		c.listener = &listener{stop: stop}
		go c.listen(ctx, c.listener)
	}
}

// dequeue ends the wait of the hold. The client must be locked.
func (c *Client) dequeue(h *hold) {
	h.dropCalls(func(*call) bool { return true })
	c.part(h)
}

// dropCalls removes calls of the wait, as their messages can grant nothing any more.
func (h *hold) dropCalls(condition func(k *call) bool) {
	h.wait.calls = slices.DeleteFunc(h.wait.calls, func(k call) bool {
		gone := condition(&k)
		if gone {
			delete(h.c.calls, k.message.id)
		}
		return gone
	})
}

// part ends the subscription soon, unless another wait needs it.
func (c *Client) part(h *hold) {
	delete(c.waits, h)
	if l := c.listener; len(c.waits) == 0 && l != nil {
		if l.idle == nil {
			l.idle = time.AfterFunc(linger, func() { c.stopListening(l) })
		} else {
			l.idle.Reset(linger)
		}
	}
}

// stopListening ends the subscription unless a client waits.
func (c *Client) stopListening(l *listener) {
	c.mu.Lock()
	if c.listener == l && len(c.waits) == 0 {
		l.stop()
		c.listener = nil
	}
	c.unlock()
}

// listen receives the messages of all waits of the client.
func (c *Client) listen(ctx context.Context, l *listener) {
	defer l.stop()
	pause := 10 * time.Millisecond
	for ctx.Err() == nil {
		began := now()
		c.receive(ctx, l)
		c.mu.Lock()
		l.subscribed, l.tried, l.misses, l.restart = false, true, false, nil
		c.wakeAll(100 * time.Millisecond)
		c.unlock()
		if now().sub(began) > silence {
			pause = 10 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// wakeAll lets every wait ask, spread over this time. The client must be locked.
func (c *Client) wakeAll(spread time.Duration) {
	at := now()
	for h := range c.waits {
		if h.state == waiting {
			h.wait.expects = false
		}
		if h.state == waiting && h.asks == 0 {
			c.due.set(h, at.add(time.Duration(rand.Int64N(int64(spread)+1))))
		}
		h.wakeUpgrade()
	}
}

// receive subscribes and receives until the connection breaks or ctx is done.
func (c *Client) receive(ctx context.Context, l *listener) {
	pubsub := c.rdb.Subscribe(ctx)
	defer pubsub.Close()
	// Receiving ends when the connection is closed.
	defer context.AfterFunc(ctx, func() { pubsub.Close() })()
	if err := pubsub.Subscribe(ctx, c.channel); err != nil {
		c.readMap(err)
		return
	}
	c.mu.Lock()
	l.restart = func() { pubsub.Close() }
	c.unlock()
	receiveAll(ctx, pubsub, func(received any) {
		c.mu.Lock()
		switch received := received.(type) {
		case *redis.Subscription:
			l.subscribed, l.tried = true, true
			// Messages that were published before the subscription are lost.
			c.wakeAll(0)
		case nil:
			if l.misses {
				// The subscription may be at a former master, to which the address led before.
				c.moved()
			}
		case *redis.Message:
			l.misses = false
			c.hear(received.Payload)
		}
		c.unlock()
	})
}

// hear handles a message of the channel. Only the first one of a call counts, as a stranger can repeat it.
func (c *Client) hear(payload string) {
	if m, ok := parseMessage(payload); ok {
		if h := c.calls[m.id]; h != nil {
			delete(c.calls, m.id)
			h.receive(m)
		}
	}
}

// receiveOne receives a message. go-redis panics at an impossible answer; receiveOne returns an error instead.
func receiveOne(ctx context.Context, pubsub *redis.PubSub) (received any, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = misuse("the answer of the server is not understood: %v", why)
		}
	}()
	return pubsub.ReceiveTimeout(ctx, silence)
}

// receiveAll receives until the connection breaks or is silent, or ctx is done. It handles nil if nothing has come for a
// while.
func receiveAll(ctx context.Context, pubsub *redis.PubSub, handle func(received any)) error {
	for pinged := false; ; {
		received, err := receiveOne(ctx, pubsub)
		var timeout net.Error
		switch {
		case err == nil:
			pinged = false
			handle(received)
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged && ctx.Err() == nil:
			pinged = true
			handle(nil)
			if err := pubsub.Ping(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// moved renews the subscription: the server of its connection may be no master any more.
func (c *Client) moved() {
	if l := c.listener; l != nil && l.restart != nil {
		restart := l.restart
		l.restart = nil
		c.after = append(c.after, func() { go restart() })
	}
}

// noteTaken remembers that the lock is contended.
func (c *Client) noteTaken(key string) {
	if len(c.contended) >= maxContended {
		clear(c.contended)
	}
	c.contended[key] = now().add(contendedFor)
}

// receive handles a message of a call of this wait. The client is locked.
func (h *hold) receive(m message) {
	w := h.wait
	h.wakeUpgrade()
	if h.state != waiting {
		return
	}
	i := slices.IndexFunc(w.calls, func(k call) bool { return k.message.id == m.id && k.number == m.call })
	if i < 0 {
		return
	}
	w.expects = false
	switch m.word {
	case "granted":
		// After a null to a later call, the grant has ended, or the server has read this call after the later one. A grant
		// that is not claimed ends without the delay; that of an ephemeral hold is claimed by bind. The next request shows
		// which hold there is, and claims it.
		own, at := w.calls[i], now()
		isHold := own.number >= w.null && own.until.sub(at) > own.lease/4 && (h.o.delay == 0 || h.o.ephemeral)
		if isHold && m.fence != 0 && m.secret == own.message.secret {
			w.grant = m.call
			h.begin(m.fence, at, own.until)
			h.claimAt = at.add(claimDelay)
			h.plan()
			return
		}
	case "cancelled":
		h.fail(&NotAcquiredError{Key: h.key, Err: errCancelled})
		return
	case "refused":
		h.c.moved()
	}
	h.askSoon(0)
}

var errCancelled = errors.New("an operator cancelled the wait")

// askSoon sends the next request after the pause, or right after the answer to the present one.
func (h *hold) askSoon(pause time.Duration) {
	if h.asks > 0 {
		h.wait.again = true
		return
	}
	h.c.due.set(h, now().add(pause))
}

// fail ends the wait with an error. The caller of Acquire cleans up.
func (h *hold) fail(err error) {
	h.wait.err = err
	h.c.due.remove(h)
	h.signal()
}

func (h *hold) signal() {
	select {
	case h.wait.outcome <- struct{}{}:
	default:
	}
}

// ask returns the next request of the wait.
func (h *hold) ask() *errand {
	w := h.wait
	w.call++
	w.again = false
	h.asks++
	args := h.acquireArgs(5)
	args = append(args, "QUEUE", w.keep.Milliseconds())
	if !w.mute {
		m, at := newCallMessage(), now()
		args = append(args, "NOTIFY", h.c.channelArg, m.of(w.call))
		// A call beyond its validity can grant nothing any more.
		h.dropCalls(func(k *call) bool { return k.until <= at })
		// A hold reads no messages.
		if h.state == waiting {
			lease := min(h.lease, w.keep)
			w.calls = append(w.calls, call{w.call, m, lease, at.add(validity(lease))})
			h.c.calls[m.id] = h
		}
	}
	return &errand{h: h, cmd: newOnce(context.Background(), args), call: w.call, done: (*hold).asked}
}

// asked handles the answer to a request of the wait. The client is locked.
func (h *hold) asked(e *errand, n int64, err error) {
	h.asks--
	defer h.noteQuiet()
	err = checkFence(n, err)
	switch kindOf(err) {
	case unanswered:
		h.noteUnanswered()
	case null:
		h.wait.null = max(h.wait.null, e.call)
	case refused, notNow, unsent, busy:
		// The server does not know the message. Those of earlier calls can still arrive.
		h.dropCalls(func(k *call) bool { return k.number == e.call })
	}
	switch h.state {
	case owed:
		h.undoLate()
	case holding:
		h.claimed(e, n, err)
	case waiting:
		h.answeredInWait(e, n, err)
	}
}

// noteGrant notes that an answer tells of a grant. If a message should have told of it, the subscription may be at another
// server.
func (h *hold) noteGrant() {
	if w, l := h.wait, h.c.listener; w != nil && w.expects && l != nil {
		w.expects, l.misses = false, true
	}
}

// noteUnanswered notes that an ACQUIRE has no answer. The server may execute it later: then it sets the lease, or takes
// a position.
func (h *hold) noteUnanswered() {
	h.orphan = true
	h.shortest = min(h.shortest, h.o.ttl)
}

// claimed handles the answer to a claim, or to an earlier request of the wait, after a message has begun the hold.
func (h *hold) claimed(e *errand, n int64, err error) {
	switch what := kindOf(err); {
	case what == answered && n == h.fence:
		h.confirm(e.sent, h.o.ttl)
	case what == answered, what == null:
		// Up to the call of the message, a lower fence or null may be an answer from before the grant.
		if n > h.fence || e.call > h.wait.grant {
			h.loseAndRelease()
		}
	default:
		h.failure = err
		// EXTEND claims where the server is out of memory.
		h.extendClaims = what == notNow && firstWord(err) == "OOM"
		if what != unanswered {
			h.adapt(err)
		}
		if h.claimAt != 0 {
			h.claimAt = min(h.claimAt, h.retryAt(what))
			h.plan()
		}
	}
}

// answeredInWait handles the answer to a request during the wait.
func (h *hold) answeredInWait(e *errand, n int64, err error) {
	w, what := h.wait, kindOf(err)
	switch what {
	case answered:
		h.noteGrant()
		w.lastErr = nil
		if at, until := now(), e.sent.add(validity(h.lease)); at < until {
			h.begin(n, at, until)
			h.plan()
			return
		}
		if w.late++; w.late == maxLate {
			h.fail(errLate(h.key))
			return
		}
		w.again = true
	case null:
		w.downSince, w.lastErr = 0, nil
		w.expects = !w.mute && h.c.listener != nil && h.c.listener.subscribed
		h.c.noteTaken(h.key)
	case notNow:
		w.downSince, w.lastErr = 0, err
	case refused:
		w.downSince = 0
		if !h.adapt(err) {
			if h.pauseFor(err) {
				return
			}
			h.fail(refusal(h.key, err))
			return
		}
		w.again = true
	case busy:
		w.lastErr = err
		h.c.due.set(h, whenRoom())
		return
	default:
		w.lastErr = err
		if w.downSince == 0 {
			w.downSince = e.sent
		}
		if now().sub(w.downSince) > keep {
			h.fail(explain(h.key, err))
			return
		}
	}
	h.askNext(e.sent)
}

// askNext schedules the next request of the wait, after one that was sent at this time.
func (h *hold) askNext(sent instant) {
	w := h.wait
	switch {
	case w.again:
		h.c.due.set(h, now())
	case w.lastErr != nil:
		h.c.due.set(h, together(h.c.outagePause()))
	case w.mute || h.c.listener == nil || !h.c.listener.subscribed:
		h.c.due.set(h, now().add(pollPause))
	default:
		// A message counts from the send of its call. A third of the lease later, enough validity is left.
		h.c.due.set(h, sent.add(max(min(w.keep, h.lease), 1500*time.Millisecond)/3))
	}
}

// outagePause returns the pause before a request of a waiting caller that the server could not answer is repeated: about
// 100 ms. It grows to 1 s with the number of waits and owed releases, so that a thousand or more of them together send
// about 10,000 requests a second. It is random, as their requests fail together. The client must be locked.
func (c *Client) outagePause() time.Duration {
	pause := time.Duration(len(c.waits)+len(c.debts)) * 100 * time.Microsecond
	pause = min(max(pause, 100*time.Millisecond), time.Second)
	return pause/2 + rand.N(pause)
}

const (
	// maxLate grants that arrive after the end of their lease fail the acquisition.
	maxLate = 3
	// graceCheck is the longest pause between two requests in a grace period: an operator can end it early.
	graceCheck = 2 * time.Second
)

func errLate(key string) error {
	return misuse("%q: each grant arrived after the end of its lease: the TTL is too short for this server", key)
}

// adapt changes the request if that may avoid this refusal. It returns false if it does not.
func (h *hold) adapt(err error) bool {
	w := h.wait
	switch word := firstWord(err); {
	case word == "NOPERM" && w != nil && !w.mute:
		// The user may have no right to the channel: the wait continues without messages.
		w.mute = true
	case word == "ERR" && w != nil && w.keep > h.lease:
		// keep may exceed the server's dlock.max-ttl, but a valid lease does not.
		w.keep = h.lease
	case word == "DEADLOCK" && !h.nameless && isOwnDeadlock(err) && h.c.owned[owned{h.key, h.o.owner}] == 0:
		// The owner does not hold this lock, so this is an earlier hold or position of it that has not ended yet.
		h.nameless = true
	default:
		return false
	}
	return true
}

// isOwnDeadlock returns whether the error is "DEADLOCK x -> x". The owner x may have any name.
func isOwnDeadlock(err error) bool {
	_, cycle, _ := strings.Cut(replyOf(err), " ")
	half := max(len(cycle)-len(" -> "), 0) / 2
	return cycle == cycle[:half]+" -> "+cycle[:half]
}

// pauseFor lets the wait continue after the grace period, if this is the reason of the refusal.
func (h *hold) pauseFor(err error) bool {
	if firstWord(err) != "GRACE" {
		return false
	}
	var grace *GraceError
	errors.As(refusal(h.key, err), &grace)
	if h.deadline != 0 && now().add(grace.Left) > h.deadline {
		return false
	}
	h.wait.lastErr = grace
	h.c.due.set(h, now().add(min(grace.Left, graceCheck)))
	return true
}
