package tests

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// The files of conformance/ that are marked library, and those in conformance/library, played through the client over a
// proxy: see "Through a library" in conformance/README.md.

// library has the state of a file that is played.
type library struct {
	*playing
	s     *testserver.Server
	proxy *testserver.Proxy
	c     *dlock.Client
	mu    sync.Mutex
	// holds has the hold of each owner, by lock and name.
	holds map[[2]string]*dlock.Hold
	renew bool
}

// caller takes the place of a connection.
type caller struct {
	l       *library
	direct  *conn
	cancel  context.CancelFunc
	ctx     context.Context
	answers []chan any
}

func (c *caller) close() {
	c.cancel()
	c.direct.close()
}

// send calls the library for four commands, and sends the others to the server.
func (c *caller) send(args []string) {
	answer := make(chan any, 1)
	c.answers = append(c.answers, answer)
	l := c.l
	switch args[0] {
	case "DLOCK.ACQUIRE":
		owner := [2]string{args[1], args[2]}
		if h := l.held(owner); h != nil {
			answer <- float64(h.Fence())
			return
		}
		ttl, _ := strconv.Atoi(args[3])
		opts := []dlock.Option{dlock.TTL(ms(ttl))}
		if !l.renew {
			opts = append(opts, dlock.NoRenew())
		}
		waits := false
		for rest := args[4:]; len(rest) > 0; rest = rest[1:] {
			switch rest[0] {
			case "SHARED":
				opts = append(opts, dlock.Shared())
			case "PERMITS":
				n, _ := strconv.Atoi(rest[1])
				opts = append(opts, dlock.Permits(n))
				rest = rest[1:]
			case "BLOCK":
				n, _ := strconv.Atoi(rest[1])
				opts = append(opts, dlock.MaxWait(ms(n)))
				waits = true
				rest = rest[1:]
			default:
				l.t.Fatalf("the library has no %s", rest[0])
			}
		}
		go func() {
			acquire := l.c.TryAcquire
			if waits {
				acquire = l.c.Acquire
			}
			h, err := acquire(c.ctx, args[1], opts...)
			if err != nil {
				answer <- reply(err)
				return
			}
			if waits {
				// The next step comes after the claim of a grant by message, which Extend waits for.
				h.Extend(c.ctx, ms(ttl))
			}
			l.mu.Lock()
			l.holds[owner] = h
			l.mu.Unlock()
			answer <- float64(h.Fence())
		}()
	case "DLOCK.RELEASE", "DLOCK.EXTEND", "DLOCK.HOLDS":
		l.mu.Lock()
		h := l.holds[[2]string{args[1], args[2]}]
		l.mu.Unlock()
		go func() {
			err := errNotHeld
			if h != nil && h.Err() != dlock.ErrReleased {
				switch args[0] {
				case "DLOCK.RELEASE":
					err = h.Release(c.ctx)
				case "DLOCK.EXTEND":
					ttl, _ := strconv.Atoi(args[3])
					err = h.Extend(c.ctx, ms(ttl))
				default:
					var held bool
					if held, err = h.Held(c.ctx); !held && err == nil {
						err = errNotHeld
					}
				}
			}
			switch {
			case err == nil:
				answer <- float64(1)
			case errors.Is(err, errNotHeld), errors.Is(err, dlock.ErrLost), errors.Is(err, dlock.ErrReleased):
				answer <- float64(0)
			default:
				answer <- reply(err)
			}
		}()
	case "DLOCK.PTTL":
		args = args[:2] // only the library knows the token
		fallthrough
	default:
		c.direct.send(args)
		answer <- c.direct.read
	}
}

func (l *library) held(owner [2]string) *dlock.Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[owner]; h != nil && h.Err() == nil {
		return h
	}
	return nil
}

// reply translates an error into the reply of the command.
func reply(err error) any {
	var server redis.Error
	switch {
	case errors.Is(err, dlock.ErrNotAcquired):
		return nil
	case errors.Is(err, dlock.ErrDeadlock):
		return errorReply("DEADLOCK")
	case errors.Is(err, dlock.ErrGrace):
		return errorReply("GRACE")
	case errors.As(err, &server):
		return errorReply(server.Error())
	}
	return errorReply("NOANSWER " + err.Error())
}

func (c *caller) read() any {
	answer := c.answers[0]
	c.answers = c.answers[1:]
	select {
	case found := <-answer:
		if read, ok := found.(func() any); ok {
			return read()
		}
		return found
	case <-time.After(testserver.Limit):
		return errorReply("NOANSWER in time")
	}
}

func (l *library) step(step map[string]any) {
	_, c := l.peer(step)
	l.renew = step["renew"] == true
	if fault, ok := step["fault"].(map[string]any); ok {
		for name, on := range fault {
			switch name {
			case "silent":
				l.proxy.Silent(on == true)
			case "refuse":
				l.proxy.Refuse(on == true)
			case "drop":
				l.proxy.Drop()
			}
		}
	}
	lose, loses := step["lose"].(string)
	lost := l.proxy.Lost()
	if loses {
		l.proxy.CutReply(lose)
		delete(step, "lose")
	}
	if step["send"] != nil || step["answer"] != nil || step["close"] != nil {
		l.playing.step(step)
	}
	if loses {
		l.until("a reply is lost", func() bool { return l.proxy.Lost() > lost })
		for caller := c.(*caller); len(caller.answers) > 0; {
			caller.read() // not compared
		}
	}
	if owner, ok := step["lost"].(string); ok {
		for name, h := range l.holds {
			if name[1] == owner {
				select {
				case <-h.Context().Done():
				case <-time.After(testserver.Limit):
					l.t.Fatalf("the loss of %s is not reported", owner)
				}
			}
		}
	}
}

func (l *library) until(what string, condition func() bool) { testserver.Until(l.t, what, condition) }

func TestTheLibraryKeepsTheContract(t *testing.T) {
	for i, named := range testserver.Programs() {
		t.Run(named.Name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(named.Program)
			defer s.Stop()
			for _, file := range append(files(t, "library/*.json"), files(t, "*.json")...) {
				t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
					play(t, s, file, func(played scenario) {
						if !played.Library && !strings.Contains(file, "library/") {
							t.Skip("not for libraries")
						}
						playThroughLibrary(t, s, 2+i%2, played)
					})
				})
			}
		})
	}
}

func playThroughLibrary(t *testing.T, s *testserver.Server, protocol int, played scenario) {
	proxy := testserver.NewProxy(s)
	defer proxy.Close()
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, Protocol: protocol})
	defer rdb.Close()
	l := &library{s: s, proxy: proxy, c: dlock.New(rdb), holds: map[[2]string]*dlock.Hold{}}
	l.playing = newPlaying(t, protocol, func() peer {
		ctx, cancel := context.WithCancel(ctx)
		return &caller{l: l, ctx: ctx, cancel: cancel, direct: dial(t, s.Addr(), protocol)}
	})
	l.playing.library = true
	defer func() {
		for _, c := range l.peers {
			c.close()
		}
		for _, h := range l.holds {
			h.Release(ctx)
		}
	}()
	for _, step := range played.Steps {
		l.step(step)
		if t.Failed() {
			t.Fatal(fmt.Sprint(step))
		}
	}
}
