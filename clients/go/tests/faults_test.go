package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// calls returns how often the server has executed a command.
func calls(rdb *redis.Client, command string) (n int) {
	for _, line := range strings.Split(rdb.Info(ctx, "commandstats").Val(), "\r\n") {
		if rest, ok := strings.CutPrefix(strings.ToLower(line), "cmdstat_"+command+":calls="); ok {
			fmt.Sscanf(rest, "%d", &n)
		}
	}
	return n
}

func TestALostReplyLeavesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		proxy.CutReply("ACQUIRE")
		if _, err := c.TryAcquire(ctx, f.key); !errors.Is(err, dlock.ErrNoAnswer) || errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		f.until("the lock is free", f.free)
		h, err := c.Acquire(ctx, f.key)
		if err != nil {
			t.Fatal(err)
		}
		proxy.CutReply("RELEASE")
		if err := h.Release(ctx); !errors.Is(err, dlock.ErrNoAnswer) {
			t.Fatal(err)
		}
		f.until("the lock is free", f.free)
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAWaitOutlastsAFirstRequestWithoutAnAnswer(t *testing.T) {
	for _, opts := range [][]dlock.Option{nil, {dlock.AtLeast(ms(1))}} {
		onEach(t, func(t *testing.T, f *fixture) {
			proxy, c := f.proxied(ms(500))
			if free, err := c.TryAcquire(ctx, f.key); err != nil { // opens a connection
				t.Fatal(err)
			} else {
				f.release(free)
			}
			proxy.Stall() // of that connection
			h, err := c.Acquire(limited(t), f.key, opts...)
			if err != nil {
				t.Fatal(err)
			}
			proxy.Resume()
			f.release(h)
			f.until("the lock is free", f.free)
			f.close(c)
		})
	}
}

func TestAWaitBeginsWhileTheMasterFailsOver(t *testing.T) {
	const dials = 6 // go-redis dials five times for a request
	onEach(t, func(t *testing.T, f *fixture) {
		for what, wait := range map[string]func(c *dlock.Client) error{
			"Acquire": func(c *dlock.Client) error {
				h, err := c.Acquire(limited(t), f.key, dlock.AtLeast(ms(1)))
				if err == nil {
					f.release(h)
				}
				return err
			},
			"WaitUntilFree": func(c *dlock.Client) error { return c.WaitUntilFree(limited(t), f.key) },
		} {
			var dialled atomic.Int32
			rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
			// The sentinel still names the master that has failed.
			rdb.Options().Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
				address := f.rdb.Options().Addr
				if dialled.Add(1) <= dials {
					address = "127.0.0.1:1"
				}
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}
			c := dlock.New(rdb)
			if err := wait(c); err != nil || dialled.Load() <= dials {
				t.Error(what, err, dialled.Load())
			}
			f.close(c)
			rdb.Close()
		}
	})
}

// rejections returns how often the server has refused a command before it was executed.
func rejections(rdb *redis.Client, command string) (n int) {
	for _, line := range strings.Split(rdb.Info(ctx, "commandstats").Val(), "\r\n") {
		if _, rest, ok := strings.Cut(line, ",rejected_calls="); ok && strings.HasPrefix(strings.ToLower(line), "cmdstat_"+command+":") {
			fmt.Sscanf(rest, "%d", &n)
		}
	}
	return n
}

func TestAWaitOutlastsRefusalsOfTheServer(t *testing.T) {
	for command, opts := range map[string][]dlock.Option{"dlock.acquire": nil, "dlock.release": {dlock.AtLeast(ms(1))}} {
		for option, value := range map[string]string{"min-replicas-to-write": "1", "maxmemory": "1"} {
			if option == "maxmemory" && command == "dlock.release" {
				continue // not refused for want of memory
			}
			onEach(t, func(t *testing.T, f *fixture) {
				s := own(t, f)
				s.rdb.ConfigSet(ctx, option, value)
				if _, err := s.c.TryAcquire(ctx, s.key, opts...); err == nil {
					t.Fatal("the server does not refuse")
				}
				before := rejections(s.rdb, command)
				granted := s.acquiring(s.c, opts...)
				s.until("the server has refused two requests", func() bool {
					return rejections(s.rdb, command) >= before+2
				})
				s.rdb.ConfigSet(ctx, option, "0")
				s.release(<-granted)
			})
		}
	}
}

