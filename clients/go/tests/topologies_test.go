package tests

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	// Without a reason, go-redis reads the map of the slots only once.
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, ReadTimeout: testserver.Limit, ClusterStateReloadInterval: time.Hour,
	})
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
					test(t, &fixture{t, s, rdb, newClient(t, all), key})
				}
			}
		})
	}
}

var clusterOptions = []string{
	"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "3000",
}

func startCluster(t *testing.T, program string) (nodes []*testserver.Server) {
	for range 3 {
		s := testserver.Start(program, clusterOptions...)
		nodes = append(nodes, s)
	}
	for i, s := range nodes {
		rdb := s.Client()
		defer rdb.Close()
		for _, err := range []error{
			rdb.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", 16384*i/3, 16384*(i+1)/3-1).Err(),
			rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range nodes[1:] {
		meet(t, s, nodes[0])
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

// meet adds a node to the cluster of another one. A node forgets a handshake that lasts longer than its node timeout.
func meet(t *testing.T, s, other *testserver.Server) {
	t.Helper()
	rdb := s.Client()
	defer rdb.Close()
	testserver.Until(t, "the node knows another one", func() bool {
		if strings.Contains(rdb.ClusterInfo(ctx).Val(), "cluster_known_nodes:1\r") {
			rdb.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(other.Port))
			return false
		}
		return !strings.Contains(rdb.ClusterNodes(ctx).Val(), "handshake")
	})
}

// waitingFor lets a client wait for a lock, and returns once it is queued.
func waitingFor(t *testing.T, c *dlock.Client, key string, opts ...dlock.Option) <-chan *dlock.Hold {
	t.Helper()
	return (&fixture{t: t, c: c, key: key}).waiting(c, opts...)
}

// inTurn acquires a lock twice, one after the other, with a wait.
func inTurn(t *testing.T, c *dlock.Client, key string, opts ...dlock.Option) {
	t.Helper()
	first, err := c.Acquire(limited(t), key, opts...)
	if err != nil {
		t.Fatal(key, err)
	}
	granted := waitingFor(t, c, key, opts...)
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
		_, rdb := cluster(t, program)
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
	})
}

func TestHoldsAndWaitsGoAlongWithTheirSlot(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		c := dlock.New(rdb)
		h, err := c.Acquire(ctx, "moves", dlock.TTL(12*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted := waitingFor(t, c, "moves", dlock.TTL(time.Hour))
		dst := move(t, nodes, rdb, "moves")
		defer dst.Close()
		before := calls(dst, "dlock.extend")
		testserver.Until(t, "the hold is renewed at its new node", func() bool {
			if h.Err() != nil {
				t.Fatal(h.Err())
			}
			return calls(dst, "dlock.extend") > before
		})
		testserver.Until(t, "it waits at the new node", func() bool { return queuedAt(dst, "moves") == 1 })
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		second := <-granted
		// The new node reports losses.
		c.Break(ctx, "moves")
		lostByItself(t, second)
		inTurn(t, c, "moves")
	})
}

// TestAnEphemeralHoldEndsAfterItsSlotHasMoved: its connection leads to the old node, so the new one never sees it close.
func TestAnEphemeralHoldEndsAfterItsSlotHasMoved(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		c := dlock.New(rdb, dlock.TTL(6*time.Second))
		for key, released := range map[string]bool{"released": true, "renewed": false} {
			h, err := c.Acquire(limited(t), key, dlock.Ephemeral())
			if err != nil {
				t.Fatal(err)
			}
			granted := waitingFor(t, c, key, dlock.TTL(time.Hour))
			dst := move(t, nodes, rdb, key)
			defer dst.Close()
			if released {
				if err := h.Release(ctx); err != nil {
					t.Error(err)
				}
			}
			second := <-granted
			if second == nil || !released && !errors.Is(h.Err(), dlock.ErrLost) {
				t.Fatal(key, second, h.Err())
			}
			if n := calls(dst, "dlock.extend"); n > 0 {
				t.Error(key, "was renewed at its new node", n)
			}
		}
	})
}

