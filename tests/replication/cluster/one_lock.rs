//! The wait queue of one lock during a slot migration.

use super::nodes::{EVENLY, cluster, id, set_on_its_way};
use dlock_testkit::queue::{granted, holders, tokens, until_no_waiters, waiter};
use dlock_testkit::{ServerKind, Value, each_server, until};

/// MIGRATE looks like DEL on the source. A grant there would give the lock a second holder.
#[each_server]
fn a_waiter_is_redirected_when_its_slot_moves(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EVENLY);
    let (mut from, mut to) = (source.connect(), target.connect());
    let fence = from.ok("DLOCK.ACQUIRE k a 60000 SHARED").int();
    let mut b = waiter(&source, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    let mut c = waiter(&source, "DLOCK.ACQUIRE k c 60000 SHARED BLOCK 0");
    let slot = set_on_its_way(&mut from, &mut to, "k");
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
    assert_eq!(b.say("DLOCK.ACQUIRE k b 60000"), Value::Nil, "a holds it still, over there");
    for conn in [&mut to, &mut from] {
        let owner = id(&mut target.connect());
        conn.ok(&format!("CLUSTER SETSLOT {slot} NODE {owner}"));
    }
    assert_eq!(holders(&mut to, "k"), ["a"]);
    assert!(from.say("DLOCK.ACQUIRE k b 60000").error().starts_with("MOVED "));
    let mut b = waiter(&target, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    assert_eq!(to.say("DLOCK.RELEASE k a"), 1);
    assert!(granted(&mut b) > fence);
}

#[each_server]
fn a_release_serves_the_queue_in_a_cluster(kind: &ServerKind) {
    let [_, node, _] = cluster(kind, EVENLY);
    let mut a = node.connect();
    a.ok("DLOCK.ACQUIRE k a 2000");
    let mut b = waiter(&node, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    granted(&mut b);
    let mut c = waiter(&node, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
    a.ok("DEL k");
    granted(&mut c);
    assert_eq!(holders(&mut a, "k"), ["c"]);
}

/// The importing node refused to grant in the background and lost the lease with the waiter: the lease ended
/// only at the next request, and its key stayed until then.
#[each_server]
fn a_lease_ends_while_its_slot_is_migrating(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EVENLY);
    let (mut from, mut to) = (source.connect(), target.connect());
    set_on_its_way(&mut from, &mut to, "k");
    to.ok("ASKING");
    assert!(to.ok("DLOCK.ACQUIRE k a 3000").int() > 0);
    let mut b = target.connect();
    b.ok("ASKING");
    b.send(&["DLOCK.ACQUIRE", "k", "b", "60000", "BLOCK", "0"]);
    until("it waits", || target.info("dlock_waiting") == "1");
    assert!(b.read().error().starts_with("TRYAGAIN "));
    until("the lease has ended, and the key is gone", || to.ok("DBSIZE") == 0);
    assert_eq!((target.info("dlock_expiries"), target.info("dlock_held")), ("1".into(), "0".into()));
}

/// A client that gets TRYAGAIN would ask for ever.
#[each_server]
fn a_wait_on_the_importing_node_ends_at_its_timeout(kind: &ServerKind) {
    let [_, source, target] = cluster(kind, EVENLY);
    let (mut from, mut to) = (source.connect(), target.connect());
    set_on_its_way(&mut from, &mut to, "k");
    to.ok("ASKING");
    assert!(to.ok("DLOCK.ACQUIRE k a 600000").int() > 0);
    to.ok("ASKING");
    assert_eq!(to.ok("DLOCK.ACQUIRE k b 60000 BLOCK 100"), Value::Nil);
    assert_eq!(target.info("dlock_timeouts"), "1");
}

/// Servers refuse it for every module without support: the slot stays and nothing is lost.
#[each_server]
fn atomic_slot_migration_is_refused(kind: &ServerKind) {
    if !(kind.is_valkey && kind.is_at_least(9, 0)) {
        return eprintln!("left out on {}: it moves no slot at once", kind.name);
    }
    let [_, source, target] = cluster(kind, EVENLY);
    let mut from = source.connect();
    let fence = from.ok("DLOCK.ACQUIRE k a 60000").int();
    let slot = from.ok("CLUSTER KEYSLOT k").int();
    let to = id(&mut target.connect());
    let refused = from.say(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}"));
    assert!(refused.error().contains("dlock does not support atomic slot migration"), "{refused:?}");
    assert_eq!(from.ok("DLOCK.ACQUIRE k a 60000"), fence);
}
