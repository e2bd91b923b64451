package dlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Two requests of one owed release can be under way when the server does not answer. Their failures are one outage.
func TestThePauseOfAnOwedReleaseDoublesOncePerOutage(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	c := New(rdb, TTL(24*time.Hour))
	h := c.newHold(context.Background(), "k", "t", c.defaults)
	h.state, h.owedUntil = owed, never
	failed := errors.New("no answer")
	for want := releasePause; want < 20*releasePause; want *= 2 {
		first, second := h.releaseAgain(now()), h.releaseAgain(now())
		h.releasedAgain(first, 0, failed)
		h.releasedAgain(second, 0, failed)
		if h.pause != want {
			t.Fatal(h.pause, want)
		}
	}
	for range 20 {
		h.releasedAgain(h.releaseAgain(now()), 0, failed)
	}
	if h.pause > 2*time.Second {
		t.Fatal("the lock stays closed for this time after the outage:", h.pause)
	}
}

// In an outage, a wait and a call of Release ask again soon, however long it lasts. Thousands of them stay spread, and
// send no more requests together than a hundred waits do.
func TestAnOutageIsNoticedSoonAfterItsEnd(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	down := errors.New("down")
	for waits, pause := range map[int]time.Duration{1: 100 * time.Millisecond, 5000: 500 * time.Millisecond, 100_000: time.Second} {
		c := New(rdb)
		for range waits {
			c.waits[&hold{}] = struct{}{}
		}
		waiter, releaser := c.newHold(context.Background(), "k", "t", c.defaults), c.newHold(context.Background(), "k", "t", c.defaults)
		waiter.state, waiter.wait = waiting, &wait{outcome: make(chan struct{}, 1)}
		releaser.state, releaser.owedUntil, releaser.awaited = owed, never, true
		least, most := never.sub(0), time.Duration(0)
		for range 100 {
			at := now()
			waiter.asks++
			waiter.asked(&errand{h: waiter, sent: at}, 0, down)
			releaser.releasedAgain(releaser.releaseAgain(at), 0, down)
			for _, h := range []*hold{waiter, releaser} {
				least, most = min(least, h.due.sub(at)), max(most, h.due.sub(now()))
			}
		}
		if least < pause/2 || most > pause*3/2+busyPause || most-least < pause/2 {
			t.Error(waits, least, most)
		}
	}
}

func TestTheTimeOfAHolderIsForPeople(t *testing.T) {
	for held, want := range map[time.Duration]string{
		0: "less than 0.001 s", 103 * time.Millisecond: "0.103 s", 12_345 * time.Millisecond: "12.3 s",
		time.Hour + 100*time.Millisecond: "3600 s",
	} {
		if text := (&Holder{Label: "job", Held: held}).String(); text != `held by "job" for `+want {
			t.Error(text)
		}
	}
}

// If only an answer tells of a grant, the subscription may be at another server, unless the client was not subscribed at
// the time of the grant.
func TestAGrantWithoutItsMessageIsNoted(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	null := func(h *hold) {
		h.asks++
		h.asked(&errand{h: h, sent: now()}, 0, redis.Nil)
	}
	for what, test := range map[string]struct {
		between func(h *hold)
		misses  bool
	}{
		"granted":         {null, true},
		"at once":         {func(*hold) {}, false},
		"a message came":  {func(h *hold) { null(h); h.receive(message{id: h.wait.calls[0].message.id, call: 1}) }, false},
		"another message": {func(h *hold) { null(h); h.receive(message{}) }, true},
		"not subscribed":  {func(h *hold) { null(h); h.c.wakeAll(0) }, false},
		"without a right": {func(h *hold) { h.wait.mute = true; null(h) }, false},
	} {
		for _, ends := range []bool{false, true} {
			c := New(rdb)
			c.mu.Lock() // the subscription of a wait that has ended is stopped by a timer
			c.listener = &listener{subscribed: true, stop: func() {}}
			h := c.newHold(context.Background(), "k", "t", c.defaults)
			h.state, h.wait = waiting, &wait{outcome: make(chan struct{}, 1)}
			h.wait.calls = []call{{number: 1, message: newCallMessage()}}
			c.waits[h] = struct{}{}
			test.between(h)
			if ends {
				// The release of a wait that has ended finds the hold.
				h.giveUp()
				h.releasedAgain(h.releaseAgain(now()), 1, nil)
			} else {
				h.asks++
				h.asked(&errand{h: h, sent: now()}, 7, nil)
			}
			if c.listener.misses != test.misses {
				t.Error(what, ends, c.listener.misses)
			}
			c.mu.Unlock()
		}
	}
}