// TestAConnectionOfAHoldLeadsToTheNodeOfItsSlot: the cluster client has the map from before the slot moved.
func TestAConnectionOfAHoldLeadsToTheNodeOfItsSlot(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		c := dlock.New(rdb)
		h, err := c.Acquire(limited(t), "moves")
		if err != nil {
			t.Fatal(err)
		}
		var stale []*dlock.Client
		for range 2 {
			other := dlock.New(clusterClient(t, nodes))
			if _, err := other.Inspect(ctx, "moves"); err != nil {
				t.Fatal(err)
			}
			stale = append(stale, other)
		}
		granted := waitingFor(t, c, "moves")
		move(t, nodes, rdb, "moves").Close()
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if second := <-granted; second == nil || second.Release(ctx) != nil {
			t.Fatal(second)
		}
		if h, err = stale[0].Acquire(limited(t), "moves", dlock.Ephemeral()); err != nil {
			t.Fatal(err)
		}
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		_, err = stale[1].Acquire(limited(t), "moves", dlock.Durable(1, ms(50)))
		if !errors.Is(err, dlock.ErrNotDurable) || !strings.HasSuffix(err.Error(), "0 copies") {
			t.Fatal(err)
		}
	})
}

// queuedAt returns the number of waiters for a lock at one server.
func queuedAt(rdb *redis.Client, key string) int {
	waiters, _ := rdb.Do(ctx, "DLOCK.WAITERS", key).Slice()
	return len(waiters)
}

