package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/bsm/redislock"
	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Histories of many clients under faults, checked for linearizability. DLOCK_SECONDS is their length.

func historySeconds() time.Duration {
	if seconds, err := strconv.ParseFloat(os.Getenv("DLOCK_SECONDS"), 64); err == nil {
		return time.Duration(seconds * float64(time.Second))
	}
	return 4 * time.Second
}

// An input is an operation on one lock. A hold begins by a grant, and ends by a leave: its release, or the moment in
// which its client counted its validity as ended.
type input struct {
	grant bool
	fence int64
}

// lockModel is an exclusive lock with fences: at most one holder, and each fence greater than the one before.
var lockModel = porcupine.Model{
	Init: func() any { return [2]int64{} }, // the holder's fence, or 0; the greatest fence
	Step: func(state, in, out any) (bool, any) {
		s, op := state.([2]int64), in.(input)
		if op.grant {
			return s[0] == 0 && op.fence > s[1], [2]int64{op.fence, op.fence}
		}
		return s[0] == op.fence, [2]int64{0, s[1]}
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v", in) },
}

type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
}

func (h *history) at() int64 { return int64(time.Since(h.began)) }

func (h *history) add(client int, in input, call, end int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Return: end})
}

// grants returns how many holds have ended.
func (h *history) grants() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops) / 2
}

func (h *history) check(t *testing.T, least int) {
	t.Helper()
	grants := 0
	for _, op := range h.ops {
		if op.Input.(input).grant {
			grants++
		}
	}
	if grants < least {
		t.Fatalf("only %d grants", grants)
	}
	if result := porcupine.CheckOperationsTimeout(lockModel, h.ops, time.Minute); result != porcupine.Ok {
		t.Fatalf("%d operations: %s", len(h.ops), result)
	}
	t.Logf("%d grants are linearizable", grants)
}

// contend acquires and releases until stop is closed, and writes the history. A hold counts from some moment during
// Acquire until some moment between the last time at which it was certainly valid and the answer to its release.
func contend(client int, c *dlock.Client, key string, h *history, stop <-chan struct{}, opts ...dlock.Option) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		limit, cancel := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(time.Second))))
		called := h.at()
		hold, err := c.Acquire(limit, key, opts...)
		cancel()
		if err != nil {
			time.Sleep(time.Duration(rand.Int64N(int64(ms(5)))))
			continue
		}
		granted := h.at()
		if rand.IntN(2) == 0 {
			time.Sleep(time.Duration(rand.Int64N(int64(ms(3)))))
		}
		// From here on the client no longer relies on the hold. While it did, it was valid: read the clock first.
		leaving := h.at()
		valid := hold.Valid()
		err = hold.Release(ctx)
		if valid == 0 {
			// It was lost before: the hold was relied on until an unknown moment after the grant.
			leaving = granted
		}
		h.add(client, input{true, hold.Fence()}, called, granted)
		h.add(client, input{false, hold.Fence()}, leaving, h.at())
		if err != nil && !errors.Is(err, dlock.ErrNoAnswer) && !errors.Is(err, dlock.ErrLost) && !isServerError(err) {
			return err
		}
	}
}

func isServerError(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// TestHistoriesAreLinearizable: contenders over cut connections, kill -9, AOF rewrites and pauses of the server, with
// appendfsync always.
func TestHistoriesAreLinearizable(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		s := testserver.Start(program, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
		defer s.Stop()
		proxy := testserver.NewProxy(s)
		defer proxy.Close()
		h := &history{began: time.Now()}
		stop := make(chan struct{})
		var group sync.WaitGroup
		var clients []*dlock.Client
		for i := range 6 {
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: 300 * time.Millisecond, DialTimeout: time.Second, DialerRetries: 1})
			defer rdb.Close()
			c := dlock.New(rdb, dlock.TTL(time.Second))
			clients = append(clients, c)
			for j := range 3 {
				group.Add(1)
				go func() {
					defer group.Done()
					if err := contend(3*i+j, c, "history", h, stop); err != nil {
						t.Error(err)
					}
				}()
			}
		}
		direct := s.Client()
		defer direct.Close()
		faults := 0
		for end := time.Now().Add(historySeconds()); time.Now().Before(end) || h.grants() < 20 && !t.Failed(); faults++ {
			time.Sleep(time.Duration(rand.Int64N(int64(ms(250)))))
			switch rand.IntN(6) {
			case 0, 1:
				proxy.Drop()
			case 2:
				proxy.CutReply([]string{"ACQUIRE", "RELEASE", "EXTEND", "SUBSCRIBE"}[rand.IntN(4)])
			case 3:
				direct.BgRewriteAOF(ctx)
			case 4:
				s.Pause()
				time.Sleep(time.Duration(rand.Int64N(int64(ms(1500)))))
				s.Continue()
			case 5:
				s.Kill()
				s.Restart()
			}
		}
		close(stop)
		group.Wait()
		for _, c := range clients {
			closing, cancel := context.WithTimeout(ctx, testserver.Limit)
			if err := c.Close(closing); err != nil {
				t.Error(err)
			}
			cancel()
		}
		t.Logf("%d faults", faults)
		h.check(t, 20)
		testserver.Until(t, "the lock is free in the end", func() bool {
			seen, err := dlock.New(direct).Inspect(ctx, "history")
			return err == nil && seen == nil
		})
	})
}

