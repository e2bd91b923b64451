package testserver

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy passes bytes on to a server, and causes faults. Each switch may be set at any time and applies to all
// connections.
type Proxy struct {
	// Addr is the address of the proxy.
	Addr string

	listener net.Listener
	target   string
	mu       sync.Mutex
	pairs    map[*pair]bool
	delay    time.Duration
	silent   bool
	refuse   bool
	match    []byte
	cut      int
	lost     int
	stalled  map[*pair]bool
}

type pair struct {
	client, server net.Conn
	// matched: the last request contains the bytes of CutReply.
	matched bool
}

// NewProxy starts a proxy in front of the server.
func NewProxy(s *Server) *Proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	p := &Proxy{
		Addr: listener.Addr().String(), listener: listener, target: fmt.Sprintf("127.0.0.1:%d", s.Port),
		pairs: map[*pair]bool{}, stalled: map[*pair]bool{},
	}
	go p.accept()
	return p
}

// Delay delays replies.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Silent passes no bytes on; connections stay open.
func (p *Proxy) Silent(on bool) { p.set(func() { p.silent = on }) }

// Refuse closes new connections at once.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// CutReply loses the next reply to a request that contains the text, with its connection.
func (p *Proxy) CutReply(text string) { p.set(func() { p.match, p.cut = []byte(text), 1 }) }

// Lost returns the number of lost replies.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Open returns the number of open connections.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Retarget passes new connections on to another server, as an address does after a failover.
func (p *Proxy) Retarget(s *Server) { p.set(func() { p.target = s.Addr() }) }

// Drop closes all connections.
func (p *Proxy) Drop() {
	p.set(func() {
		for pair := range p.pairs {
			pair.client.Close()
			pair.server.Close()
		}
	})
}

// Stall passes nothing on over the connections that are open now, until Resume. New connections work.
func (p *Proxy) Stall() {
	p.set(func() {
		for pair := range p.pairs {
			p.stalled[pair] = true
		}
	})
}

// Resume ends Stall. The bytes that were held back arrive.
func (p *Proxy) Resume() { p.set(func() { clear(p.stalled) }) }

// Close ends the proxy.
func (p *Proxy) Close() {
	p.listener.Close()
	p.set(func() { p.silent = false; clear(p.stalled) })
	p.Drop()
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse, target := p.refuse, p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil || refuse {
			client.Close()
			if err == nil {
				server.Close()
			}
			continue
		}
		pair := &pair{client: client, server: server}
		p.set(func() { p.pairs[pair] = true })
		go p.pass(pair, client, server, true)
		go p.pass(pair, server, client, false)
	}
}

func (p *Proxy) pass(pair *pair, from, to net.Conn, requests bool) {
	defer func() {
		from.Close()
		to.Close()
		p.set(func() { delete(p.pairs, pair); delete(p.stalled, pair) })
	}()
	data := make([]byte, 1<<16)
	for {
		n, err := from.Read(data)
		if err != nil {
			return
		}
		for p.held(pair) {
			time.Sleep(2 * time.Millisecond)
		}
		p.mu.Lock()
		delay, cut := p.delay, false
		if requests {
			pair.matched = bytes.Contains(data[:n], p.match)
		} else if cut = p.cut > 0 && pair.matched; cut {
			p.cut--
			p.lost++
		}
		p.mu.Unlock()
		if cut {
			return
		}
		if !requests {
			time.Sleep(delay)
		}
		if _, err := to.Write(data[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) held(pair *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent || p.stalled[pair]
}
