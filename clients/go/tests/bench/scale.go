package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/redis/go-redis/v9"
)

// length is the time for which renewals are measured: each hold is renewed three times.
const length = 30 * time.Second

// scale prints the costs of many waits and of many renewed holds of one client.
func scale(n int) {
	rdb := redis.NewClient(&redis.Options{Addr: *addr, PoolTimeout: time.Minute})
	defer rdb.Close()
	must(rdb.FlushAll(ctx).Err())
	locks := dlock.New(rdb)
	key := func(i int) string { return fmt.Sprint("scale:", i) }
	each := func(f func(i int)) {
		var group sync.WaitGroup
		for i := range n {
			group.Add(1)
			go func() { defer group.Done(); f(i) }()
		}
		group.Wait()
	}

	holds := make([]*dlock.Hold, n)
	each(func(i int) {
		h, err := locks.Acquire(ctx, key(i))
		must(err)
		holds[i] = h
	})
	usage, commands := cpu(), info(rdb, "total_commands_processed")
	time.Sleep(length)
	usage, commands = cpu()-usage, info(rdb, "total_commands_processed")-commands
	lost := 0
	for _, h := range holds {
		if h.Err() != nil {
			lost++
		}
	}
	minutes := length.Minutes()
	fmt.Printf("%d renewed holds of 30 s: %.2f s of CPU and %.0f commands a minute, %d lost\n", n, usage/minutes, commands/minutes, lost)

	waits, cancel := context.WithCancel(ctx)
	var before, after runtime.MemStats
	// The goroutines are those of the callers, so they exist before.
	start, ready, done := make(chan bool), sync.WaitGroup{}, sync.WaitGroup{}
	for i := range n {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			if _, err := locks.Acquire(waits, key(i)); waits.Err() == nil {
				must(err)
			}
		}()
	}
	ready.Wait()
	runtime.GC()
	runtime.ReadMemStats(&before)
	close(start)
	for info(rdb, "total_commands_processed") >= 0 {
		queued := 0
		for l, err := range locks.List(ctx, "scale:*") {
			must(err)
			queued += int(l.Waiters)
		}
		if queued >= n {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(time.Second)
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	fmt.Printf("%d waits: %d B of heap and %d B of stack each; %d subscriptions\n", n,
		int64(after.HeapAlloc-before.HeapAlloc)/int64(n), int64(after.StackInuse-before.StackInuse)/int64(n),
		len(rdb.PubSubChannels(ctx, "dlock:*").Val()))
	usage, commands = cpu(), info(rdb, "total_commands_processed")
	time.Sleep(length)
	fmt.Printf("%d waits beside %d renewed holds: %.2f s of CPU and %.0f commands a minute\n", n, n, (cpu()-usage)/minutes,
		(info(rdb, "total_commands_processed")-commands)/minutes)
	usage = cpu()
	cancel()
	done.Wait()
	fmt.Printf("%d waits cancelled: %.2f s of CPU\n", n, cpu()-usage)
	each(func(i int) { must(holds[i].Release(ctx)) })
	must(locks.Close(ctx))
}
