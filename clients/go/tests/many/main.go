// Command many is the Go client that the benchmark crates/bench/clients/clients.py measures. The commands that it reads
// and its replies are documented there.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/redis/go-redis/v9"
)

var (
	ctx   = context.Background()
	locks *dlock.Client
	// acquiring is done once each acquisition that "start" began has ended.
	acquiring sync.WaitGroup
	mu        sync.Mutex
	held      []*dlock.Hold
	failed    int
	why       error
)

func main() {
	locks = dlock.New(redis.NewClient(&redis.Options{Addr: os.Args[1]}), dlock.TTL(30*time.Second))
	last := cpu()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		var numbers []int
		for _, word := range words[1:] {
			number, err := strconv.Atoi(word)
			if err != nil {
				panic(err)
			}
			numbers = append(numbers, number)
		}
		answer := execute(words[0], numbers)
		now := cpu()
		answer["cpu_s"] = (now - last).Seconds()
		last = now
		json.NewEncoder(os.Stdout).Encode(answer)
	}
}

// execute runs a command, and returns its reply.
func execute(verb string, numbers []int) map[string]any {
	switch verb {
	case "start":
		for number := range numbers[0] {
			run(&acquiring, func() {
				hold, err := locks.Acquire(ctx, "key:"+strconv.Itoa(number))
				record(hold, err)
			})
		}
		return map[string]any{}
	case "wait":
		acquiring.Wait()
		return failures()
	case "pause":
		time.Sleep(time.Duration(numbers[0]) * time.Second)
		lost := 0
		for _, hold := range held {
			if hold.Err() != nil {
				lost++
			}
		}
		return map[string]any{"lost": lost}
	case "release":
		var releases sync.WaitGroup
		for _, hold := range held {
			run(&releases, func() { record(nil, hold.Release(ctx)) })
		}
		releases.Wait()
		return failures()
	case "contend":
		var grants atomic.Int64
		var contenders sync.WaitGroup
		end := time.Now().Add(time.Duration(numbers[1]) * time.Second)
		for range numbers[0] {
			run(&contenders, func() {
				for time.Now().Before(end) {
					err := locks.Do(ctx, "contended", func(context.Context, *dlock.Hold) error { grants.Add(1); return nil })
					if err != nil {
						record(nil, err)
						return
					}
				}
			})
		}
		contenders.Wait()
		answer := failures()
		answer["grants"] = grants.Load()
		return answer
	}
	panic("unknown command: " + verb)
}

// run calls f in a goroutine of the group.
func run(group *sync.WaitGroup, f func()) {
	group.Add(1)
	go func() {
		defer group.Done()
		f()
	}()
}

// record stores a hold, or counts an error.
func record(hold *dlock.Hold, err error) {
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		failed++
		why = err
	} else if hold != nil {
		held = append(held, hold)
	}
}

// failures returns the number of errors since its last call, and one of them.
func failures() map[string]any {
	mu.Lock()
	defer mu.Unlock()
	answer := map[string]any{"failed": failed, "why": ""}
	if why != nil {
		answer["why"] = why.Error()
	}
	failed, why = 0, nil
	return answer
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