// TestAMixedFleetNeverHasTwoHolders: bsm/redislock and redsync lock beside this client, under dlock.honour-strings.
func TestAMixedFleetNeverHasTwoHolders(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		s := testserver.Start(program, "--dlock.honour-strings", "yes")
		defer s.Stop()
		rdb := s.Client()
		defer rdb.Close()
		var mu sync.Mutex
		holder, held := "", map[string]int{}
		enter := func(kind string) {
			mu.Lock()
			defer mu.Unlock()
			if holder != "" {
				t.Errorf("%s holds the lock beside %s", kind, holder)
			}
			holder = kind
			held[kind]++
		}
		leave := func() {
			mu.Lock()
			defer mu.Unlock()
			holder = ""
		}
		const key, ttl = "fleet", 20 * time.Second
		c := dlock.New(rdb, dlock.TTL(ttl))
		peer := redislock.New(rdb)
		peers := redsync.New(goredis.NewPool(rdb))
		acquire := map[string]func() func() error{
			"dlock": func() func() error {
				h, err := c.Acquire(limited(t), key)
				if err != nil {
					t.Error(err)
					return nil
				}
				return func() error { return h.Release(ctx) }
			},
			"redislock": func() func() error {
				l, err := peer.Obtain(limited(t), key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(ms(1))})
				if redis.HasErrorPrefix(err, "WRONGTYPE") {
					return nil // it reads the key as a string, and does not retry: see docs/moving.md
				}
				if err != nil {
					t.Error(err)
					return nil
				}
				return func() error { return l.Release(ctx) }
			},
			"redsync": func() func() error {
				m := peers.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(100), redsync.WithRetryDelay(ms(1)))
				if err := m.LockContext(limited(t)); err != nil {
					if taken := new(redsync.ErrTaken); !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
						t.Error(err)
					}
					return nil // starves while clients of dlock queue
				}
				return func() error { _, err := m.UnlockContext(ctx); return err }
			},
		}
		var group sync.WaitGroup
		stop := make(chan struct{})
		for kind := range acquire {
			for range 2 {
				group.Add(1)
				go func() {
					defer group.Done()
					for {
						select {
						case <-stop:
							return
						default:
						}
						release := acquire[kind]()
						if release == nil {
							continue
						}
						enter(kind)
						time.Sleep(time.Duration(rand.Int64N(int64(ms(1)))))
						leave()
						if err := release(); err != nil {
							t.Error(kind, err)
						}
						time.Sleep(time.Duration(rand.Int64N(int64(ms(10)))))
					}
				}()
			}
		}
		time.Sleep(historySeconds() / 2)
		testserver.Until(t, "each kind has held the lock", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return held["dlock"] > 10 && held["redislock"] > 0 && held["redsync"] > 0
		})
		close(stop)
		group.Wait()
		t.Log(strings.TrimPrefix(fmt.Sprint(held), "map"))
	})
}

func TestTheModelFindsTwoHolders(t *testing.T) {
	hold := func(fence, called, granted, leaving, left int64) []porcupine.Operation {
		return []porcupine.Operation{
			{Input: input{true, fence}, Call: called, Return: granted},
			{Input: input{false, fence}, Call: leaving, Return: left},
		}
	}
	for _, c := range []struct {
		name   string
		first  []porcupine.Operation
		second []porcupine.Operation
		want   bool
	}{
		{"in turn", hold(1, 0, 1, 2, 3), hold(2, 0, 5, 6, 7), true},
		{"the release may have come first", hold(1, 0, 1, 2, 5), hold(2, 0, 4, 6, 7), true},
		{"two holders", hold(1, 0, 1, 6, 7), hold(2, 2, 3, 4, 5), false},
		{"a fence that falls", hold(2, 0, 1, 2, 3), hold(1, 4, 5, 6, 7), false},
	} {
		if porcupine.CheckOperations(lockModel, append(c.first, c.second...)) != c.want {
			t.Error(c.name)
		}
	}
}
