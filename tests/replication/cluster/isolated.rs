//! A cluster master that is cut off from the majority.

use std::time::{Duration, Instant};

use super::nodes::{EVENLY, cluster_with};
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Events, ServerKind, Value, each_server, until};

/// The other nodes may have promoted its replica, which grants the same lock. So the isolated node ends and
/// grants nothing.
#[each_server]
fn an_isolated_node_grants_nothing_in_the_background(kind: &ServerKind) {
    let [one, node, two] =
        cluster_with(kind, EVENLY, &["cluster-node-timeout 1000", "notify-keyspace-events Kd"]);
    let mut conn = node.connect();
    let since = Instant::now();
    conn.ok("DLOCK.ACQUIRE k a 10000");
    // This timeout is after the end of the lease.
    let mut b = waiter(&node, "DLOCK.ACQUIRE k b 60000 BLOCK 12000");
    let mut events = Events::subscribe(&node, "__keyspace@0__:k");
    for other in [&one, &two] {
        other.pause();
    }
    let newcomer = |conn: &mut Conn| conn.say("DLOCK.ACQUIRE k x 60000");
    until("a newcomer is refused", || match newcomer(&mut conn) {
        Value::Error(line) => line.starts_with("CLUSTERDOWN"),
        _ => false,
    });
    assert_eq!(node.info("dlock_expiries"), "0", "it was refused before the lease expired");
    let mut told = None;
    until("the lease has ended, and with it what b said", || {
        told = told.take().or_else(|| b.try_read(Duration::from_millis(10)));
        node.info("dlock_waiting") == "0" && since.elapsed() > Duration::from_millis(12_500)
    });
    // The server itself may have ended the wait with CLUSTERDOWN.
    match told {
        Some(Value::Nil) => {}
        answer => {
            assert!(answer.as_ref().is_some_and(|a| a.error().starts_with("CLUSTERDOWN")), "{answer:?}")
        }
    }
    assert_eq!((node.info("dlock_expiries"), node.info("dlock_handoffs")), ("0".into(), "0".into()));
    events.none();
    for other in [&one, &two] {
        other.resume();
    }
    until("the lease ends", || node.info("dlock_expiries") == "1");
    until("the cluster is up", || matches!(newcomer(&mut conn), Value::Int(_)));
    let mut c = waiter(&node, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
    conn.ok("DLOCK.RELEASE k x");
    granted(&mut c);
}
