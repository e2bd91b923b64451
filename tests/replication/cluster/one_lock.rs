//! One lock in a cluster: its queue while its slot moves, the channels of its messages, guards, and a node
//! that is cut off from the majority.

use std::time::{Duration, Instant};

use dlock_testkit::cluster::{EQUAL_SLOTS, begin_migration, cluster, cluster_with, node_id};
use dlock_testkit::queue::{granted, holders, tokens, until_no_waiters, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, Value, each_server, until};

/// On the source, MIGRATE looks like DEL to the module. But the holder has moved with the lock, so a grant on
/// the source would give the lock a second holder.
#[each_server]
fn a_waiter_is_told_to_ask_the_new_node_when_its_slot_moves(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EQUAL_SLOTS);
    let (mut from, mut to) = (source.connect(), target.connect());
    let fence = from.ok("DLOCK.ACQUIRE k a 60000 SHARED").int();
    let mut b = waiter(&source, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    let mut c = waiter(&source, "DLOCK.ACQUIRE k c 60000 SHARED BLOCK 0");
    let slot = begin_migration(&mut from, &mut to, "k");
    // The source serves the queue while it has the key.
    assert_eq!(tokens(&mut from, "k"), ["b", "c"]);
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
    for conn in [&mut b, &mut c] {
        assert!(conn.read().error().starts_with("TRYAGAIN "));
        assert_eq!(conn.say("PING"), "PONG");
    }
    until_no_waiters(&source);
    // A cluster client asks again and follows the redirect.
    let redirect = b.say("DLOCK.ACQUIRE k b 60000 BLOCK 0");
    assert!(redirect.error().starts_with(&format!("ASK {slot} ")), "{redirect:?}");
    let mut b = target.connect();
    b.ok("ASKING");
    assert_eq!(b.say("DLOCK.ACQUIRE k b 60000"), Value::Nil, "a still holds the lock on the target");
    for conn in [&mut to, &mut from] {
        let owner = node_id(&mut target.connect());
        conn.ok(&format!("CLUSTER SETSLOT {slot} NODE {owner}"));
    }
    assert_eq!(holders(&mut to, "k"), ["a"]);
    assert!(from.say("DLOCK.ACQUIRE k b 60000").error().starts_with("MOVED "));
    let mut b = waiter(&target, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    assert_eq!(to.say("DLOCK.RELEASE k a"), 1);
    assert!(granted(&mut b) > fence);
}

#[each_server]
fn an_expiry_and_a_deletion_of_the_key_serve_the_queue_in_a_cluster(kind: &ServerKind) {
    let [_, node, _] = cluster(kind, EQUAL_SLOTS);
    let mut a = node.connect();
    a.ok("DLOCK.ACQUIRE k a 2000");
    granted(&mut waiter(&node, "DLOCK.ACQUIRE k b 60000 BLOCK 0"));
    let mut c = waiter(&node, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
    a.ok("DEL k");
    granted(&mut c);
    assert_eq!(holders(&mut a, "k"), ["c"]);
}

/// The importing node refuses the waiter, and must still end the expired lease. An earlier version did not
/// end it, and the key stayed until the next request.
#[each_server]
fn a_lease_ends_while_its_slot_is_migrating(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EQUAL_SLOTS);
    let (mut from, mut to) = (source.connect(), target.connect());
    begin_migration(&mut from, &mut to, "k");
    to.ok("ASKING");
    assert!(to.ok("DLOCK.ACQUIRE k a 3000").int() > 0);
    let mut b = target.connect();
    b.ok("ASKING");
    b.send(&["DLOCK.ACQUIRE", "k", "b", "60000", "BLOCK", "0"]);
    until("b waits", || target.number("dlock_waiting") == 1);
    assert!(b.read().error().starts_with("TRYAGAIN "));
    until("the lease has ended and the key is removed", || to.ok("DBSIZE") == 0);
    assert_eq!(target.numbers(["dlock_expiries", "dlock_held"]), [1, 0]);
}

/// A client that gets TRYAGAIN in place of null would ask for ever.
#[each_server]
fn a_wait_on_the_importing_node_ends_at_its_timeout(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EQUAL_SLOTS);
    let (mut from, mut to) = (source.connect(), target.connect());
    begin_migration(&mut from, &mut to, "k");
    to.ok("ASKING");
    assert!(to.ok("DLOCK.ACQUIRE k a 600000").int() > 0);
    to.ok("ASKING");
    assert_eq!(to.ok("DLOCK.ACQUIRE k b 60000 BLOCK 100"), Value::Nil);
    assert_eq!(target.number("dlock_timeouts"), 1);
}