func TestTheCarrierSendsNoRequestTwice(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		proxy, c := s.proxied(testserver.Limit)
		for _, word := range []string{"ACQUIRE", "EXTEND", "GUARD", "LIST", "LOG"} {
			var h *dlock.Hold
			if word != "ACQUIRE" {
				h, _ = c.Acquire(ctx, f.key, dlock.NoRenew())
			}
			s.rdb.ConfigResetStat(ctx)
			proxy.CutReply(word)
			switch word {
			case "ACQUIRE":
				c.TryAcquire(ctx, f.key)
			case "LIST":
				for _, err := range c.List(ctx, "") {
					if !errors.Is(err, dlock.ErrNoAnswer) {
						t.Fatal(err)
					}
				}
			case "LOG":
				if _, err := c.Log(ctx, 1, ""); !errors.Is(err, dlock.ErrNoAnswer) {
					t.Fatal(err)
				}
			case "EXTEND":
				if err := h.Extend(ctx, time.Minute); !errors.Is(err, dlock.ErrNoAnswer) {
					t.Fatal(err)
				}
			default:
				if err := h.Guard(ctx, "INCR", f.key+":n").Err(); !errors.Is(err, dlock.ErrNoAnswer) {
					t.Fatal(err)
				}
			}
			if n := calls(s.rdb, "dlock."+strings.ToLower(word)); n != 1 {
				t.Fatal(word, n)
			}
			if h != nil {
				h.Release(ctx)
			}
			s.until("free", s.free)
		}
	})
}

func TestALateAcquireIsTakenBack(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(ms(100))
		h, err := c.TryAcquire(ctx, f.key) // opens a connection
		if err != nil {
			t.Fatal(err)
		}
		f.release(h)
		proxy.Stall()
		if _, err := c.TryAcquire(ctx, f.key, dlock.TTL(20*time.Second)); !errors.Is(err, dlock.ErrNoAnswer) {
			t.Fatal(err)
		}
		fresh := f.acquire() // greater than any earlier fence
		proxy.Resume()       // the server reads the ACQUIRE now, or finds the connection closed
		f.release(fresh)
		f.until("the lock stays free", func() bool {
			for range 20 {
				if !f.free() {
					return false
				}
				time.Sleep(time.Millisecond)
			}
			return true
		})
	})
}

func TestACancelledWaitLeavesNothingAtAnyMoment(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		for i := range 60 {
			if i%20 == 19 {
				proxy.Drop()
			}
			h := f.acquire()
			var group sync.WaitGroup
			for range 4 {
				group.Add(1)
				go func() {
					defer group.Done()
					limit, cancel := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(ms(6)))))
					defer cancel()
					if h, err := c.Acquire(limit, f.key); err == nil {
						if h.Err() != nil {
							t.Error(h.Err())
						}
						h.Release(limit)
					}
				}()
			}
			time.Sleep(time.Duration(rand.Int64N(int64(ms(4)))))
			f.release(h)
			group.Wait()
		}
		f.close(c)
		f.until("nothing is left", f.free)
	})
}

func TestAWaitThatIsCancelledDuringSilenceLeavesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(ms(200))
		h := f.acquire()
		waits, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() {
			_, err := c.Acquire(waits, f.key)
			done <- err
		}()
		f.until("it waits", func() bool { return f.queued() == 1 })
		proxy.Silent(true)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		proxy.Silent(false)
		f.close(c)
		if f.queued() != 0 {
			t.Fatal("still queued")
		}
		f.release(h)
	})
}

func TestAWaitOutlastsItsSubscription(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		h := f.acquire()
		granted := f.waiting(c)
		proxy.Refuse(true)
		proxy.Drop()
		f.release(h) // no connection receives the message
		proxy.Refuse(false)
		f.release(<-granted)
	})
}

