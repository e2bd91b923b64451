//! Eviction: an `allkeys-*` policy evicts locks, a `volatile-*` policy leaves them.

use std::collections::HashSet;

use super::World;
use dlock_testkit::{Server, ServerKind, each_server, until};

#[each_server]
fn an_evicted_key_ends_its_hold(kind: &ServerKind) {
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        let mut world = World::new(kind);
        for key in ["a", "b", "c"] {
            world.hold(key, "t");
        }
        world.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        world.ok("CONFIG SET maxmemory 1");
        until("everything is evicted", || world.conn.ok("DBSIZE") == 0);
        let told: HashSet<(String, String)> = (0..6).map(|_| world.events.read()).collect();
        for key in ["a", "b", "c"] {
            for event in ["evicted", "dlock.free"] {
                let event = (format!("__keyspace@0__:{key}"), event.to_string());
                assert!(told.contains(&event), "{event:?} is missing in {told:?}");
            }
        }
        world.events.none();
        world.ok("CONFIG SET maxmemory 0");
        world.agrees(0, &[("a", None), ("b", None), ("c", None)], 0);
        world.hold("a", "other");
    }
}

#[each_server]
fn volatile_eviction_leaves_locks(kind: &ServerKind) {
    for policy in ["volatile-lru", "volatile-ttl", "volatile-random", "noeviction"] {
        let mut world = World::new(kind);
        world.ok("SET cached x EX 1000");
        for key in ["a", "b"] {
            world.hold(key, "t");
        }
        world.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        world.ok("CONFIG SET maxmemory 1");
        assert!(world.conn.say("SET more x").error().starts_with("OOM"));
        let evicted = world.master.info("evicted_keys");
        assert_eq!(evicted, if policy == "noeviction" { "0" } else { "1" }, "{policy}");
        world.ok("CONFIG SET maxmemory 0");
        world.agrees(0, &[("a", Some("t")), ("b", Some("t"))], 2);
    }
}

/// The holder is not notified, as after a flush.
#[each_server]
fn an_eviction_of_a_held_lock_is_counted_and_begins_grace(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let warnings = || server.log().matches("evicts locks that are held").count();
    for key in ["a", "b"] {
        conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000"));
    }
    assert_eq!(conn.ok("SET cached x"), "OK");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
    assert_eq!(conn.ok("CONFIG SET maxmemory-policy allkeys-lru"), "OK");
    assert_eq!(conn.ok("CONFIG SET maxmemory 1"), "OK");
    until("everything is evicted", || conn.ok("DBSIZE") == 0);
    assert_eq!(warnings(), 1);
    assert_eq!(server.info("dlock_evictions"), "2");
    assert_eq!(conn.ok("CONFIG SET maxmemory 0"), "OK");
    assert!(conn.say("DLOCK.ACQUIRE a other 1000").error().starts_with("GRACE "));
    let begun = server.log().matches("restart-grace begins: a lock that was held was evicted").count();
    assert_eq!(begun, 1, "{}", server.log());
    assert_eq!(conn.ok("CONFIG SET maxmemory-policy noeviction"), "OK");
    assert_eq!(conn.ok("CONFIG SET maxmemory-policy allkeys-random"), "OK");
    assert_eq!(warnings(), 2);
}

#[each_server]
fn only_evictions_of_holds_are_counted(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("RENAME k empty"), "OK");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("SET cached x"), "OK");
    // A key deleted earlier in the same turn is no eviction.
    let _ =
        conn.say_together(&["DEL k", "CONFIG SET maxmemory-policy allkeys-lru", "CONFIG SET maxmemory 1"]);
    until("everything is evicted", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.info("evicted_keys"), "2");
    assert_eq!(
        (server.info("dlock_evictions"), server.info("dlock_grace_ms_left")),
        ("0".into(), "0".into())
    );
}

#[each_server]
fn an_eviction_policy_that_ends_holds_is_warned_of_at_the_start(kind: &ServerKind) {
    for (policy, told) in [("allkeys-lfu", 1), ("volatile-lru", 0), ("noeviction", 0)] {
        let options = Server::options(kind).conf("maxmemory 1gb");
        let server = options.conf(&format!("maxmemory-policy {policy}")).start();
        assert_eq!(server.log().matches("evicts locks that are held").count(), told, "{policy}");
    }
}

/// A lock removed by a command was not forgotten, even if another value of its key is evicted later.
#[each_server]
fn a_string_at_a_former_lock_key_is_evicted_uncounted(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("SET k cached EX 1000"), "OK");
    server.wait_for_tick();
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
    assert_eq!(conn.ok("CONFIG SET maxmemory-policy volatile-lru maxmemory 1"), "OK");
    until("it is evicted", || conn.ok("DBSIZE") == 0 || conn.say("SET more x").is_nil());
    assert_eq!(server.info("evicted_keys"), "1");
    assert_eq!(conn.ok("CONFIG SET maxmemory 0"), "OK");
    assert_eq!(server.info("dlock_evictions"), "0");
    assert!(conn.ok("DLOCK.ACQUIRE k t 1000").int() > 0);
}