/// Valkey refuses an atomic slot migration if a module does not support it. The slot and its locks stay on
/// the source.
#[each_server]
fn atomic_slot_migration_is_refused(kind: &ServerKind) {
    if !(kind.is_valkey && kind.is_at_least(9, 0)) {
        return eprintln!("left out on {}: it has no CLUSTER MIGRATESLOTS", kind.name);
    }
    let [_, source, target] = cluster(kind, EQUAL_SLOTS);
    let mut from = source.connect();
    let fence = from.ok("DLOCK.ACQUIRE k a 60000").int();
    let slot = from.ok("CLUSTER KEYSLOT k").int();
    let to = node_id(&mut target.connect());
    let refused = from.say(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}"));
    assert!(refused.error().contains("dlock does not support atomic slot migration"), "{refused:?}");
    assert_eq!(from.ok("DLOCK.ACQUIRE k a 60000"), fence);
}

/// Opens a connection that is subscribed to a sharded channel.
fn sharded_subscriber(server: &Server, channel: &str) -> Conn {
    let mut conn = server.connect();
    conn.send(&["SSUBSCRIBE", channel]);
    conn.read();
    conn
}

/// Returns the kind and the text of the next message.
#[track_caller]
fn next_message(conn: &mut Conn) -> (String, String) {
    let message = conn.read();
    (message.items()[0].text(), message.items()[2].text())
}

#[each_server]
fn notify_goes_to_the_whole_cluster_and_snotify_to_the_shard_of_its_key(kind: &ServerKind) {
    let [one, node, _] = cluster(kind, EQUAL_SLOTS);
    let mut a = node.connect();
    // The channel of SNOTIFY must be in the slot of the key. Another client subscribes to the plain channel
    // with that name.
    let (mut sharded, mut plain) = (sharded_subscriber(&node, "{k}c"), one.subscriber("{k}c"));
    a.ok("DLOCK.ACQUIRE k a 600000");
    assert_eq!(a.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000 SNOTIFY {k}c b"), Value::Nil);
    let refused = a.say("DLOCK.ACQUIRE k x 600000 QUEUE 600000 SNOTIFY elsewhere x");
    assert!(refused.error().starts_with("CROSSSLOT"), "{refused:?}");
    assert_eq!(tokens(&mut a, "k"), ["b"], "the refused request has done nothing");
    a.ok("DLOCK.RELEASE k a");
    let fence = a.ok("DLOCK.INSPECT k").field("fence").int();
    assert_eq!(next_message(&mut sharded), ("smessage".into(), format!("b granted {fence}")));
    // A message of NOTIFY is plain and goes to the whole cluster, even if its channel is in the slot of the
    // key.
    let other = "{k}plain";
    assert_eq!(a.ok("CLUSTER KEYSLOT k"), a.ok(&format!("CLUSTER KEYSLOT {other}")));
    let mut far = one.subscriber(other);
    assert_eq!(a.ok(&format!("DLOCK.ACQUIRE k c 600000 QUEUE 600000 NOTIFY {other} c")), Value::Nil);
    assert_eq!(a.ok("DLOCK.RELEASE k b"), 1);
    let fence = a.ok("DLOCK.INSPECT k").field("fence").int();
    assert_eq!(next_message(&mut far), ("message".into(), format!("c granted {fence}")));
    // The subscriber of the plain channel did not receive the sharded message: its next message is `end`.
    assert_eq!(one.connect().ok("PUBLISH {k}c end"), 1);
    assert_eq!(next_message(&mut plain), ("message".into(), "end".into()));
}

/// A position is the wait of an ACQUIRE with QUEUE. MIGRATE moves the lock with its holder to the target, so
/// a grant on the source would give the lock a second holder.
#[each_server]
fn positions_are_refused_when_their_slot_moves(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EQUAL_SLOTS);
    let (mut from, mut to) = (source.connect(), target.connect());
    from.ok("DLOCK.ACQUIRE k a 600000");
    let mut sharded = sharded_subscriber(&source, "{k}c");
    let mut plain = source.subscriber("plain");
    for (token, notify) in [("b", "SNOTIFY {k}c"), ("c", "NOTIFY plain")] {
        let ask = format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 600000 {notify} {token}");
        assert_eq!(from.ok(&ask), Value::Nil);
    }
    begin_migration(&mut from, &mut to, "k");
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
    assert_eq!(next_message(&mut sharded), ("smessage".into(), "b refused".into()));
    assert_eq!(next_message(&mut plain), ("message".into(), "c refused".into()));
    assert_eq!(source.numbers(["dlock_queued", "dlock_held"]), [0, 0]);
    // The token joins the queue of the target.
    to.ok("ASKING");
    assert_eq!(to.ok("DLOCK.ACQUIRE k b 600000 QUEUE 600000"), Value::Nil);
    to.ok("ASKING");
    assert_eq!(holders(&mut to, "k"), ["a"]);
}

