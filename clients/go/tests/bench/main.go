// Command bench compares this client with bsm/redislock and redsync on one server with the module, in turns: pairs of
// acquire and release, and contenders for one lock. Then it measures many waits and many renewed holds of this client.
//
//	go run . -addr 127.0.0.1:6379 -rounds 5 -seconds 1
//
// With -json it prints one object for each comparison, and leaves the rest out. All libraries use the same go-redis
// client. The peers try again every 10 ms.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bsm/redislock"
	dlock "github.com/dlock/dlock/clients/go"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var (
	ctx     = context.Background()
	addr    = flag.String("addr", "127.0.0.1:6379", "server with the module")
	rounds  = flag.Int("rounds", 5, "rounds; each result is the median")
	seconds = flag.Float64("seconds", 1, "length of a measurement in s")
	only    = flag.String("only", "", "libraries, separated by commas")
	loads   = flag.String("loads", "", "loads, separated by commas: pairs-1,pairs-32,contend-8-0ms,..,scale")
	many    = flag.Int("scale", 10_000, "number of waits and of renewed holds")
	asJSON  = flag.Bool("json", false, "print one JSON object for each result")
)

const (
	ttl   = 30 * time.Second
	retry = 10 * time.Millisecond
)

// A library acquires a lock, waiting for it, and returns the function that releases it.
type library struct {
	name    string
	acquire func(key string) func()
}

// A load is callers that acquire, hold and release: each its own lock, or all the same one.
type load struct {
	name    string
	callers int
	hold    time.Duration
	same    bool
}

var allLoads = []load{
	{"pairs-1", 1, 0, false},
	{"pairs-32", 32, 0, false},
	{"contend-8-0ms", 8, 0, true},
	{"contend-64-0ms", 64, 0, true},
	{"contend-8-1ms", 8, time.Millisecond, true},
	{"contend-64-1ms", 64, time.Millisecond, true},
}