func TestAShorterExtensionWithoutAnAnswerCounts(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		h, err := c.Acquire(ctx, f.key, dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		proxy.CutReply("EXTEND")
		if err := h.Extend(ctx, 20*time.Second); !errors.Is(err, dlock.ErrNoAnswer) {
			t.Fatal(err)
		}
		if v := h.Valid(); v <= 0 || v > 20*time.Second {
			t.Fatal(v)
		}
		if err := h.Extend(ctx, time.Hour); !errors.Is(err, dlock.ErrNoAnswer) || h.Valid() > 20*time.Second {
			t.Fatal(err, h.Valid())
		}
		h.Release(ctx)
		f.until("free", f.free)
	})
}

func TestAReleaseIsOwedForTheLongestLease(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(ms(100))
		h, err := c.Acquire(ctx, f.key, dlock.TTL(500*time.Millisecond), dlock.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Extend(ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := h.Extend(ctx, ms(400)); err != nil {
			t.Fatal(err)
		}
		f.rdb.Do(ctx, "DLOCK.EXTEND", f.key, h.Token(), 3_600_000) // as a late copy of the first extension
		proxy.Silent(true)
		if err := h.Release(ctx); err == nil {
			t.Fatal("no error")
		}
		time.Sleep(ms(1000)) // longer than the present lease
		proxy.Silent(false)
		f.close(c)
		f.mustBeFree()
	})
}

func TestAReleaseHappensAlthoughTheContextIsDone(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		done, cancel := context.WithCancel(ctx)
		h := f.acquire()
		cancel()
		if err := h.Release(done); err != nil || !f.free() {
			t.Fatal(err)
		}
	})
}

func TestASilentConnectionDoesNotCostARenewedHold(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		h, err := c.Acquire(ctx, f.key, dlock.TTL(6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		proxy.Stall()
		valid := h.Valid()
		f.until("the hold is renewed over another connection", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			before := valid
			valid = h.Valid()
			return valid > before
		})
		h.Release(ctx)
	})
}

func TestWaitsAndHoldsFollowAFailoverBehindOneAddress(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old := own(t, f)
		new := own(t, f, "--replicaof", "127.0.0.1", fmt.Sprint(old.s.Port))
		f.until("the replica is connected", func() bool {
			return strings.Contains(old.rdb.Info(ctx, "replication").Val(), "state=online")
		})
		proxy, c := old.proxied(testserver.Limit)
		h, err := c.Acquire(ctx, f.key, dlock.TTL(9*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted := old.waiting(c)
		f.until("the replica has the hold", func() bool { return !new.free() })
		proxy.Retarget(new.s)
		new.rdb.Do(ctx, "REPLICAOF", "NO", "ONE")
		old.rdb.Do(ctx, "REPLICAOF", "127.0.0.1", new.s.Port)
		f.until("it waits at the new master", func() bool { return new.queued() == 1 })
		f.until("the hold is renewed at the new master", func() bool { return calls(new.rdb, "dlock.extend") > 0 })
		if err := h.Release(ctx); err != nil && !errors.Is(err, dlock.ErrNoAnswer) {
			t.Log(err) // repeated in the background
		}
		f.release(<-granted)
	})
}

// behindOneAddress returns a master and its replica, and a client over a proxy that leads to the master. Its pool can be
// filled with idle connections.
func behindOneAddress(t *testing.T, f *fixture) (old, new *fixture, proxy *testserver.Proxy, rdb *redis.Client, c *dlock.Client) {
	old = own(t, f)
	new = own(t, f, "--replicaof", "127.0.0.1", fmt.Sprint(old.s.Port))
	f.until("the replica is connected", func() bool {
		return strings.Contains(old.rdb.Info(ctx, "replication").Val(), "state=online")
	})
	proxy = testserver.NewProxy(old.s)
	rdb = redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: testserver.Limit, PoolSize: idleConns + 10})
	t.Cleanup(func() {
		proxy.Close()
		rdb.Close()
	})
	return old, new, proxy, rdb, newClient(t, rdb)
}

// idleConns is the number of connections of idle.
const idleConns = 40

// idle opens connections, and leaves them idle in the pool.
func idle(t *testing.T, rdb *redis.Client) {
	t.Helper()
	var conns []*redis.Conn
	for range idleConns {
		conn := rdb.Conn()
		if err := conn.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Close()
	}
	if n := rdb.PoolStats().IdleConns; n != idleConns {
		t.Fatal("idle connections:", n)
	}
}