// move moves the slot of a lock to the next node, and returns a client of that node.
func move(t *testing.T, nodes []*testserver.Server, rdb *redis.ClusterClient, key string) *redis.Client {
	t.Helper()
	slot := rdb.ClusterKeySlot(ctx, key).Val()
	owner, err := rdb.MasterForKey(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	from := slices.IndexFunc(nodes, func(s *testserver.Server) bool { return s.Addr() == owner.Options().Addr })
	to := nodes[(from+1)%len(nodes)]
	src, dst := nodes[from].Client(), to.Client()
	defer src.Close()
	srcID, dstID := src.ClusterMyID(ctx).Val(), dst.ClusterMyID(ctx).Val()
	settled := func(rdb *redis.Client) error { return rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dstID).Err() }
	for _, err := range []error{
		dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", srcID).Err(),
		src.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", dstID).Err(),
		src.Migrate(ctx, "127.0.0.1", fmt.Sprint(to.Port), key, 0, 5*time.Second).Err(),
		settled(src),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Until the new node knows that the slot is its own, the two nodes name each other. Valkey 8 learns it by itself soon.
	redirected := func() (n int) {
		_, count, _ := strings.Cut(src.Info(ctx, "errorstats").Val(), "errorstat_MOVED:count=")
		fmt.Sscan(count, &n)
		return n
	}
	before := redirected()
	testserver.Until(t, "requests are redirected in a circle", func() bool {
		return redirected() > before+5 || dst.Exists(ctx, key).Err() == nil
	})
	for _, node := range nodes {
		rdb := node.Client()
		if err := settled(rdb); err != nil {
			t.Fatal(err)
		}
		rdb.Close()
	}
	return dst
}

// TestAClusterFailsOver: holds and waits continue at the promoted replica, after CLUSTER FAILOVER and after kill -9.
func TestAClusterFailsOver(t *testing.T) {
	for name, fail := range map[string]func(master *testserver.Server, replica *redis.Client){
		"planned": func(_ *testserver.Server, replica *redis.Client) { replica.Do(ctx, "CLUSTER", "FAILOVER") },
		"killed":  func(master *testserver.Server, _ *redis.Client) { master.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachProgram(t, func(t *testing.T, program string) {
				nodes, rdb := cluster(t, program)
				replica := addReplica(t, program, nodes)
				direct := replica.Client()
				defer direct.Close()
				c := dlock.New(rdb, dlock.TTL(15*time.Second))
				defer c.Close(limited(t))
				key, other := keyAt(t, rdb, nodes[0]), keyAt(t, rdb, nodes[1])

				// The replica of the node of the lock counts, and no other one.
				h, err := c.Acquire(ctx, key, dlock.Durable(1, 20*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Acquire(ctx, other, dlock.Durable(1, ms(50))); !errors.Is(err, dlock.ErrNotDurable) {
					t.Fatal(err)
				}
				elsewhere, err := c.Acquire(ctx, other)
				if err != nil {
					t.Fatal(err)
				}
				granted := waitingFor(t, c, key, dlock.TTL(time.Hour))

				fail(nodes[0], direct)
				testserver.Until(t, "the replica is promoted", func() bool {
					return strings.Contains(direct.Info(ctx, "replication").Val(), "role:master")
				})
				testserver.Until(t, "it waits at the new master", func() bool { return queuedAt(direct, key) == 1 })
				testserver.Until(t, "the hold is renewed there", func() bool { return calls(direct, "dlock.extend") > 0 })
				if err := errors.Join(h.Release(ctx), elsewhere.Release(ctx)); err != nil {
					t.Fatal(err)
				}
				second := <-granted
				if second == nil || second.Fence() <= h.Fence() {
					t.Fatal(second)
				}
				// The new master reports losses.
				c.Break(ctx, key)
				lostByItself(t, second)
			})
		})
	}
}

// TestASubscriptionFollowsAPromotedReplica: no request is sent to its node, so only the subscription itself fails.
func TestASubscriptionFollowsAPromotedReplica(t *testing.T) {
	onEachProgram(t, func(t *testing.T, program string) {
		nodes, rdb := cluster(t, program)
		replica := addReplica(t, program, nodes)
		first, promoted := nodes[0].Client(), replica.Client()
		defer first.Close()
		defer promoted.Close()
		subscriptions := func(rdb *redis.Client) int { return len(rdb.PubSubChannels(ctx, "dlock:*").Val()) }
		key := keyAt(t, rdb, nodes[1])
		h, err := dlock.New(rdb).Acquire(ctx, key, dlock.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		// The channel of a client has a random name, which decides about its node.
		var granted <-chan *dlock.Hold
		for subscriptions(first) == 0 {
			if granted != nil {
				h.Release(ctx)
				h = <-granted
			}
			granted = waitingFor(t, dlock.New(rdb), key, dlock.TTL(time.Hour))
		}
		nodes[0].Kill()
		testserver.Until(t, "the wait is subscribed at the promoted replica", func() bool { return subscriptions(promoted) == 1 })
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if second := <-granted; second == nil || second.Release(ctx) != nil {
			t.Fatal(second)
		}
	})
}

// addReplica adds a replica of the first node.
func addReplica(t *testing.T, program string, nodes []*testserver.Server) *testserver.Server {
	t.Helper()
	s := testserver.Start(program, clusterOptions...)
	t.Cleanup(s.Stop)
	rdb, master := s.Client(), nodes[0].Client()
	defer rdb.Close()
	defer master.Close()
	id := master.ClusterMyID(ctx).Val()
	meet(t, s, nodes[0])
	testserver.Until(t, "the replica knows its master", func() bool { return rdb.ClusterReplicate(ctx, id).Err() == nil })
	testserver.Until(t, "the replica replicates", func() bool {
		return strings.Contains(master.Info(ctx, "replication").Val(), "state=online")
	})
	for _, node := range nodes {
		other := node.Client()
		defer other.Close()
		testserver.Until(t, "all nodes know the replica", func() bool {
			return strings.Contains(other.ClusterNodes(ctx).Val(), " slave "+id)
		})
	}
	return s
}

// keyAt returns the name of a lock at this node.
func keyAt(t *testing.T, rdb *redis.ClusterClient, node *testserver.Server) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprint("key:", i)
		if owner, err := rdb.MasterForKey(ctx, key); err == nil && owner.Options().Addr == node.Addr() {
			return key
		}
	}
	t.Fatal("no key at", node.Addr())
	return ""
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

// behindSentinel starts a master, its replica and a sentinel. It returns the master, clients of both, the address of the
// sentinel, and a client that finds the master by it.
func behindSentinel(t *testing.T, program string) (master *testserver.Server, direct, promoted *redis.Client, addr string, c *dlock.Client) {
	master = testserver.Start(program)
	t.Cleanup(master.Stop)
	replica := testserver.Start(program, "--replicaof", "127.0.0.1", fmt.Sprint(master.Port))
	t.Cleanup(replica.Stop)
	direct, promoted = master.Client(), replica.Client()
	t.Cleanup(func() { direct.Close(); promoted.Close() })
	testserver.Until(t, "the replica is connected", func() bool {
		return strings.Contains(direct.Info(ctx, "replication").Val(), "state=online")
	})
	addr = sentinel(t, program, master.Port)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{addr}, ReadTimeout: time.Second})
	t.Cleanup(func() { rdb.Close() })
	c = dlock.New(rdb)
	t.Cleanup(func() { c.Close(limited(t)) })
	return master, direct, promoted, addr, c
}