// The server can read a call after a later one, if its connection was slow. It then grants by the message of that call.
// The later call was answered null, so the message shows no hold, but the wait asks at once. A second copy does nothing.
func TestTheGrantOfAnEarlierCallWakesTheWait(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for word, ends := range map[string]bool{"granted": false, "timeout": false, "refused": false, "cancelled": true} {
		c := New(rdb)
		c.listener = &listener{subscribed: true, stop: func() {}}
		h := c.newHold(context.Background(), "k", "t", c.defaults)
		h.state, h.wait = waiting, &wait{keep: keep, outcome: make(chan struct{}, 1)}
		null := func() {
			e := h.ask()
			e.sent = now()
			h.asked(e, 0, redis.Nil)
		}
		null()
		own := h.wait.calls[0].message
		null()
		publish := func() { c.hear(own.id + ".1 " + word + " 5 " + own.secret) }
		publish()
		if h.state != waiting || (h.wait.err != nil) != ends || !ends && h.due > now() {
			t.Error(word, h.state, h.wait.err, "it asks after", h.due.sub(now()))
		}
		null()
		if publish(); !ends && h.due < now().add(time.Second) {
			t.Error(word, "a copy makes it ask after", h.due.sub(now()))
		}
	}
}

func TestTheGrantOfAnEarlierCallWakesAnUpgrade(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: hostile(t, "$-1\r\n", ""), MaxRetries: -1, Protocol: 2})
	defer rdb.Close()
	c := New(rdb)
	c.listener = &listener{subscribed: true, stop: func() {}}
	h := c.newHold(context.Background(), "k", "t", c.defaults)
	c.mu.Lock()
	h.begin(1, now(), now().add(time.Hour))
	h.woken = make(chan struct{}, 1)
	c.unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- h.waitForUpgrade(ctx, ctx) }()
	seen := map[string]bool{}
	nextCall := func() (id string) {
		for id == "" {
			time.Sleep(time.Millisecond)
			c.mu.Lock()
			for known := range c.calls {
				if !seen[known] {
					id, seen[known] = known, true
				}
			}
			c.unlock()
		}
		return id
	}
	earlier := nextCall()
	c.mu.Lock()
	h.wakeUpgrade()
	c.unlock()
	last := nextCall()
	const rounds = 5
	begun := now()
	for range rounds {
		c.mu.Lock()
		c.hear(earlier + ".1 granted 5 x")
		c.unlock()
		earlier, last = last, nextCall()
	}
	if took := now().sub(begun); took >= rounds*keep/3 {
		t.Error("it asks by its clock only:", took)
	}
	cancel()
	<-done
	if len(c.calls) > 0 {
		t.Error("messages are left:", len(c.calls))
	}
}

// A stranger that has read a message of a grant can publish it again with another fence. The claim finds the difference.
func TestAClaimWithAnotherFenceEndsTheHold(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for _, test := range []struct {
		call  int
		fence int64
		lost  bool
	}{{3, 77, true}, {3, 1001, true}, {3, 1000, false}, {2, 999, false}, {2, 1001, true}} {
		c := New(rdb)
		h := c.newHold(context.Background(), "k", "t", c.defaults)
		h.wait = &wait{call: 3, grant: 2, outcome: make(chan struct{}, 1)}
		h.begin(1000, now(), now().add(time.Hour))
		h.asks = 1
		h.asked(&errand{h: h, call: test.call, sent: now()}, test.fence, nil)
		if (h.lost != nil) != test.lost {
			t.Error(test, h.lost)
		}
	}
}

func TestAWaitOutlastsAnOutageOfUpToTenSeconds(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	down := errors.New("down")
	for outage, ends := range map[time.Duration]bool{9 * time.Second: false, 11 * time.Second: true} {
		c := New(rdb)
		h := c.newHold(context.Background(), "k", "t", c.defaults)
		h.state, h.wait = waiting, &wait{call: 3, keep: keep, outcome: make(chan struct{}, 1)}
		at := now()
		c.listener = &listener{subscribed: true}
		for _, request := range []struct {
			sent instant
			err  error
		}{{at.add(-outage - 3*time.Second), redis.Nil}, {at.add(-outage), down}, {at, down}} {
			h.asks++
			h.asked(&errand{h: h, call: 3, sent: request.sent}, 0, request.err)
		}
		if (h.wait.err != nil) != ends {
			t.Error(outage, h.wait.err)
		}
	}
}

func TestAHoldAtAnUnknownNodeIsWatchedLater(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1})
	defer rdb.Close()
	c := New(rdb)
	h := c.newHold(context.Background(), "k", "t", c.defaults)
	h.begin(1, now(), now().add(time.Hour))
	h.watchAt = 0
	c.watch([]*hold{h})
	if h.watchAt == 0 {
		t.Error("it is never watched")
	}
}
