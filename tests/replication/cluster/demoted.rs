//! A master of a cluster that becomes the replica of its replica ends every wait.

use std::time::{Duration, Instant};

use super::nodes::{EVENLY, cluster, id};
use dlock_testkit::queue::{until_no_waiters, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until, until_within};

/// Starts a replica of the second node. Each node is linked with each other one when this returns.
fn replica(kind: &ServerKind, nodes: &[Server; 3]) -> Server {
    let replica = Server::options(kind).conf("cluster-enabled yes").start();
    let mut conn = replica.connect();
    conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    let replicate = format!("CLUSTER REPLICATE {}", id(&mut nodes[1].connect()));
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
fn a_failover_ends_every_wait_of_the_old_master(kind: &ServerKind) {
    for failover in ["CLUSTER FAILOVER", "CLUSTER FAILOVER TAKEOVER"] {
        let nodes = cluster(kind, EVENLY);
        let (master, replica) = (&nodes[1], replica(kind, &nodes));
        let (mut conn, mut promoted) = (master.connect(), replica.connect());
        let mut subscriber = master.connect();
        subscriber.send(&["SUBSCRIBE", "c"]);
        subscriber.read();
        conn.ok("DLOCK.ACQUIRE k a 600000");
        let mut first = waiter(master, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
        assert_eq!(conn.ok("DLOCK.ACQUIRE k c 600000 QUEUE 600000 NOTIFY c c"), Value::Nil);
        let mut last = waiter(master, "DLOCK.ACQUIRE k d 600000 BLOCK 600000");
        let mut sent: Option<Instant> = None;
        until_within(Duration::from_secs(120), "the old master is a replica", || {
            // A node gives up an attempt after 5 s. Each FAILOVER restarts the attempt.
            if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(6)) {
                sent = (promoted.say(failover) == "OK").then(Instant::now);
            }
            master.info("role") == "slave"
        });
        for conn in [&mut first, &mut last] {
            let reply = conn.read();
            assert!(reply.error().starts_with("UNBLOCKED "), "{failover}: {reply:?}");
        }
        assert_eq!(subscriber.read().items()[2], "c refused", "{failover}");
        until_no_waiters(master);
        assert_eq!(master.info("dlock_queued"), "0");
    }
}
