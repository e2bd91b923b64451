package tests

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// cluster starts three masters that share the slots, for this test alone.
func cluster(t *testing.T, program string) ([]*testserver.Server, *redis.ClusterClient) {
	nodes := startCluster(t, program)
	for _, s := range nodes {
		t.Cleanup(s.Stop)
	}
	return nodes, clusterClient(t, nodes)
}

func clusterClient(t *testing.T, nodes []*testserver.Server) *redis.ClusterClient {
	var addrs []string
	for _, s := range nodes {
		addrs = append(addrs, s.Addr())
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: testserver.Limit})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

var (
	clustersMu sync.Mutex
	clusters   = map[string][]*testserver.Server{}
)

// sharedCluster returns the cluster of this program that all tests share.
func sharedCluster(t *testing.T, program string) []*testserver.Server {
	clustersMu.Lock()
	defer clustersMu.Unlock()
	if clusters[program] == nil {
		clusters[program] = startCluster(t, program)
	}
	return clusters[program]
}

// everywhere runs a test on each server, as onEach does, and on a cluster of each.
func everywhere(t *testing.T, test func(t *testing.T, f *fixture)) {
	onEach(t, test)
	for _, named := range testserver.Programs() {
		t.Run(named.Name+" cluster", func(t *testing.T) {
			t.Parallel()
			nodes := sharedCluster(t, named.Program)
			all := clusterClient(t, nodes)
			// The other keys of the test are in the same slot.
			key := "{" + strings.ReplaceAll(t.Name(), "/", ":") + "}"
			owner, err := all.MasterForKey(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range nodes {
				if s.Addr() == owner.Options().Addr {
					rdb := s.Client()
					t.Cleanup(func() { rdb.Close() })
					test(t, &fixture{t, s, rdb, dlock.New(all), key})
				}
			}
		})
	}
}

func startCluster(t *testing.T, program string) (nodes []*testserver.Server) {
	for range 3 {
		s := testserver.Start(program, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
		nodes = append(nodes, s)
	}
	for i, s := range nodes {
		rdb := s.Client()
		defer rdb.Close()
		for _, err := range []error{
			rdb.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", 16384*i/3, 16384*(i+1)/3-1).Err(),
			rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(),
			rdb.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(nodes[0].Port)).Err(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range nodes {
		rdb := s.Client()
		defer rdb.Close()
		testserver.Until(t, "the cluster is whole", func() bool {
			info := rdb.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:16384") &&
				strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return nodes
}

// inTurn acquires a lock twice, one after the other, with a wait.
func inTurn(t *testing.T, c *dlock.Client, key string, opts ...dlock.Option) {
	t.Helper()
	first, err := c.Acquire(limited(t), key, opts...)
	if err != nil {
		t.Fatal(key, err)
	}
	granted := make(chan *dlock.Hold)
	go func() {
		h, err := c.Acquire(limited(t), key, opts...)
		if err != nil {
			t.Error(key, err)
		}
		granted <- h
	}()
	testserver.Until(t, "it waits", func() bool { w, err := c.Waiters(ctx, key, 9); return err == nil && len(w) == 1 })
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if second := <-granted; second == nil || second.Fence() <= first.Fence() || second.Release(ctx) != nil {
		t.Fatal(key, second)
	}
}

func onEachProgram(t *testing.T, test func(t *testing.T, program string)) {
	for _, named := range testserver.Programs() {
		t.Run(named.Name, func(t *testing.T) {
			t.Parallel()
			test(t, named.Program)
		})
	}
}

func TestAClusterGrantsAndHandsOver(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		c := dlock.New(rdb)
		for _, key := range []string{"a", "b", "c", "{tag}:d"} {
			inTurn(t, c, key)
			inTurn(t, c, key, dlock.Ephemeral())
		}
		holds, err := c.AcquireAll(ctx, []string{"a", "b", "c"}, dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]bool{}
		for l, err := range c.List(ctx, "") {
			if err != nil {
				t.Fatal(err)
			}
			listed[l.Key] = true
		}
		if len(listed) != 3 {
			t.Fatal(listed)
		}
		if _, err := c.Log(ctx, 5, ""); err != nil {
			t.Fatal(err)
		}
		// Each node reports a loss.
		for i, h := range holds {
			c.Break(ctx, h.Key())
			lostByItself(t, h)
			if holds[i], err = c.Acquire(limited(t), h.Key()); err != nil {
				t.Fatal(err)
			}
		}
		if err := holds.Release(ctx); err != nil {
			t.Fatal(err)
		}
		path, err := c.AcquirePath(ctx, "x/y")
		if err != nil || path.Release(ctx) != nil {
			t.Fatal(err)
		}

		// A slot that moves: the hold goes along, and its renewals and its release are redirected.
		h, err := c.Acquire(ctx, "moves", dlock.TTL(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		slot := rdb.ClusterKeySlot(ctx, "moves").Val()
		from := int(slot * 3 / 16384)
		if slot >= int64(16384*(from+1)/3) {
			from++
		}
		to := (from + 1) % 3
		src, dst := nodes[from].Client(), nodes[to].Client()
		defer src.Close()
		defer dst.Close()
		srcID, dstID := src.ClusterMyID(ctx).Val(), dst.ClusterMyID(ctx).Val()
		for _, err := range []error{
			dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", srcID).Err(),
			src.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", dstID).Err(),
			src.Migrate(ctx, "127.0.0.1", fmt.Sprint(nodes[to].Port), "moves", 0, 5*time.Second).Err(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, node := range nodes {
			rdb := node.Client()
			rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dstID)
			rdb.Close()
		}
		before := calls(dst, "dlock.extend")
		testserver.Until(t, "the hold is renewed at its new node", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			return calls(dst, "dlock.extend") > before
		})
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		inTurn(t, c, "moves")
	})
}

func TestHoldsAtOtherNodesSurviveANodeThatHangs(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		c := dlock.New(rdb, dlock.TTL(6*time.Second))
		// "a" is at the last node, "b" and "c" at the first two.
		holds := map[string]*dlock.Hold{}
		for _, key := range []string{"a", "b", "c"} {
			h, err := c.Acquire(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			holds[key] = h
		}
		nodes[2].Pause()
		<-holds["a"].Context().Done()
		for _, key := range []string{"b", "c"} {
			if v := holds[key].Valid(); v <= 0 {
				t.Error(key, holds[key].Err())
			}
		}
		nodes[2].Continue()
		for _, key := range []string{"b", "c"} {
			if err := holds[key].Release(ctx); err != nil {
				t.Error(err)
			}
		}
		holds["a"].Release(ctx)
		// The go-redis client is closed after the test: no release may be under way then.
		if err := c.Close(limited(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestALockBehindSentinelWorksAfterAFailover(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		master := testserver.Start(program)
		defer master.Stop()
		replica := testserver.Start(program, "--replicaof", "127.0.0.1", fmt.Sprint(master.Port))
		defer replica.Stop()
		direct := master.Client()
		defer direct.Close()
		testserver.Until(t, "the replica is connected", func() bool {
			return strings.Contains(direct.Info(ctx, "replication").Val(), "state=online")
		})
		addr := sentinel(t, program, master.Port)
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{addr}, ReadTimeout: time.Second})
		defer rdb.Close()
		c := dlock.New(rdb)
		defer c.Close(ctx)
		inTurn(t, c, "foo")
		broken, err := c.Acquire(ctx, "foo", dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		c.Break(ctx, "foo")
		lostByItself(t, broken)
		held, err := c.Acquire(ctx, "bar", dlock.TTL(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		testserver.Until(t, "the replica has the hold", func() bool {
			rdb := replica.Client()
			defer rdb.Close()
			return rdb.Exists(ctx, "bar").Val() == 1
		})
		master.Kill()
		testserver.Until(t, "the hold is at the new master", func() bool { ok, err := held.Held(ctx); return ok && err == nil })
		testserver.Until(t, "locks are granted", func() bool {
			h, err := c.Acquire(limited(t), "foo", dlock.MaxWait(2*time.Second))
			return err == nil && h.Release(ctx) == nil
		})
		inTurn(t, c, "foo")
		if err := held.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// sentinel starts a sentinel that watches the master, and returns its address.
func sentinel(t *testing.T, program string, port int) string {
	folder := t.TempDir()
	config := filepath.Join(folder, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor main 127.0.0.1 %d 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n", port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	_, number, _ := strings.Cut(addr, ":")
	process := exec.Command(program, config, "--sentinel", "--bind", "127.0.0.1", "--port", number)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	rdb := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	testserver.Until(t, "the sentinel knows the replica", func() bool {
		replicas, err := rdb.Replicas(ctx, "main").Result()
		return err == nil && len(replicas) == 1
	})
	return addr
}