// failOver lets the sentinel begin a failover to this replica. On a slow machine, it may have begun by itself, or find no
// good replica at first.
func failOver(t *testing.T, replica *redis.Client, addr string) {
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer sentinel.Close()
	testserver.Until(t, "a failover begins", func() bool {
		return sentinel.Failover(ctx, "main").Err() == nil || strings.Contains(replica.Info(ctx, "replication").Val(), "role:master")
	})
}

func TestALockBehindSentinelWorksAfterAFailover(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, master *testserver.Server, promoted *redis.Client, addr string){
		"planned": func(t *testing.T, _ *testserver.Server, promoted *redis.Client, addr string) {
			failOver(t, promoted, addr)
		},
		"killed": func(_ *testing.T, master *testserver.Server, _ *redis.Client, _ string) { master.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachProgram(t, func(t *testing.T, program string) {
				master, _, promoted, addr, c := behindSentinel(t, program)
				inTurn(t, c, "foo")
				broken, err := c.Acquire(ctx, "foo", dlock.TTL(time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				c.Break(ctx, "foo")
				lostByItself(t, broken)
				held, err := c.Acquire(ctx, "bar", dlock.TTL(15*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				granted := waitingFor(t, c, "bar", dlock.TTL(time.Hour))
				testserver.Until(t, "the replica has the hold", func() bool { return promoted.Exists(ctx, "bar").Val() == 1 })

				fail(t, master, promoted, addr)
				testserver.Until(t, "it waits at the new master", func() bool { return queuedAt(promoted, "bar") == 1 })
				testserver.Until(t, "the hold is renewed there", func() bool { return calls(promoted, "dlock.extend") > 0 })
				if err := held.Release(ctx); err != nil {
					t.Fatal(err)
				}
				second := <-granted
				if second == nil || second.Fence() <= held.Fence() {
					t.Fatal(second)
				}
				// The new master reports losses.
				c.Break(ctx, "bar")
				lostByItself(t, second)
				inTurn(t, c, "foo")
			})
		})
	}
}

func TestHoldsAndWaitsLeaveAFormerMasterThatIsNotDemoted(t *testing.T) {
	t.Parallel()
	onEachProgram(t, func(t *testing.T, program string) {
		_, direct, promoted, addr, c := behindSentinel(t, program)
		held, err := c.Acquire(ctx, "bar", dlock.TTL(9*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted := waitingFor(t, c, "bar", dlock.TTL(time.Hour))
		testserver.Until(t, "it waits", func() bool { return queuedAt(direct, "bar") == 1 })
		testserver.Until(t, "the replica has the hold", func() bool { return promoted.Exists(ctx, "bar").Val() == 1 })

		// So the sentinel cannot demote the master, which it would do about 10 s later.
		if err := direct.Do(ctx, "ACL", "SETUSER", "default", "-replicaof", "-slaveof").Err(); err != nil {
			t.Fatal(err)
		}
		failOver(t, promoted, addr)
		testserver.Until(t, "it waits at the new master", func() bool { return queuedAt(promoted, "bar") == 1 })
		testserver.Until(t, "the hold is renewed there", func() bool { return calls(promoted, "dlock.extend") > 0 })
		if err := held.Release(ctx); err != nil {
			t.Fatal(err)
		}
		second := <-granted
		if second == nil || second.Fence() <= held.Fence() {
			t.Fatal(second)
		}
		if err := second.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(direct.Info(ctx, "replication").Val(), "role:master") {
			t.Fatal("the former master was demoted")
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
