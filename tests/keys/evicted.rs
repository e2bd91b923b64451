//! Eviction: a server that may evict anything evicts locks; one that evicts only keys with a TTL leaves them.

use std::collections::HashSet;

use crate::World;
use crate::harness::{each_server, until};

#[test]
fn an_evicted_lock_is_over() {
    each_server(|kind| {
        for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
            let mut world = World::new(kind);
            for key in ["a", "b", "c"] {
                world.hold(key, "t");
            }
            world.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
            world.ok("CONFIG SET maxmemory 1");
            until("everything is evicted", || world.conn.ok("DBSIZE") == 0);
            let told: HashSet<(String, String)> = (0..6).map(|_| world.events.next()).collect();
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
    });
}

#[test]
fn a_server_that_evicts_only_keys_with_a_ttl_leaves_locks() {
    each_server(|kind| {
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
    });
}
