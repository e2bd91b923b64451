//! A server that may no longer grant, because it became a replica or its cluster is down, ends every wait.

use std::time::{Duration, Instant};

use dlock_testkit::cluster::{EQUAL_SLOTS, cluster, node_id};
use dlock_testkit::queue::{until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until, until_within};

/// The queue of the held lock `k`. Its head is a blocked client. Behind it is a wait with QUEUE, which blocks
/// no connection. The server announces the end of this wait on channel `c`.
struct Queue {
    blocked: Conn,
    subscriber: Conn,
}

impl Queue {
    #[track_caller]
    fn of(server: &Server) -> Queue {
        let mut conn = server.connect();
        conn.ok("DLOCK.ACQUIRE k a 600000");
        let blocked = waiter(server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
        let subscriber = server.subscriber("c");
        assert_eq!(conn.ok("DLOCK.ACQUIRE k c 600000 QUEUE 600000 NOTIFY c c"), Value::Nil);
        Queue { blocked, subscriber }
    }

    /// Asserts that both waits have ended, and that the error of the blocked client begins with `word`.
    #[track_caller]
    fn assert_ended(mut self, server: &Server, word: &str) {
        let reply = self.blocked.read();
        assert_eq!(reply.error().split(' ').next(), Some(word));
        assert_eq!(self.subscriber.message(), "c refused");
        until_no_waiters(server);
        assert_eq!(server.number("dlock_queued"), 0);
    }
}

/// On Valkey, a connection that has sent CLIENT CAPA redirect gets REDIRECT instead of UNBLOCKED.
#[each_server]
fn a_demotion_ends_every_wait(kind: &ServerKind) {
    let (old, new) = (Server::start(kind), Server::start(kind));
    let queue = Queue::of(&old);
    let mut redirected = old.connect();
    let _ = redirected.say("CLIENT CAPA redirect");
    redirected.send(&["DLOCK.ACQUIRE", "k", "d", "600000", "BLOCK", "0"]);
    until("both clients wait", || old.number("dlock_waiting") == 2);
    old.connect().ok(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
    let reply = redirected.read();
    assert!(["UNBLOCKED", "REDIRECT"].iter().any(|word| reply.error().starts_with(word)), "{reply:?}");
    queue.assert_ended(&old, "UNBLOCKED");
}

/// A demotion drops all tasks of the background job, also those that serve the queues. So it must end the
/// waits even if a promotion follows at once. Here the key is a string of another library: only a task of
/// the background job would notice that DEL has removed the string.
#[each_server]
fn a_demotion_ends_every_wait_when_the_server_is_promoted_again_at_once(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.honour-strings yes").start();
    let mut conn = server.connect();
    let mut subscriber = server.subscriber("c");
    conn.ok("SET k foreign");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k a 600000 QUEUE 600000 NOTIFY c a"), Value::Nil);
    let replies = conn.say_together(&["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "DEL k"]);
    assert_eq!(replies[2], 1, "{replies:?}");
    assert_eq!(subscriber.message(), "a refused");
    assert_eq!(server.number("dlock_queued"), 0);
}

#[each_server]
fn a_cluster_that_is_down_ends_every_wait(kind: &ServerKind) {
    let [_, node, _] = cluster(kind, EQUAL_SLOTS);
    let queue = Queue::of(&node);
    let mut conn = node.connect();
    let slot = conn.ok("CLUSTER KEYSLOT k").int();
    conn.ok(&format!("CLUSTER DELSLOTS {slot}"));
    queue.assert_ended(&node, "CLUSTERDOWN");
}

/// Starts a replica of the second node. Returns once all nodes are linked with each other.
fn cluster_replica(kind: &ServerKind, nodes: &[Server; 3]) -> Server {
    let replica = Server::options(kind).conf("cluster-enabled yes").start();
    let mut conn = replica.connect();
    conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    let replicate = format!("CLUSTER REPLICATE {}", node_id(&mut nodes[1].connect()));
    until("the new node knows its master", || conn.say(&replicate) == "OK");
    replica.wait_in_sync(&nodes[1]);
    let is_linked = |node: &Server| {
        let known = node.connect().ok("CLUSTER NODES").text();
        let links = known.lines().filter(|line| line.contains(" connected") && !line.contains("handshake"));
        links.count() == 4 && known.matches("slave").count() == 1
    };
    until("the nodes are linked", || nodes.iter().chain([&replica]).all(is_linked));
    replica
}

#[each_server]
fn a_cluster_failover_ends_every_wait_of_the_old_master(kind: &ServerKind) {
    for failover in ["CLUSTER FAILOVER", "CLUSTER FAILOVER TAKEOVER"] {
        let nodes = cluster(kind, EQUAL_SLOTS);
        let (master, replica) = (&nodes[1], cluster_replica(kind, &nodes));
        let queue = Queue::of(master);
        let mut promoted = replica.connect();
        let mut sent: Option<Instant> = None;
        until_within(Duration::from_secs(120), "the old master is a replica", || {
            // A node gives up a failover after 5 s. A FAILOVER before that would start the failover anew.
            if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(6)) {
                sent = (promoted.say(failover) == "OK").then(Instant::now);
            }
            master.info("role") == "slave"
        });
        queue.assert_ended(master, "UNBLOCKED");
    }
}
