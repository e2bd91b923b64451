package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

func TestTheMessageIsTheGrant(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		first := s.acquire()
		granted := s.waiting(s.c)
		before := calls(s.rdb, "dlock.acquire")
		s.release(first)
		h := <-granted
		if asked := calls(s.rdb, "dlock.acquire") - before; asked != 0 {
			t.Fatalf("%d more requests before the hold", asked)
		}
		// Until the claim is answered, only the rest of the position counts. The claim sets the full lease.
		s.until("the claim sets the full lease", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			left, err := s.c.Left(ctx, s.key)
			return err == nil && left > 20_000_000_000 && h.Valid() > 20_000_000_000
		})
		s.release(h)
	})
}

// A grant that is not claimed ends without a delay. So a lock with a delay is held from the answer to the claim on: the
// lock then stays closed after the death of the holder.
func TestALockWithADelayIsHeldOnceItsClaimIsAnswered(t *testing.T) {
	for what, opts := range map[string][]dlock.Option{"plain": nil, "ephemeral": {dlock.Ephemeral()}} {
		onEach(t, func(t *testing.T, f *fixture) {
			rdb := redis.NewClient(&redis.Options{Addr: f.s.Addr(), ReadTimeout: testserver.Limit, MaxRetries: -1})
			defer rdb.Close()
			var armed atomic.Bool
			claiming, pass := make(chan struct{}, 1), make(chan struct{})
			hook := before(func(cmd redis.Cmder) error {
				if armed.Load() && strings.EqualFold(cmd.Name(), "dlock.acquire") {
					select {
					case claiming <- struct{}{}:
					default:
					}
					<-pass
				}
				return nil
			})
			rdb.AddHook(&hook)
			c := dlock.New(rdb)
			first := f.acquire()
			type held struct {
				h     *dlock.Hold
				valid time.Duration
			}
			granted := make(chan held, 1)
			go func() {
				h, err := c.Acquire(limited(t), f.key, append(opts, dlock.Delay(time.Minute))...)
				if err != nil {
					t.Error(what, err)
					granted <- held{}
					return
				}
				granted <- held{h, h.Valid()}
			}()
			f.until("it waits", func() bool { return f.queued() == 1 })
			armed.Store(true)
			f.release(first)
			f.hasMode("exclusive", 1, 0)
			<-claiming
			if len(granted) > 0 {
				t.Error(what, "nothing is claimed yet")
			}
			close(pass)
			got := <-granted
			// Without the claim, only the rest of the position counts, which is 10 s.
			if got.h == nil || got.valid < 20*time.Second {
				t.Fatal(what, got.valid)
			}
			f.release(got.h)
			f.close(c)
		})
	}
}

// The stranger reads and publishes on the channel of the client. It also reads the message of a grant that ends before
// the client can receive the message.
func TestAStrangerMakesNoClientBelieveThatItHolds(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		proxy, c := s.proxied(testserver.Limit)
		first := s.acquire()
		granted := s.waiting(c, dlock.TTL(3*time.Second))
		channel := ""
		s.until("it waits for messages", func() bool {
			if channels := s.rdb.PubSubChannels(ctx, "dlock:*").Val(); len(channels) == 1 {
				channel = channels[0]
			}
			return channel != ""
		})
		stranger := s.rdb.Subscribe(ctx, channel)
		defer stranger.Close()
		if _, err := stranger.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		// forge publishes grants until the client has sent two more requests.
		forge := func(id, secret string) {
			t.Helper()
			asked := calls(s.rdb, "dlock.acquire")
			s.until("it asks again", func() bool {
				for call := range 20 {
					s.rdb.Publish(ctx, channel, fmt.Sprintf("%s.%d granted 77 %s", id, call+1, secret))
				}
				return calls(s.rdb, "dlock.acquire") > asked+1
			})
			if len(granted) > 0 {
				t.Fatalf("it believes a message with %q and %q: fence %d", id, secret, (<-granted).Fence())
			}
		}
		waiters, err := s.c.Waiters(ctx, s.key, 1)
		if err != nil {
			t.Fatal(err)
		}
		forge(waiters[0].Token, "")
		forge(strings.TrimPrefix(channel, "dlock:"), "")

		proxy.Silent(true)
		next := func() error { return s.rdb.Do(ctx, "DLOCK.ACQUIRE", s.key, "next", 600_000, "QUEUE", 600_000).Err() }
		next()
		s.release(first)
		id, secret, seen := "", "", int64(0)
		for seen == 0 || seen == 77 {
			message, err := stranger.ReceiveMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var rest string
			if id, rest, _ = strings.Cut(message.Payload, "."); rest != "" {
				var call int
				secret = ""
				fmt.Sscanf(rest, "%d granted %d %s", &call, &seen, &secret)
			}
		}
		s.until("the grant lapses", func() bool { return next() == nil })
		proxy.Silent(false)
		forge(id, "")
		forge(id, secret)

		if err := s.rdb.Do(ctx, "DLOCK.RELEASE", s.key, "next").Err(); err != nil {
			t.Fatal(err)
		}
		h := <-granted
		if h.Fence() <= seen {
			t.Fatal(h.Fence(), seen)
		}
		s.release(h)
		s.close(c)
	})
}

