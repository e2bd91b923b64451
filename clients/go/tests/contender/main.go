// Command contender is a client of one server, of a cluster or of sentinels under faults, as clients/fleet/contender.py
// is: it locks, writes and releases repeatedly until its input ends.
//
//	contender go-redis NUMBER LEASE URL
//
// LEASE is in ms. The name of each hold begins with NUMBER. crates/client/tests/chaos/foreign_clients.rs reads the output,
// and carries out the writes.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/redis/go-redis/v9"
)

// margin is by how much a wait or a release may outlast its limit.
const margin = 10 * time.Second

var (
	resources = strings.Fields(setting("DLOCK_RESOURCES", "ledger desk till"))
	// maxWait is the limit of each wait.
	maxWait = milliseconds(setting("DLOCK_WAIT", "3000"))
	// steady is the length of each hold. 0: random. Above 0, the client causes no faults itself.
	steady = milliseconds(setting("DLOCK_STEADY", "0"))
)

func main() {
	number, lease, url := os.Args[2], milliseconds(os.Args[3]), os.Args[4]
	if steady > 0 && os.Getenv("DLOCK_RESOURCES") == "" {
		resources = []string{"r"}
	}
	var stopping atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stopping.Store(true)
	}()
	redis.SetLogger(silent{})
	locks := dlock.New(connect(url), dlock.TTL(lease), dlock.MaxWait(maxWait))
	for tries := 0; !stopping.Load(); tries++ {
		attempt(locks, fmt.Sprintf("%s:%d", number, tries))
	}
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	locks.Close(ctx)
}

// connect takes redis://.., and redis-cluster:// and redis-sentinel:// followed by HOST:PORT?node=HOST:PORT&node=...
func connect(url string) redis.UniversalClient {
	kind, nodes, _ := strings.Cut(url, "://")
	var addrs []string
	for _, word := range strings.FieldsFunc(nodes, func(r rune) bool { return r == '?' || r == '&' }) {
		if addr := strings.TrimPrefix(word, "node="); !strings.Contains(addr, "=") {
			addrs = append(addrs, addr)
		}
	}
	switch kind {
	case "redis-cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	case "redis-sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: addrs, MasterName: "locks"})
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	return redis.NewClient(options)
}

// checkTime prints a line if a wait or a release has lasted too long. begun is in µs.
func checkTime(what string, begun int64) {
	took := time.Duration(micros()-begun) * time.Microsecond
	if took > maxWait+margin {
		fmt.Println("overdue", what, took.Milliseconds())
	}
}

// attempt acquires a lock once, and prints its steps.
func attempt(locks *dlock.Client, name string) {
	ctx := context.Background()
	resource := resources[rand.IntN(len(resources))]
	var opts []dlock.Option
	pauses := happens(0.04)
	if pauses {
		opts = append(opts, dlock.NoRenew())
	}
	if happens(0.05) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, upTo(30*time.Millisecond))
		defer cancel()
	}
	asked := micros()
	h, err := locks.Acquire(ctx, resource, opts...)
	checkTime("acquire", asked)
	if err != nil {
		fmt.Println("none")
		return
	}
	since := micros()
	length := upTo(5 * time.Millisecond)
	if happens(0.05) {
		length = upTo(1500 * time.Millisecond)
	}
	if steady > 0 {
		length = steady
	}
	validUntil := since
	// A write is printed even if the hold is lost: then the store must refuse it, by its fence.
	write := func() {
		// In this order: the process may be stopped between the two.
		at := micros()
		if valid := h.Valid(); valid > 0 {
			validUntil = at + valid.Microseconds()
		}
		fmt.Println("writes", resource, h.Fence(), name)
	}
	fmt.Println("holds")
	write()
	if pauses {
		time.Sleep(h.Valid() + upTo(time.Second))
		write()
	}
	for end := since + length.Microseconds(); h.Err() == nil && micros() < end; {
		pause := upTo(10 * time.Millisecond)
		if steady > 0 {
			pause = steady
		}
		time.Sleep(pause)
		write()
	}
	if h.Err() != nil {
		fmt.Println("lost")
	}
	fmt.Println("held", resource, h.Fence(), name, asked, since, min(validUntil, micros()))
	begun := micros()
	h.Release(context.Background()) // continues in the background if there is no answer
	checkTime("release", begun)
}

// micros returns the time in µs on CLOCK_MONOTONIC, the clock that the reader expects.
func micros() int64 {
	const clockMonotonic = 1
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano() / 1000
}

func happens(odds float64) bool { return steady == 0 && rand.Float64() < odds }

func upTo(longest time.Duration) time.Duration { return rand.N(longest) }

func milliseconds(text string) time.Duration {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(n) * time.Millisecond
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// silent drops the log of go-redis, which is about the faults.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
