// Package tests has the tests of the client on real servers. It is a module of its own, which finds the client as a
// third party's module does.
package tests

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

var (
	ctx     = context.Background()
	servers = map[string]*testserver.Server{}
)

func TestMain(m *testing.M) {
	if os.Getenv("DLOCK_GO_HOLDER") != "" {
		holder()
		return
	}
	for _, named := range testserver.Programs() {
		servers[named.Name] = testserver.Start(named.Program)
	}
	if len(servers) == 0 {
		fmt.Fprintln(os.Stderr, "set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run scripts/test-go.sh")
		os.Exit(1)
	}
	status := m.Run()
	// If the server of a client is down, a goroutine of go-redis still dials for up to 1 s after the client's Close.
	dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	if leak := goleak.Find(dialing); leak != nil && status == 0 {
		fmt.Fprintln(os.Stderr, "after all tests:", leak)
		status = 1
	}
	for _, s := range servers {
		s.Stop()
	}
	for _, nodes := range clusters {
		for _, s := range nodes {
			s.Stop()
		}
	}
	os.Exit(status)
}

// onEach runs a test on each server, with RESP2 and RESP3 in turn.
func onEach(t *testing.T, test func(t *testing.T, f *fixture)) {
	protocol := 2
	for _, named := range testserver.Programs() {
		p := protocol
		protocol = 5 - protocol
		t.Run(named.Name, func(t *testing.T) {
			t.Parallel()
			s := servers[named.Name]
			rdb := redis.NewClient(&redis.Options{
				Addr: s.Addr(), ReadTimeout: testserver.Limit, MaxRetries: -1, Protocol: p,
			})
			t.Cleanup(func() { rdb.Close() })
			test(t, &fixture{t, s, rdb, newClient(t, rdb), t.Name()})
		})
	}
}

// newClient returns a client that is closed before the go-redis client: closing that one while a request is under way is
// a data race in go-redis.
func newClient(t *testing.T, rdb redis.UniversalClient) *dlock.Client {
	c := dlock.New(rdb)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, testserver.Limit)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

type fixture struct {
	t   *testing.T
	s   *testserver.Server
	rdb *redis.Client
	c   *dlock.Client
	// key is a lock of this test alone.
	key string
}

// limited returns a context that ends long after a test should have.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(ctx, testserver.Limit)
	t.Cleanup(cancel)
	return ctx
}

func (f *fixture) until(what string, condition func() bool) {
	f.t.Helper()
	testserver.Until(f.t, what, condition)
}

func (f *fixture) acquire(opts ...dlock.Option) *dlock.Hold {
	f.t.Helper()
	h, err := f.c.Acquire(limited(f.t), f.key, opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// waiting lets a client wait for the lock, and returns once it is queued.
func (f *fixture) waiting(c *dlock.Client, opts ...dlock.Option) <-chan *dlock.Hold {
	f.t.Helper()
	before := f.queued()
	granted := f.acquiring(c, opts...)
	f.until("it waits", func() bool { return f.queued() > before })
	return granted
}

// acquiring lets a client acquire the lock, without waiting for it.
func (f *fixture) acquiring(c *dlock.Client, opts ...dlock.Option) <-chan *dlock.Hold {
	granted := make(chan *dlock.Hold, 1)
	go func() {
		h, err := c.Acquire(limited(f.t), f.key, opts...)
		if err != nil {
			f.t.Error(err)
		}
		granted <- h
	}()
	return granted
}

func (f *fixture) release(h *dlock.Hold) {
	f.t.Helper()
	if err := h.Release(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// queued returns the number of waiters.
func (f *fixture) queued() int {
	f.t.Helper()
	w, err := f.c.Waiters(ctx, f.key, 1000)
	if err != nil {
		f.t.Fatal(err)
	}
	return len(w)
}

func (f *fixture) free() bool {
	f.t.Helper()
	seen, err := f.c.Inspect(ctx, f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	return seen == nil
}

func (f *fixture) mustBeFree() {
	f.t.Helper()
	if !f.free() {
		f.t.Fatal("not free")
	}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// program returns the server program of the test.
func program(f *fixture) string {
	for _, named := range testserver.Programs() {
		if servers[named.Name] == f.s {
			return named.Program
		}
	}
	return ""
}

// own starts a server for this test alone.
func own(t *testing.T, f *fixture, options ...string) *fixture {
	s := testserver.Start(program(f), options...)
	t.Cleanup(s.Stop)
	rdb := s.Client()
	t.Cleanup(func() { rdb.Close() })
	return &fixture{t, s, rdb, dlock.New(rdb), f.key}
}

// bare starts a server without the module.
func bare(t *testing.T) *testserver.Server {
	s := testserver.StartBare(testserver.Programs()[0].Program)
	t.Cleanup(s.Stop)
	return s
}

// proxied returns a client over a proxy. Its commands end after the timeout.
func (f *fixture) proxied(timeout time.Duration) (*testserver.Proxy, *dlock.Client) {
	proxy := testserver.NewProxy(f.s)
	// The retries of the carrier must not matter.
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: timeout, DialTimeout: timeout, MaxRetries: 5})
	f.t.Cleanup(func() {
		proxy.Close() // first: go-redis 9.19 closes no connection that waits for a reply
		rdb.Close()
	})
	return proxy, dlock.New(rdb)
}

// close waits until a client owes nothing.
func (f *fixture) close(c *dlock.Client) {
	f.t.Helper()
	if err := c.Close(limited(f.t)); err != nil {
		f.t.Fatal(err)
	}
}
