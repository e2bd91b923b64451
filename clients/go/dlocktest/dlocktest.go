// Package dlocktest starts servers with the module dlock for the tests of your program. The environment variable
// DLOCK_MODULE has the path of the module, and DLOCK_SERVER that of the server program; by default, the valkey-server or
// redis-server in the PATH.
//
// For a test without a server, let your code call a function of your own type: see the example of this package.
package dlocktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// startLimit is the longest time until a server answers.
	startLimit = 30 * time.Second
	// tries is the number of tries to start a server: another process may take the free port meanwhile.
	tries = 5
)

// A Server is a server with the module, on a free port of 127.0.0.1, which stores nothing on a disk.
type Server struct {
	// Addr is the address of the server, for the Options of go-redis.
	Addr string

	folder  string
	process *exec.Cmd
	// ended is closed once the process has ended.
	ended chan struct{}
}

// Run starts a server for a test, and stops it at the end of the test. The options are further arguments of the server,
// such as "--appendonly", "yes".
func Run(t testing.TB, options ...string) *Server {
	t.Helper()
	s, err := Start(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Start starts a server, for a TestMain. It returns an error with the log of the server if it does not start.
func Start(options ...string) (*Server, error) {
	program, err := program()
	if err != nil {
		return nil, err
	}
	module := os.Getenv("DLOCK_MODULE")
	if module == "" {
		return nil, errors.New("dlocktest: set DLOCK_MODULE to the path of the module (libdlock.so)")
	}
	if module, err = filepath.Abs(module); err != nil {
		return nil, err
	}
	for left := tries; ; left-- {
		s, log, err := start(program, append([]string{"--loadmodule", module}, options...))
		if err == nil {
			return s, nil
		}
		if left == 1 || !bytes.Contains(log, []byte("already in use")) {
			return nil, fmt.Errorf("dlocktest: %s has not started: %w: %s", program, err, log)
		}
	}
}

// Stop ends the server, and removes its folder.
func (s *Server) Stop() {
	s.process.Process.Kill()
	<-s.ended
	os.RemoveAll(s.folder)
}

func program() (string, error) {
	if program := os.Getenv("DLOCK_SERVER"); program != "" {
		return program, nil
	}
	for _, name := range []string{"valkey-server", "redis-server"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", errors.New("dlocktest: no valkey-server or redis-server in the PATH: set DLOCK_SERVER")
}

// start starts a server once. If it does not answer, start returns its log.
func start(program string, options []string) (*Server, []byte, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	s := &Server{Addr: listener.Addr().String(), ended: make(chan struct{})}
	listener.Close()
	if s.folder, err = os.MkdirTemp("", "dlocktest-"); err != nil {
		return nil, nil, err
	}
	_, port, _ := net.SplitHostPort(s.Addr)
	fixed := []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", s.folder}
	s.process = exec.Command(program, append(fixed, options...)...)
	var log bytes.Buffer // complete once the process has ended
	s.process.Stdout, s.process.Stderr = &log, &log
	if err := s.process.Start(); err != nil {
		os.RemoveAll(s.folder)
		return nil, nil, err
	}
	go func() {
		s.process.Wait()
		close(s.ended)
	}()
	if err := s.answers(); err != nil {
		s.Stop()
		return nil, log.Bytes()[max(log.Len()-2000, 0):], err
	}
	return s, nil, nil
}

// answers waits until the server answers.
func (s *Server) answers() error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for end := time.Now().Add(startLimit); ; {
		err := rdb.Ping(context.Background()).Err()
		if err == nil {
			// Another server may have taken the port.
			select {
			case <-s.ended:
				return errors.New("its process has ended")
			default:
				return nil
			}
		}
		if time.Now().After(end) {
			return err
		}
		select {
		case <-s.ended:
			return errors.New("its process has ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