type result struct {
	Library  string  `json:"library"`
	Version  string  `json:"version"`
	Load     string  `json:"load"`
	Callers  int     `json:"callers"`
	PerS     float64 `json:"grants_per_s"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	Jain     float64 `json:"jain"`
	Commands float64 `json:"commands_per_grant"`
	Allocs   float64 `json:"allocs_per_grant"`
	// CPU time of a grant in us, which other work on the machine changes least.
	ClientCPU float64 `json:"client_cpu_us_per_grant"`
	ServerCPU float64 `json:"server_cpu_us_per_grant"`
}

func main() {
	flag.Parse()
	rdb := redis.NewClient(&redis.Options{Addr: *addr, PoolSize: 100})
	must(rdb.Ping(ctx).Err())
	locks := dlock.New(rdb)
	peer := redislock.New(rdb)
	sync := redsync.New(goredis.NewPool(rdb))
	libraries := []library{
		{"dlock", func(key string) func() {
			h, err := locks.Acquire(ctx, key)
			must(err)
			return func() { must(h.Release(ctx)) }
		}},
		{"redislock", func(key string) func() {
			l, err := peer.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
			must(err)
			return func() { must(l.Release(ctx)) }
		}},
		{"redsync", func(key string) func() {
			m := sync.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1<<30), redsync.WithRetryDelay(retry))
			must(m.LockContext(ctx))
			return func() { _, err := m.UnlockContext(ctx); must(err) }
		}},
	}
	libraries = slices.DeleteFunc(libraries, func(l library) bool { return !chosen(*only, l.name) })
	for _, load := range allLoads {
		if !chosen(*loads, load.name) {
			continue
		}
		found := map[string][]result{}
		for range *rounds {
			for _, l := range libraries {
				found[l.name] = append(found[l.name], measure(rdb, l, load))
			}
		}
		base := median(found[libraries[len(libraries)-1].name])
		if len(libraries) > 1 {
			base = median(found[libraries[1].name])
		}
		for _, l := range libraries {
			r := median(found[l.name])
			if *asJSON {
				json.NewEncoder(os.Stdout).Encode(r)
				continue
			}
			fmt.Printf("%-15s %-10s %8.0f grants/s (%.2f x %s)  p50 %7.2f  p99 %8.2f (%.2f x)  max %8.2f ms  Jain %.3f  %5.1f commands  %5.1f allocs  CPU %5.1f + %5.1f us a grant\n",
				r.Load, r.Library, r.PerS, r.PerS/base.PerS, base.Library, r.P50, r.P99, r.P99/base.P99, r.Max, r.Jain, r.Commands, r.Allocs, r.ClientCPU, r.ServerCPU)
		}
	}
	if !*asJSON && *many > 0 && chosen(*loads, "scale") {
		scale(*many)
	}
}

// cpu returns the CPU time of this process in s.
func cpu() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func chosen(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

func measure(rdb *redis.Client, l library, load load) result {
	must(rdb.FlushAll(ctx).Err())
	var stop atomic.Bool
	waits := make([][]time.Duration, load.callers)
	var group sync.WaitGroup
	// Connections and code are warm before the measurement.
	for i := range load.callers {
		group.Add(1)
		go func() { defer group.Done(); l.acquire(fmt.Sprint("warm:", i))() }()
	}
	group.Wait()
	commands, serverCPU := info(rdb, "total_commands_processed"), info(rdb, "used_cpu_user")+info(rdb, "used_cpu_sys")
	clientCPU := cpu()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	for i := range load.callers {
		group.Add(1)
		go func() {
			defer group.Done()
			key := "bench"
			if !load.same {
				key = fmt.Sprint("bench:", i)
			}
			mine := make([]time.Duration, 0, 1<<16)
			for !stop.Load() {
				asked := time.Now()
				release := l.acquire(key)
				mine = append(mine, time.Since(asked))
				if load.hold > 0 {
					time.Sleep(load.hold)
				}
				release()
			}
			waits[i] = mine
		}()
	}
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	stop.Store(true)
	group.Wait()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	clientCPU = cpu() - clientCPU
	commands = info(rdb, "total_commands_processed") - commands
	serverCPU = info(rdb, "used_cpu_user") + info(rdb, "used_cpu_sys") - serverCPU
	all := slices.Concat(waits...)
	slices.Sort(all)
	sum, squares := 0.0, 0.0
	for _, w := range waits {
		sum += float64(len(w))
		squares += float64(len(w)) * float64(len(w))
	}
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))]) / 1e6 }
	return result{
		Library: l.name, Version: version(l.name), Load: load.name, Callers: load.callers,
		PerS: sum / took.Seconds(), P50: at(0.5), P99: at(0.99), Max: at(1), Jain: sum * sum / float64(load.callers) / squares,
		Commands: commands / sum, Allocs: float64(after.Mallocs-before.Mallocs) / sum,
		ClientCPU: clientCPU * 1e6 / sum, ServerCPU: serverCPU * 1e6 / sum,
	}
}

// info returns a number of INFO.
func info(rdb *redis.Client, name string) (n float64) {
	for _, line := range strings.Split(rdb.Info(ctx, "stats", "cpu").Val(), "\r\n") {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			fmt.Sscan(rest, &n)
		}
	}
	return n
}

func median(all []result) result {
	by := func(value func(r *result) *float64, out *result) {
		sorted := slices.SortedFunc(slices.Values(all), func(a, b result) int { return cmp.Compare(*value(&a), *value(&b)) })
		*value(out) = *value(&sorted[len(sorted)/2])
	}
	m := all[0]
	for _, value := range []func(r *result) *float64{
		func(r *result) *float64 { return &r.PerS }, func(r *result) *float64 { return &r.P50 },
		func(r *result) *float64 { return &r.P99 }, func(r *result) *float64 { return &r.Max },
		func(r *result) *float64 { return &r.Jain }, func(r *result) *float64 { return &r.Commands },
		func(r *result) *float64 { return &r.Allocs },
		func(r *result) *float64 { return &r.ClientCPU }, func(r *result) *float64 { return &r.ServerCPU },
	} {
		by(value, &m)
	}
	return m
}

func version(library string) string {
	modules := map[string]string{"redislock": "github.com/bsm/redislock", "redsync": "github.com/go-redsync/redsync/v4", "dlock": "github.com/redis/go-redis/v9"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range info.Deps {
		if dep.Path == modules[library] {
			return dep.Version
		}
	}
	return ""
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