func TestAThousandWaitsCostOneSubscription(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		const n = 1000
		first := s.acquire()
		var group sync.WaitGroup
		for range n {
			group.Add(1)
			go func() {
				defer group.Done()
				h, err := s.c.Acquire(limited(t), s.key)
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.Release(ctx); err != nil {
					t.Error(err)
				}
			}()
		}
		s.until("all wait", func() bool {
			seen, err := s.c.Inspect(ctx, s.key)
			return err == nil && seen.Waiters == n
		})
		if channels := s.rdb.PubSubChannels(ctx, "dlock:*").Val(); len(channels) != 1 || s.rdb.PubSubNumSub(ctx, channels[0]).Val()[channels[0]] != 1 {
			t.Fatal(fmt.Sprint(channels))
		}
		s.release(first)
		group.Wait()
	})
}

// The release uses another connection than the claim, and the answer to the claim arrives first.
func TestAReleaseDuringTheClaimReportsNoLoss(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		proxy, c := s.proxied(testserver.Limit)
		for range 3 {
			first := s.acquire()
			granted := s.waiting(c)
			before := calls(s.rdb, "dlock.acquire")
			proxy.Delay(ms(50))
			s.release(first)
			h := <-granted
			s.until("the claim is under way", func() bool { return calls(s.rdb, "dlock.acquire") > before })
			if err := h.Release(ctx); err != nil {
				t.Error(err)
			}
			proxy.Delay(0)
			s.close(c)
		}
	})
}

func TestWaitUntilFreeAcquiresNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, f *fixture) {
		waiting := func(key string) <-chan error {
			done := make(chan error, 1)
			go func() { done <- f.c.WaitUntilFree(limited(t), key) }()
			return done
		}
		if err := <-waiting(f.key); err != nil {
			t.Fatal(err)
		}
		h := f.acquire()
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("enough"))
		if err := f.c.WaitUntilFree(ended, f.key); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "enough") {
			t.Fatal(err)
		}
		before := calls(f.rdb, "dlock.inspect")
		done := waiting(f.key)
		f.until("it looks twice", func() bool { return calls(f.rdb, "dlock.inspect") > before+1 })
		f.release(h)
		if err := <-done; err != nil || !f.free() {
			t.Fatal(err)
		}
		f.rdb.HSet(ctx, f.key, "field", "data")
		if err := <-waiting(f.key); !errors.Is(err, dlock.ErrNotALock) {
			t.Fatal(err)
		}
	})
}

func TestWaitUntilFreeOutlastsALostReply(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		proxy.CutReply("INSPECT")
		if err := c.WaitUntilFree(limited(t), f.key); err != nil || proxy.Lost() != 1 {
			t.Fatal(err, proxy.Lost())
		}
	})
}

// The server knows the messages of the requests that it has carried out, and can grant by the last one of them.
func TestAGrantAfterManyRefusedRequestsArrives(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		op := dlock.New(s.s.Client())
		first, err := op.Acquire(ctx, s.key)
		if err != nil {
			t.Fatal(err)
		}
		granted := s.waiting(s.c)
		subscribed := func() bool { return len(s.rdb.PubSubChannels(ctx, "dlock:*").Val()) == 1 }
		s.until("it waits for messages", subscribed)
		s.rdb.ConfigSet(ctx, "maxmemory", "1")
		before := rejections(s.rdb, "dlock.acquire")
		s.rdb.ClientKillByFilter(ctx, "TYPE", "pubsub") // then each wait asks at once
		s.until("the server has refused six requests", func() bool {
			return rejections(s.rdb, "dlock.acquire") >= before+6 && subscribed()
		})
		s.release(first)
		h := <-granted
		s.until("the claim sets the full lease", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			return h.Valid() > 20*time.Second
		})
		s.rdb.ConfigSet(ctx, "maxmemory", "0")
		s.release(h)
	})
}

