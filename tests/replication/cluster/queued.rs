//! QUEUE positions in a cluster: their notifications, and their end when the slot moves or the node fails.

use super::nodes::{EVENLY, cluster, cluster_with, set_on_its_way};
use dlock_testkit::queue::holders;
use dlock_testkit::{Conn, Events, Server, ServerKind, Value, each_server, until};

/// Subscribes to a channel, a sharded one by SSUBSCRIBE or one of the cluster by SUBSCRIBE.
fn hears(server: &Server, subscribe: &str, channel: &str) -> Conn {
    let mut conn = server.connect();
    conn.send(&[subscribe, channel]);
    conn.read();
    conn
}

/// Returns the kind and the text of the next message.
#[track_caller]
fn heard(conn: &mut Conn) -> (String, String) {
    let message = conn.read();
    (message.items()[0].text(), message.items()[2].text())
}

#[each_server]
fn a_notification_goes_to_the_shard_of_its_key_or_else_to_the_whole_cluster(kind: &ServerKind) {
    let [one, node, _] = cluster(kind, EVENLY);
    let mut a = node.connect();
    // The channel is in the slot of the key. Another client subscribes to the plain channel with that name.
    let (mut sharded, mut plain) = (hears(&node, "SSUBSCRIBE", "{k}c"), hears(&one, "SUBSCRIBE", "{k}c"));
    a.ok("DLOCK.ACQUIRE k a 600000");
    assert_eq!(a.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY {k}c b"), Value::Nil);
    a.ok("DLOCK.RELEASE k a");
    assert_eq!(heard(&mut sharded), ("smessage".into(), "b granted".into()));
    // A channel in another slot, even of the same node, is a plain one that every node forwards.
    let other = "elsewhere";
    assert_ne!(a.ok("CLUSTER KEYSLOT k"), a.ok(&format!("CLUSTER KEYSLOT {other}")));
    let mut far = hears(&one, "SUBSCRIBE", other);
    assert_eq!(a.ok(&format!("DLOCK.ACQUIRE k c 600000 QUEUE 600000 NOTIFY {other} c")), Value::Nil);
    assert_eq!(a.ok("DLOCK.RELEASE k b"), 1);
    assert_eq!(heard(&mut far), ("message".into(), "c granted".into()));
    // A sharded message is not published as a plain one too.
    assert_eq!(one.connect().ok("PUBLISH {k}c end"), 1);
    assert_eq!(heard(&mut plain), ("message".into(), "end".into()));
}

/// A grant on the source would give the lock a second holder.
#[each_server]
fn positions_are_refused_when_their_slot_moves(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EVENLY);
    let (mut from, mut to) = (source.connect(), target.connect());
    from.ok("DLOCK.ACQUIRE k a 600000");
    let mut sharded = hears(&source, "SSUBSCRIBE", "{k}c");
    let mut plain = hears(&source, "SUBSCRIBE", "plain");
    for (token, channel) in [("b", "{k}c"), ("c", "plain")] {
        let ask = format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 600000 NOTIFY {channel} {token}");
        assert_eq!(from.ok(&ask), Value::Nil);
    }
    set_on_its_way(&mut from, &mut to, "k");
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
    assert_eq!(heard(&mut sharded), ("smessage".into(), "b refused".into()));
    assert_eq!(heard(&mut plain), ("message".into(), "c refused".into()));
    assert_eq!((source.info("dlock_queued"), source.info("dlock_held")), ("0".into(), "0".into()));
    // The token joins the queue of the target.
    to.ok("ASKING");
    assert_eq!(to.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000"), Value::Nil);
    to.ok("ASKING");
    assert_eq!(holders(&mut to, "k"), ["a"]);
}

/// More positions than one event-loop turn refuses. The lock is not free: it has moved.
#[each_server]
fn all_positions_of_a_long_queue_are_refused_and_none_is_granted(kind: &ServerKind) {
    let conf = ["cluster-node-timeout 5000", "notify-keyspace-events Kd"];
    let [_, source, target] = cluster_with(kind, EVENLY, &conf);
    let (mut from, mut to) = (source.connect(), target.connect());
    from.ok("DLOCK.ACQUIRE k a 600000");
    let asks: Vec<String> = (0..600).map(|n| format!("DLOCK.ACQUIRE k {n} 600000 QUEUE 600000")).collect();
    let answers = from.say_together(&asks.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(answers.iter().all(Value::is_nil));
    assert_eq!(source.info("dlock_queued"), "600");
    let mut events = Events::subscribe(&source, "__keyspace@0__:k");
    set_on_its_way(&mut from, &mut to, "k");
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
    until("all are refused", || source.info("dlock_queued") == "0");
    events.none();
}
