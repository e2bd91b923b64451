package dlocktest_test

import (
	"context"
	"os"
	"strings"
	"testing"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/dlocktest"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// environment names the first server of the tests.
func environment(t *testing.T) {
	programs := testserver.Programs()
	if len(programs) == 0 {
		t.Skip("set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run scripts/test-go.sh")
	}
	t.Setenv("DLOCK_SERVER", programs[0].Program)
	t.Setenv("DLOCK_MODULE", testserver.Module())
}

func TestRunStartsAServerForATest(t *testing.T) {
	environment(t)
	addr := ""
	t.Run("a test", func(t *testing.T) {
		s := dlocktest.Run(t, "--maxclients", "100")
		addr = s.Addr
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		ctx := context.Background()
		h, err := dlock.New(rdb).Acquire(ctx, "key")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if found := rdb.ConfigGet(ctx, "maxclients").Val()["maxclients"]; found != "100" {
			t.Fatal(found)
		}
	})
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	if rdb.Ping(context.Background()).Err() == nil {
		t.Error("the server outlasts its test")
	}
}

func TestStartSaysWhyThereIsNoServer(t *testing.T) {
	environment(t)
	check := func(want string, options ...string) {
		t.Helper()
		if s, err := dlocktest.Start(options...); s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check("no-such-option", "--no-such-option", "yes")
	t.Setenv("DLOCK_SERVER", "/no/server")
	check("/no/server")
	t.Setenv("DLOCK_SERVER", "")
	t.Setenv("PATH", t.TempDir())
	check("set DLOCK_SERVER")
	t.Setenv("DLOCK_SERVER", os.Args[0])
	t.Setenv("DLOCK_MODULE", "")
	check("set DLOCK_MODULE")
}