/// The queue has more positions than the server refuses in one event-loop turn. The lock is moved, not
/// freed, so the source publishes no event of the module (`Kd`).
#[each_server]
fn all_positions_of_a_long_queue_are_refused_and_none_is_granted(kind: &ServerKind) {
    let conf = ["cluster-node-timeout 5000", "notify-keyspace-events Kd"];
    let [_, source, target] = cluster_with(kind, EQUAL_SLOTS, &conf);
    let (mut from, mut to) = (source.connect(), target.connect());
    from.ok("DLOCK.ACQUIRE k a 600000");
    let asks: Vec<String> = (0..600).map(|n| format!("DLOCK.ACQUIRE k {n} 600000 QUEUE 600000")).collect();
    assert!(from.say_together(&asks).iter().all(Value::is_nil));
    assert_eq!(source.number("dlock_queued"), 600);
    let mut events = Events::subscribe(&source, "__keyspace@0__:k");
    begin_migration(&mut from, &mut to, "k");
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
    until("all positions are refused", || source.number("dlock_queued") == 0);
    events.assert_none();
}

#[each_server]
fn a_guard_is_redirected_to_the_node_of_its_keys(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let mut conns: Vec<Conn> = nodes.iter().map(|node| node.connect()).collect();
    let reply_word = |conn: &mut Conn, command: &str| match conn.say(command) {
        Value::Error(text) => text.split(' ').next().unwrap_or_default().to_owned(),
        answer => format!("{answer:?}"),
    };
    let mut owners = 0;
    for conn in &mut conns {
        if reply_word(conn, "DLOCK.ACQUIRE {a}k t MAX") == "MOVED" {
            for command in ["DLOCK.GUARD {a}k t GET {a}x", "DLOCK.FENCED {a}g 5 GET {a}x"] {
                assert_eq!(reply_word(conn, command), "MOVED", "{command}");
            }
            continue;
        }
        owners += 1;
        conn.ok("DLOCK.GUARD {a}k t SET {a}x 1");
        conn.ok("DLOCK.FENCED {a}g 5 MSET {a}x 1 {a}y 2");
        for command in ["DLOCK.GUARD {a}k t GET {b}x", "DLOCK.FENCED {a}g 6 SET {b}x 1"] {
            assert_eq!(reply_word(conn, command), "CROSSSLOT", "{command}");
        }
        assert_eq!(conn.ok("GET {a}g"), "5");
    }
    assert_eq!(owners, 1);
}

/// The other nodes may have promoted the node's replica, which grants the same lock. So the isolated node
/// ends no lease and grants no lock.
#[each_server]
fn an_isolated_node_grants_no_lock_in_the_background(kind: &ServerKind) {
    let [one, node, two] =
        cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 1000", "notify-keyspace-events Kd"]);
    let mut conn = node.connect();
    let since = Instant::now();
    conn.ok("DLOCK.ACQUIRE k a 10000");
    // The lease of a ends during this wait.
    let mut b = waiter(&node, "DLOCK.ACQUIRE k b 60000 BLOCK 12000");
    let mut events = Events::subscribe(&node, "__keyspace@0__:k");
    for other in [&one, &two] {
        other.pause();
    }
    conn.until_error("DLOCK.ACQUIRE k x 60000", "CLUSTERDOWN");
    assert_eq!(node.number("dlock_expiries"), 0, "the node notices its isolation before the lease of a ends");
    // The server itself may have ended the wait with CLUSTERDOWN.
    let reply = b.read();
    assert!(reply.is_nil() || reply.error().starts_with("CLUSTERDOWN"), "{reply:?}");
    until("the lease and the wait of b are over", || {
        node.number("dlock_waiting") == 0 && since.elapsed() > Duration::from_millis(12_500)
    });
    assert_eq!(node.numbers(["dlock_expiries", "dlock_handoffs"]), [0, 0]);
    events.assert_none();
    for other in [&one, &two] {
        other.resume();
    }
    until("the lease ends", || node.number("dlock_expiries") == 1);
    until("the cluster is up", || matches!(conn.say("DLOCK.ACQUIRE k x 60000"), Value::Int(_)));
    let mut c = waiter(&node, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
    conn.ok("DLOCK.RELEASE k x");
    granted(&mut c);
}
