//! Eviction: an `allkeys-*` policy evicts locks, a `volatile-*` policy leaves them.

use super::Fixture;
use dlock_testkit::{Server, ServerKind, each_server, until};

#[each_server]
fn an_evicted_key_ends_its_hold(kind: &ServerKind) {
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        let mut fixture = Fixture::new(kind);
        for key in ["a", "b", "c"] {
            fixture.acquire(key, "t");
        }
        fixture.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        fixture.ok("CONFIG SET maxmemory 1");
        until("all keys are evicted", || fixture.conn.ok("DBSIZE") == 0);
        let mut events: Vec<String> = (0..6).map(|_| fixture.next_event()).collect();
        events.sort();
        let wanted = ["a", "b", "c"].map(|key| [format!("{key} dlock.free"), format!("{key} evicted")]);
        assert_eq!(events, wanted.concat());
        fixture.events.assert_none();
        fixture.ok("CONFIG SET maxmemory 0");
        fixture.assert_locks(0, &[("a", None), ("b", None), ("c", None)], 0);
        fixture.acquire("a", "other");
    }
}

#[each_server]
fn volatile_eviction_evicts_no_lock(kind: &ServerKind) {
    for policy in ["volatile-lru", "volatile-ttl", "volatile-random", "noeviction"] {
        let mut fixture = Fixture::new(kind);
        fixture.ok("SET cached x EX 1000");
        for key in ["a", "b"] {
            fixture.acquire(key, "t");
        }
        fixture.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        fixture.ok("CONFIG SET maxmemory 1");
        assert!(fixture.conn.say("SET more x").error().starts_with("OOM"));
        let evicted = fixture.master.number("evicted_keys");
        assert_eq!(evicted, if policy == "noeviction" { 0 } else { 1 }, "{policy}");
        fixture.ok("CONFIG SET maxmemory 0");
        fixture.assert_locks(0, &[("a", Some("t")), ("b", Some("t"))], 2);
    }
}

/// The server does not notify a holder that its lock was evicted. So the eviction begins a grace period, as a
/// flush does.
#[each_server]
fn an_eviction_of_a_held_lock_is_counted_and_begins_grace(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for key in ["a", "b"] {
        conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000"));
    }
    conn.ok("CONFIG SET dlock.restart-grace 600000");
    conn.ok("CONFIG SET maxmemory-policy allkeys-lru maxmemory 1");
    until("all keys are evicted", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.number("dlock_evictions"), 2);
    conn.ok("CONFIG SET maxmemory 0");
    assert!(conn.say("DLOCK.ACQUIRE a other 1000").error().starts_with("GRACE "));
    let begun = server.log().matches("restart-grace begins: a lock that was held was evicted").count();
    assert_eq!(begun, 1, "{}", server.log());
}

#[each_server]
fn only_evictions_of_holds_are_counted(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("CONFIG SET dlock.restart-grace 600000");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    // RENAME ends the hold. The keys that are evicted later are `cached` and `empty`, a lock without a hold.
    conn.ok("RENAME k empty");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("SET cached x");
    // DEL ends the second hold in the event-loop turn of the evictions, but is no eviction.
    let _ = conn.say_together(&["DEL k", "CONFIG SET maxmemory-policy allkeys-lru maxmemory 1"]);
    until("all keys are evicted", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.numbers(["evicted_keys", "dlock_evictions", "dlock_grace_ms_left"]), [2, 0, 0]);
}

/// A lock that a command removed does not count as evicted, even if another value of its key is evicted
/// later.
#[each_server]
fn the_eviction_of_a_string_at_a_former_lock_key_is_not_counted(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("SET k cached EX 1000");
    // A lock counts as evicted only in the event-loop turn that removes it. The string is evicted in a later
    // turn.
    server.wait_for_tick();
    conn.ok("CONFIG SET dlock.restart-grace 600000");
    conn.ok("CONFIG SET maxmemory-policy volatile-lru maxmemory 1");
    // The server evicts the string before it refuses this write.
    conn.until_error("SET more x", "OOM");
    until("the string is evicted", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.numbers(["evicted_keys", "dlock_evictions"]), [1, 0]);
    conn.ok("CONFIG SET maxmemory 0");
    assert!(conn.ok("DLOCK.ACQUIRE k t 1000").int() > 0);
}