func TestNoIdleConnectionToAFormerMasterIsInTheWay(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old, new, proxy, rdb, c := behindOneAddress(t, f)
		acquire := func(name string, opts ...dlock.Option) *dlock.Hold {
			h, err := c.Acquire(limited(t), f.key+name, opts...)
			if err != nil {
				t.Fatal(name, err)
			}
			return h
		}
		// Their renewals form a pipeline.
		holds := []*dlock.Hold{acquire("hold 1", dlock.TTL(3*time.Second)), acquire("hold 2", dlock.TTL(3*time.Second))}
		bound := acquire("bound", dlock.Ephemeral())
		f.until("the replica has the holds", func() bool {
			listed, err := 0, error(nil)
			for _, e := range new.c.List(ctx, "") {
				if err = e; err == nil {
					listed++
				}
			}
			return err == nil && listed == 3
		})
		renewed := calls(new.rdb, "dlock.extend")
		idle(t, rdb)
		proxy.Retarget(new.s)
		new.rdb.Do(ctx, "REPLICAOF", "NO", "ONE")
		old.rdb.Do(ctx, "REPLICAOF", "127.0.0.1", new.s.Port)
		f.until("the holds are renewed at the new master", func() bool {
			for _, h := range holds {
				if h.Err() != nil {
					t.Fatal(h.Err())
				}
			}
			return calls(new.rdb, "dlock.extend") >= renewed+len(holds)
		})
		for _, h := range append(holds, bound) {
			f.release(h)
		}
		f.until("the former master is a replica", func() bool {
			return strings.Contains(new.rdb.Info(ctx, "replication").Val(), "state=online")
		})
		for what, request := range map[string]func(h *dlock.Hold) error{
			"Release": func(h *dlock.Hold) error { return h.Release(ctx) },
			"Extend":  func(h *dlock.Hold) error { return h.Extend(ctx, time.Minute) },
			"Guard":   func(h *dlock.Hold) error { return h.Guard(ctx, "SET", "x", 1).Err() },
			"AtLeast": func(h *dlock.Hold) error { return tried(c.TryAcquire(ctx, f.key+"a", dlock.AtLeast(ms(1)))) },
			"Try":     func(h *dlock.Hold) error { return tried(c.TryAcquire(ctx, f.key+"b")) },
			"bind":    func(h *dlock.Hold) error { return tried(c.Acquire(ctx, f.key+"c", dlock.Ephemeral())) },
			"Durable": func(h *dlock.Hold) error { return tried(c.Acquire(ctx, f.key+"d", dlock.Durable(1, testserver.Limit))) },
			"Adopt":   func(h *dlock.Hold) error { return tried(c.Adopt(ctx, h.Key(), h.Token())) },
			"Break":   func(h *dlock.Hold) error { _, err := c.Break(ctx, h.Key()); return err },
		} {
			h := acquire(what)
			proxy.Retarget(old.s)
			proxy.Drop()
			idle(t, rdb)
			proxy.Retarget(new.s)
			if err := request(h); err != nil {
				t.Error(what, err)
			}
			h.Release(ctx)
		}
	})
}

func tried(h *dlock.Hold, err error) error {
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

func TestAWaitAtAFormerMasterFollowsPastIdleConnections(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old, new, proxy, rdb, c := behindOneAddress(t, f)
		subscribed := func() bool { return len(new.rdb.PubSubChannels(ctx, "dlock:*").Val()) > 0 }
		old.rdb.Do(ctx, "DLOCK.ACQUIRE", f.key, "holder", 600_000)
		granted := old.waiting(c)
		f.until("the replica has the hold", func() bool { return !new.free() })
		idle(t, rdb)
		proxy.Retarget(new.s)
		new.rdb.Do(ctx, "REPLICAOF", "NO", "ONE")
		old.rdb.Do(ctx, "REPLICAOF", "127.0.0.1", new.s.Port)
		f.until("it waits at the new master for a message", func() bool { return new.queued() == 1 && subscribed() })
		new.rdb.Do(ctx, "DLOCK.RELEASE", f.key, "holder")
		f.release(<-granted)
	})
}

