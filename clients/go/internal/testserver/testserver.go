// Package testserver starts Redis and Valkey servers with the module, and proxies that cause faults, for tests.
package testserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Limit is the longest time for which a test waits for a condition.
const Limit = 30 * time.Second

// Named is a server program.
type Named struct{ Name, Program string }

func init() { redis.SetLogger(quiet{}) }

// quiet drops the log of go-redis: the tests break connections on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Programs returns the servers of DLOCK_TEST_SERVERS ("redis-7.0=/path,valkey-8.0=/path").
func Programs() []Named {
	var all []Named
	for _, entry := range strings.Split(os.Getenv("DLOCK_TEST_SERVERS"), ",") {
		if name, program, ok := strings.Cut(entry, "="); ok {
			all = append(all, Named{name, program})
		}
	}
	return all
}

// Module returns the path of the module.
func Module() string { return os.Getenv("DLOCK_TEST_MODULE") }

// Server is a server with the module, on a free port, in a folder of its own.
type Server struct {
	Port    int
	program string
	folder  string
	options []string
	bare    bool
	claim   net.Listener
	process *exec.Cmd
}

// Start starts a server. It panics if that fails, so that examples can use it, too.
func Start(program string, options ...string) *Server { return start(program, false, options) }

// StartBare starts a server without the module.
func StartBare(program string) *Server { return start(program, true, nil) }

func start(program string, bare bool, options []string) *Server {
	if program == "" {
		panic("set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run scripts/test-go.sh")
	}
	folder, err := os.MkdirTemp("", "dlock-go-")
	if err != nil {
		panic(err)
	}
	s := &Server{program: program, folder: folder, options: options, bare: bare}
	s.Port, s.claim = freePort()
	s.Restart()
	return s
}

// freePort claims a port of 127.0.0.1 as the tests in the other languages do: by a listener on the same port of
// 127.0.0.2. A node of a cluster also uses the port 10000 above its own.
func freePort() (int, net.Listener) {
	for {
		port := 10_000 + rand.IntN(10_000)
		claim, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
		if err != nil {
			continue
		}
		free := true
		for _, other := range []int{port, port + 10_000} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", other))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return port, claim
		}
		claim.Close()
	}
}

// Addr returns the address of the server.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// Client returns a go-redis client that waits 30 s for a reply, as a busy machine answers late.
func (s *Server) Client() *redis.Client { return PatientClient(s.Addr()) }

// PatientClient returns a client that waits 30 s for a reply.
func PatientClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: Limit, MaxRetries: -1})
}

// Restart starts the process, after Kill.
func (s *Server) Restart() {
	args := []string{"--bind", "127.0.0.1", "--port", fmt.Sprint(s.Port), "--save", "", "--dir", s.folder}
	if !s.bare {
		args = append(args, "--loadmodule", Module())
	}
	log, err := os.OpenFile(filepath.Join(s.folder, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer log.Close()
	s.process = exec.Command(s.program, append(args, s.options...)...)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for end := time.Now().Add(Limit); rdb.Ping(context.Background()).Err() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(s.folder, "log"))
			panic("the server does not answer: " + string(text))
		}
	}
}

// Kill ends the process by SIGKILL.
func (s *Server) Kill() {
	s.process.Process.Kill()
	s.process.Wait()
}

// Pause suspends the process, Continue resumes it.
func (s *Server) Pause()    { s.process.Process.Signal(syscall.SIGSTOP) }
func (s *Server) Continue() { s.process.Process.Signal(syscall.SIGCONT) }

// Stop ends the server, and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	s.claim.Close()
	os.RemoveAll(s.folder)
}

// Until waits for a condition.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", Limit, what)
		}
	}
}