func TestAGrantWhileThePoolIsBusyArrives(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		rdb, c := s.pooled(1, time.Millisecond)
		first := s.acquire()
		granted := s.waiting(c)
		subscribed := func() bool { return len(s.rdb.PubSubChannels(ctx, "dlock:*").Val()) == 1 }
		s.until("it waits for messages", subscribed)
		taken := rdb.Conn()
		if err := taken.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		tries := rdb.PoolStats().Timeouts
		s.rdb.ClientKillByFilter(ctx, "TYPE", "pubsub") // then each wait asks at once
		s.until("six requests were not sent", func() bool { return rdb.PoolStats().Timeouts >= tries+6 && subscribed() })
		s.release(first)
		h := <-granted
		taken.Close()
		s.release(h)
	})
}

// Behind Sentinel and in a cluster, the master may have failed: see TestAWaitBeginsWhileTheMasterFailsOver.
func TestTheFirstRequestOfAWaitMustFindAServer(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c := dlock.New(rdb)
	_, acquired := c.Acquire(patient(t), "lock")
	_, delayed := c.Acquire(patient(t), "lock", dlock.AtLeast(time.Second))
	for _, err := range []error{acquired, delayed, c.WaitUntilFree(patient(t), "lock")} {
		if refused := new(net.OpError); !errors.As(err, &refused) || errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
}

// before is called before each request is sent. Its error takes the place of the request.
type before func(cmd redis.Cmder) error

func (f *before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := (*f)(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func TestAWaitOutlastsAnOutageAfterItsFirstRequest(t *testing.T) {
	for _, test := range []struct {
		command string
		opts    []dlock.Option
	}{{"dlock.acquire", nil}, {"dlock.release", []dlock.Option{dlock.AtLeast(time.Millisecond)}}} {
		onEach(t, func(t *testing.T, f *fixture) {
			rdb := redis.NewClient(&redis.Options{Addr: f.s.Addr(), ReadTimeout: testserver.Limit})
			defer rdb.Close()
			failures := []error{io.EOF, &net.OpError{Op: "dial", Err: io.EOF}, &net.OpError{Op: "dial", Err: io.EOF}}
			var mu sync.Mutex
			hook := before(func(cmd redis.Cmder) (err error) {
				mu.Lock()
				defer mu.Unlock()
				if len(failures) > 0 && strings.EqualFold(cmd.Name(), test.command) {
					err, failures = failures[0], failures[1:]
				}
				return err
			})
			rdb.AddHook(&hook)
			c := dlock.New(rdb)
			h, err := c.Acquire(limited(t), f.key, test.opts...)
			mu.Lock()
			left := failures
			mu.Unlock()
			if err != nil || len(left) > 0 {
				t.Fatal(err, left)
			}
			h.Release(ctx)
			f.close(c)
		})
	}
}

func TestAWaitThatIsCancelledBeforeItsRequestIsNotAcquired(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, test := range []struct {
			name, command string
			contended     bool
			opts          []dlock.Option
		}{
			{"first", "dlock.acquire", false, nil},
			{"contended", "dlock.acquire", true, nil},
			{"with AtLeast", "dlock.release", false, []dlock.Option{dlock.AtLeast(time.Millisecond)}},
		} {
			rdb := redis.NewClient(&redis.Options{Addr: f.s.Addr(), ReadTimeout: testserver.Limit})
			defer rdb.Close()
			waits, cancel := context.WithCancel(ctx)
			var armed atomic.Bool
			hook := before(func(cmd redis.Cmder) error {
				if armed.Load() && strings.EqualFold(cmd.Name(), test.command) {
					cancel()
				}
				return nil
			})
			rdb.AddHook(&hook)
			c := dlock.New(rdb)
			h := f.acquire()
			var other <-chan *dlock.Hold
			if test.contended {
				other = f.waiting(c) // the lock is contended, and messages arrive
				f.until("it waits for messages", func() bool {
					return len(f.rdb.PubSubChannels(ctx, "dlock:*").Val()) > 0
				})
			}
			armed.Store(true)
			_, err := c.Acquire(waits, f.key, test.opts...)
			if !errors.Is(err, dlock.ErrNotAcquired) || !errors.Is(err, context.Canceled) || errors.Is(err, dlock.ErrNoAnswer) {
				t.Error(test.name, err)
			}
			f.release(h)
			if other != nil {
				f.release(<-other)
			}
			f.close(c)
			f.mustBeFree()
		}
	})
}