func TestAReplicaIsAskedOnceOverEachConnection(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		_, new, proxy, rdb, c := behindOneAddress(t, f)
		proxy.Retarget(new.s)
		idle(t, rdb)
		for _, connections := range []int{idleConns + 1, 2} {
			before := rejections(new.rdb, "dlock.break")
			if _, err := c.Break(ctx, f.key); !redis.IsReadOnlyError(err) {
				t.Fatal(err)
			}
			if n := rejections(new.rdb, "dlock.break") - before; n != connections {
				t.Error("requests:", n)
			}
		}
	})
}

func TestTheSubscriberFollowsWhenOnlyTheCommandsConnectAnew(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old, new := own(t, f), own(t, f)
		for _, s := range []*fixture{old, new} {
			s.rdb.Do(ctx, "DLOCK.ACQUIRE", s.key, "holder", 600_000)
			s.rdb.Do(ctx, "DLOCK.ACQUIRE", "other", "holder", 600_000)
		}
		subscribed := func(s *fixture) bool { return len(s.rdb.PubSubChannels(ctx, "dlock:*").Val()) > 0 }
		proxy, c := old.proxied(testserver.Limit)
		granted := old.waiting(c, dlock.TTL(2*time.Second)) // it asks again every 0.7 s
		other, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() {
			_, err := c.Acquire(other, "other", dlock.TTL(time.Hour)) // keeps the subscription
			ended <- err
		}()
		asked := calls(old.rdb, "dlock.acquire")
		old.until("it waits for a message", func() bool {
			return subscribed(old) && calls(old.rdb, "dlock.acquire") > asked+1
		})
		proxy.Retarget(new.s)
		// The connection of the subscriber stays open.
		old.rdb.ClientKillByFilter(ctx, "TYPE", "normal")
		old.until("it waits at the new master", func() bool { return new.queued() == 1 })
		if !subscribed(old) {
			t.Fatal("it does not wait for a message")
		}
		new.rdb.Do(ctx, "DLOCK.RELEASE", new.key, "holder")
		new.release(<-granted)
		old.until("the subscriber has followed", func() bool { return subscribed(new) })
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		f.close(c)
	})
}

// TestNothingRunsWhileIdle: goroutines, connections and subscriptions of a client end with its work, without Close.
func TestNothingRunsWhileIdle(t *testing.T) {
	before := goleak.IgnoreCurrent()
	for _, s := range servers {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		c := dlock.New(rdb)
		h, err := c.Acquire(ctx, t.Name(), dlock.TTL(6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan error)
		go func() {
			h, err := c.Acquire(ctx, t.Name())
			if err == nil {
				err = h.Release(ctx)
			}
			granted <- err
		}()
		testserver.Until(t, "it waits", func() bool { w, _ := c.Waiters(ctx, t.Name(), 1); return len(w) == 1 })
		testserver.Until(t, "the hold is watched", func() bool {
			return strings.Contains(strings.Join(rdb.PubSubChannels(ctx, "*").Val(), " "), "invalidate")
		})
		h.Release(ctx)
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		testserver.Until(t, "the subscription ends", func() bool {
			return len(rdb.PubSubChannels(ctx, "*").Val()) == 0
		})
		rdb.Close()
	}
	if err := goleak.Find(before); err != nil {
		t.Fatal(err)
	}
}

// holder is a process that acquires a lock, and prints whether it counts as held.
func holder() {
	c := dlock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("DLOCK_GO_HOLDER")}))
	h, err := c.Acquire(ctx, "stopped", dlock.TTL(time.Second))
	if err != nil {
		panic(err)
	}
	work := h.Context()
	fmt.Println("held")
	for last := time.Now(); ; {
		at := time.Now()
		err := work.Err()
		if err != nil {
			fmt.Println("lost:", context.Cause(work))
			return
		}
		// Whatever is longer than the lease ago was before the stop: this look must have seen the loss.
		if at.Sub(last) > time.Second {
			fmt.Println("missed")
			return
		}
		last = at
	}
}

