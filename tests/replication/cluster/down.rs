//! A node ends every wait when its cluster is down.

use super::nodes::{EVENLY, cluster};
use dlock_testkit::queue::{until_no_waiters, waiter};
use dlock_testkit::{ServerKind, Value, each_server};

#[each_server]
fn a_cluster_that_is_down_ends_every_wait(kind: &ServerKind) {
    let [_, node, _] = cluster(kind, EVENLY);
    let mut conn = node.connect();
    let mut subscriber = node.connect();
    subscriber.send(&["SUBSCRIBE", "c"]);
    subscriber.read();
    conn.ok("DLOCK.ACQUIRE k a 600000");
    let mut b = waiter(&node, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k c 600000 QUEUE 600000 NOTIFY c c"), Value::Nil);
    let slot = conn.ok("CLUSTER KEYSLOT k").int();
    conn.ok(&format!("CLUSTER DELSLOTS {slot}"));
    let reply = b.read();
    assert!(reply.error().starts_with("CLUSTERDOWN "), "{reply:?}");
    assert_eq!(subscriber.read().items()[2], "c refused");
    until_no_waiters(&node);
    assert_eq!(node.info("dlock_queued"), "0");
}
