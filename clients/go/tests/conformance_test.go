package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// The files of conformance/, which conformance/README.md explains, played over a bare socket.

const conformance = "../../../conformance"

type scenario struct {
	Promise   string
	Options   map[string]string
	Protocols []int
	Library   bool
	Steps     []map[string]any
}

// errorReply is an error, distinct from a string.
type errorReply string

// peer receives the requests of a step: a connection, or the library in its place.
type peer interface {
	send(args []string)
	read() any
	close()
}

type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string, protocol int) *conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(2 * testserver.Limit))
	made := &conn{c, bufio.NewReader(c)}
	if protocol == 3 {
		made.send([]string{"HELLO", "3"})
		made.read()
	}
	return made
}

func (c *conn) send(args []string) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	c.Write(b.Bytes())
}

func (c *conn) read() any {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return errorReply("CONNECTION " + err.Error())
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	n, _ := strconv.Atoi(rest)
	switch kind {
	case '-':
		return errorReply(rest)
	case '+':
		return rest
	case '_':
		return nil
	case ':':
		return float64(n)
	case '$':
		if n < 0 {
			return nil
		}
		data := make([]byte, n+2)
		io.ReadFull(c.r, data)
		return string(data[:n])
	case '*', '>', '~':
		if n < 0 {
			return nil
		}
		items := make([]any, n)
		for i := range items {
			items[i] = c.read()
		}
		return items
	case '%':
		m := map[string]any{}
		for range n {
			name := fmt.Sprint(c.read())
			m[name] = c.read()
		}
		return m
	}
	return errorReply("PROTOCOL " + line)
}

func (c *conn) close() { c.Close() }

// playing plays the steps of a file.
type playing struct {
	t        *testing.T
	protocol int
	open     func() peer
	peers    map[string]peer
	saved    map[string]any
	marks    map[string]time.Time
	greatest float64
	// library: tokens are not compared.
	library bool
}

func newPlaying(t *testing.T, protocol int, open func() peer) *playing {
	return &playing{t: t, protocol: protocol, open: open, peers: map[string]peer{}, saved: map[string]any{}, marks: map[string]time.Time{}}
}

func (p *playing) peer(step map[string]any) (string, peer) {
	on, ok := step["on"].(string)
	if !ok {
		on = "a"
	}
	if p.peers[on] == nil {
		p.peers[on] = p.open()
	}
	return on, p.peers[on]
}

func (p *playing) step(step map[string]any) {
	p.t.Helper()
	on, c := p.peer(step)
	var command []string
	if mark, ok := step["mark"].(string); ok {
		p.marks[mark] = time.Now()
	}
	switch send := step["send"].(type) {
	case string:
		command = strings.Split(send, " ")
	case []any:
		for _, word := range send {
			command = append(command, word.(string))
		}
	}
	for i := range command {
		command[i] = p.filled(command[i])
	}
	if command != nil {
		c.send(command)
	}
	if _, ok := step["lose"]; ok {
		c.read()
		c.close()
		delete(p.peers, on)
	}
	if want, ok := step["answer"]; ok {
		if found := c.read(); !p.fits(want, found) {
			p.t.Fatalf("%v: found %#v", step, found)
		}
	}
	if want, ok := step["until"]; ok {
		for end := time.Now().Add(testserver.Limit); ; time.Sleep(5 * time.Millisecond) {
			found := c.read()
			if p.fits(want, found) {
				break
			}
			if time.Now().After(end) {
				p.t.Fatalf("%v: found %#v", step, found)
			}
			c.send(command)
		}
	}
	if after, ok := step["after"].(map[string]any); ok {
		for mark, least := range after {
			if time.Since(p.marks[mark]) < time.Duration(least.(float64))*time.Millisecond {
				p.t.Fatalf("%v: too early", step)
			}
		}
	}
	if step["close"] == true {
		c.close()
		delete(p.peers, on)
	}
}

func (p *playing) filled(text string) string {
	for name, value := range p.saved {
		if n, ok := value.(float64); ok {
			value = strconv.FormatFloat(n, 'f', -1, 64)
		}
		text = strings.ReplaceAll(text, "{"+name+"}", fmt.Sprint(value))
	}
	return text
}

