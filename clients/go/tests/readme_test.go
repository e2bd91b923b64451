package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/dlock/dlock/clients/go/locker"
)

// goBlocks returns the Go code of a document.
func goBlocks(t *testing.T, path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(block[1]))
	}
	return blocks
}

// TestTheReadmeRuns: the first program of the README runs as it is; the other blocks are lines of the examples of the
// package, which run, too.
func TestTheReadmeRuns(t *testing.T) {
	blocks := goBlocks(t, "../README.md")
	if len(blocks) < 6 {
		t.Fatal(len(blocks))
	}
	s := servers[testserver.Programs()[0].Name]
	file := filepath.Join(t.TempDir(), "main.go")
	program := strings.ReplaceAll(blocks[0], "127.0.0.1:6379", s.Addr())
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !regexp.MustCompile(`^held, with the fence \d{16}\n$`).Match(out) {
		t.Fatal(err, string(out))
	}
	examples, err := os.ReadFile("../example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks[1:] {
		indented := "\t" + strings.ReplaceAll(strings.TrimSuffix(block, "\n"), "\n", "\n\t") + "\n"
		if !strings.Contains(string(examples), indented) {
			t.Errorf("not in example_test.go:\n%s", block)
		}
	}
	text, _ := os.ReadFile("../README.md")
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("the README has %d lines", n)
	}
}

func TestALockerExcludesAndReportsALoss(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		one, two := locker.New(ctx, f.c, f.key), locker.New(ctx, dlock.New(f.rdb), f.key)
		one.Lock()
		if two.TryLock() || one.TryLock() {
			t.Fatal("two holders")
		}
		locked := make(chan bool)
		go func() { two.Lock(); close(locked) }()
		f.until("it waits", func() bool { return f.queued() == 1 })
		// The default label names the caller of the Locker.
		if who, err := f.c.Inspect(ctx, f.key); err != nil || !strings.Contains(who.Holders[0].Label, "tests.TestALocker") {
			t.Errorf("%+v %v", who, err)
		}
		one.Unlock()
		<-locked
		two.Unlock()
		mustPanic(t, two.Unlock)
		// A lock that was lost panics, whether or not a renewal has seen the loss.
		one = locker.New(ctx, f.c, f.key, dlock.MaxHold(ms(1)))
		one.Lock()
		f.until("the hold is lost", func() bool { seen := one.Err(); return seen != nil })
		mustPanic(t, one.Unlock)
		one = locker.New(ctx, f.c, f.key)
		one.Lock()
		f.c.Break(ctx, f.key)
		mustPanic(t, one.Unlock)
	})
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f()
}

// frame is the program around the code of docs/moving.md.
const frame = `package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	dlock "github.com/dlock/dlock/clients/go"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var (
	ctx = context.Background()
	rdb = redis.NewClient(nil)
	_   = []any{dlock.New, errors.Is, goredis.NewPool, redislock.New, redsync.New, time.Second}
)

func bill(context.Context, int64) error { return nil }

func main() {}
`

// TestTheCodeOfMovingCompiles: each block of docs/moving.md in Go is the body of a function, as it is.
func TestTheCodeOfMovingCompiles(t *testing.T) {
	blocks := goBlocks(t, "../../../docs/moving.md")
	if len(blocks) < 4 {
		t.Fatal(len(blocks))
	}
	program := frame
	for i, block := range blocks {
		program += fmt.Sprintf("\nfunc block%d() error {\n%s", i, block)
		for _, names := range regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) :=`).FindAllStringSubmatch(block, -1) {
			blanks := strings.Repeat(", _", strings.Count(names[1], ","))
			program += fmt.Sprintf("_%s = %s\n", blanks, names[1])
		}
		program += "return nil\n}\n"
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", os.DevNull, file).CombinedOutput(); err != nil {
		t.Errorf("%s\n%s", out, program)
	}
}

// TestEachModuleHasTheLicences: a module in a subdirectory has no files of its parents. Archives of modules leave
// symbolic links out.
func TestEachModuleHasTheLicences(t *testing.T) {
	for copied, original := range map[string]string{"LICENSE": "LICENSE-MIT", "LICENSE-APACHE": "LICENSE-APACHE"} {
		want, err := os.ReadFile(filepath.Join("../../..", original))
		if err != nil {
			t.Fatal(err)
		}
		for _, module := range []string{"..", "../dlockotel"} {
			path := filepath.Join(module, copied)
			text, err := os.ReadFile(path)
			if err != nil || string(text) != string(want) {
				t.Error(path, err)
			} else if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
				t.Error(path, err)
			}
		}
	}
}