func TestAHolderThatWasStoppedSeesItsLossFirst(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		s := own(t, f)
		program, _ := os.Executable()
		process := exec.Command(program)
		process.Env = append(os.Environ(), "DLOCK_GO_HOLDER="+s.s.Addr())
		out, _ := process.StdoutPipe()
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		defer process.Wait()
		lines := bufio.NewScanner(out)
		lines.Scan()
		process.Process.Signal(syscall.SIGSTOP)
		s.key = "stopped"
		f.until("the lease ends", s.free)
		process.Process.Signal(syscall.SIGCONT)
		lines.Scan()
		if text := lines.Text(); !strings.HasPrefix(text, "lost: dlock: hold of") {
			t.Fatal(text)
		}
	})
}

func TestAFailedAcquisitionClosesNoLock(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		if _, err := f.c.TryAcquire(ctx, f.key, dlock.AtLeast(time.Hour), dlock.Durable(1, ms(20))); !errors.Is(err, dlock.ErrNotDurable) {
			t.Fatal(err)
		}
		blocker, err := f.c.TryAcquire(ctx, f.key+":z")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.c.TryAcquireAll(ctx, []string{f.key, f.key + ":z"}, dlock.AtLeast(time.Hour)); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if !f.free() {
			t.Fatal("the delay runs although no work was done")
		}
		f.release(blocker)
	})
}

func TestAReentrantHoldKeepsItsAtLeastAfterAFailedAcquisition(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		opts := []dlock.Option{dlock.AtLeast(time.Hour), dlock.Reentrant(dlock.NewToken())}
		outer := f.acquire(opts...)
		blocker, err := f.c.TryAcquire(ctx, f.key+":z")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.c.TryAcquireAll(ctx, []string{f.key, f.key + ":z"}, opts...); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		f.release(outer)
		if f.free() {
			t.Fatal("the lock is open at once")
		}
		f.release(blocker)
	})
}

func TestMoreCallersThanConnectionsAllSucceed(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		_, c := f.pooled(1, time.Millisecond)
		var group sync.WaitGroup
		for i := range 300 {
			group.Add(1)
			go func() {
				defer group.Done()
				h, err := c.Acquire(limited(t), fmt.Sprint(f.key, i))
				if err != nil {
					t.Error(err)
					return
				}
				if err := h.Release(ctx); err != nil {
					t.Error(err)
				}
			}()
		}
		group.Wait()
		f.close(c)
	})
}

func TestABusyPoolIsWaitedFor(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		rdb, c := f.pooled(1, time.Millisecond)
		var held [20]*dlock.Hold
		for i := range held {
			var err error
			if held[i], err = c.Acquire(ctx, fmt.Sprint(f.key, i)); err != nil {
				t.Fatal(err)
			}
		}
		taken := rdb.Conn()
		if err := taken.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, len(held)+1)
		for _, h := range held {
			go func() { ended <- h.Release(ctx) }()
		}
		go func() {
			h, err := c.Acquire(limited(t), f.key, dlock.AtLeast(time.Millisecond))
			if err == nil {
				err = h.Release(ctx)
			}
			ended <- err
		}()
		tries := rdb.PoolStats().Timeouts
		// Releases may have ended: newer versions of go-redis send pipelines over a pool of their own.
		f.until("they have tried often", func() bool { return rdb.PoolStats().Timeouts > tries+100 })
		impatient, cancel := context.WithTimeout(ctx, ms(20))
		defer cancel()
		_, err := c.Acquire(impatient, f.key)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		taken.Close()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		f.close(c)
		for i := range held {
			if seen, err := f.c.Inspect(ctx, fmt.Sprint(f.key, i)); seen != nil || err != nil {
				t.Error(seen, err)
			}
		}
	})
}

func TestATokenMayBeUsedAgainAfterAReleaseWithoutAnAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		proxy, c := f.proxied(testserver.Limit)
		token := dlock.NewToken()
		for range 5 {
			h, err := c.Acquire(limited(t), f.key, dlock.Reentrant(token))
			if err != nil {
				t.Fatal(err)
			}
			if held, err := h.Held(ctx); !held || err != nil {
				t.Fatal(held, err)
			}
			proxy.CutReply("RELEASE")
			h.Release(ctx)
		}
	})
}