func (p *playing) fits(want, found any) bool {
	switch want := want.(type) {
	case map[string]any:
		for pattern, rest := range want {
			if !p.fitsPattern(pattern, rest, found) {
				return false
			}
		}
		return true
	case []any:
		items, ok := found.([]any)
		if !ok || len(items) != len(want) {
			return false
		}
		for i := range want {
			if !p.fits(want[i], items[i]) {
				return false
			}
		}
		return true
	case string:
		return found == p.filled(want)
	}
	return want == found
}

func (p *playing) fitsPattern(pattern string, want, found any) bool {
	n, isNumber := found.(float64)
	text, isText := found.(string)
	switch pattern {
	case "any":
		return true
	case "error":
		err, ok := found.(errorReply)
		word, _, _ := strings.Cut(string(err), " ")
		return ok && word == want
	case "least":
		return isNumber && n >= want.(float64)
	case "most":
		return isNumber && n <= want.(float64)
	case "length":
		return isText && float64(len(text)) == want
	case "save":
		p.saved[want.(string)] = found
		return isNumber || isText
	case "fence":
		if known, ok := p.saved[want.(string)]; ok {
			return found == known
		}
		rises := isNumber && n > p.greatest
		if rises {
			p.greatest, p.saved[want.(string)] = n, found
		}
		return rises
	case "map":
		m, ok := found.(map[string]any)
		if items, isList := found.([]any); isList && p.protocol == 2 {
			m, ok = map[string]any{}, true
			for i := 0; i+1 < len(items); i += 2 {
				m[fmt.Sprint(items[i])] = items[i+1]
			}
		}
		for name, rest := range want.(map[string]any) {
			if p.library && name == "token" {
				continue
			}
			if value, has := m[name]; !ok || !has || !p.fits(rest, value) {
				return false
			}
		}
		return ok
	}
	p.t.Fatalf("unknown pattern %q", pattern)
	return false
}

// play plays a file on a server without keys, with the options of the file.
func play(t *testing.T, s *testserver.Server, file string, steps func(scenario)) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var played scenario
	if err := json.Unmarshal(data, &played); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client()
	defer rdb.Close()
	before := map[string]string{}
	for name, value := range played.Options {
		before[name] = rdb.ConfigGet(ctx, name).Val()[name]
		if err := rdb.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		removeLocks(t, rdb)
		for name, value := range before {
			rdb.ConfigSet(ctx, name, value)
		}
	}()
	steps(played)
}

// removeLocks removes all keys and waiters. FLUSHALL grants a lock to its first waiter, so it is repeated.
func removeLocks(t *testing.T, rdb *redis.Client) {
	testserver.Until(t, "no lock is left", func() bool {
		rdb.FlushAll(ctx)
		reply, err := rdb.Do(ctx, "DLOCK.LIST", 0).Slice()
		return err == nil && len(reply[1].([]any)) == 0
	})
}

func files(t *testing.T, pattern string) []string {
	found, err := filepath.Glob(filepath.Join(conformance, pattern))
	if err != nil || len(found) == 0 {
		t.Fatal("no files of the contract", err)
	}
	return found
}

func TestTheServerKeepsTheContract(t *testing.T) {
	for _, named := range testserver.Programs() {
		t.Run(named.Name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(named.Program)
			defer s.Stop()
			for _, file := range files(t, "*.json") {
				for _, protocol := range []int{2, 3} {
					t.Run(fmt.Sprint(strings.TrimSuffix(filepath.Base(file), ".json"), "/", protocol), func(t *testing.T) {
						play(t, s, file, func(played scenario) {
							if played.Protocols != nil && !slices.Contains(played.Protocols, protocol) {
								t.Skip("only for the other protocol")
							}
							p := newPlaying(t, protocol, func() peer { return dial(t, s.Addr(), protocol) })
							defer func() {
								for _, c := range p.peers {
									c.close()
								}
							}()
							for _, step := range played.Steps {
								p.step(step)
							}
						})
					})
				}
			}
		})
	}
}

var errNotHeld = errors.New("not held")
