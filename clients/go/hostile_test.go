package dlock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// hostile returns the address of a server that gives these answers to ACQUIRE and SUBSCRIBE.
func hostile(t *testing.T, acquire, subscribe string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					// Each word of a command is a line.
					switch word := strings.ToUpper(lines.Text()); word {
					case "DLOCK.ACQUIRE":
						fmt.Fprint(conn, acquire)
					case "SUBSCRIBE":
						fmt.Fprint(conn, subscribe)
					case "HELLO", "CLIENT", "DLOCK.RELEASE", "PING":
						fmt.Fprint(conn, "-ERR unknown command\r\n")
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func TestAnImpossibleFenceIsNoGrant(t *testing.T) {
	for _, fence := range []string{"0", "-5", "9007199254740992"} {
		rdb := redis.NewClient(&redis.Options{Addr: hostile(t, ":"+fence+"\r\n", ""), MaxRetries: -1})
		h, err := New(rdb, TTL(100*time.Millisecond)).TryAcquire(context.Background(), "k")
		if h != nil || !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), fence) {
			t.Error(fence, err)
		}
		rdb.Close()
	}
}

func TestAnImpossibleMessagePanicsNowhere(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: hostile(t, "$-1\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n$1\r\nx\r\n"), MaxRetries: -1, Protocol: 2})
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := New(rdb).Acquire(ctx, "k"); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
}
