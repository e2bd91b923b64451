//! RENAME, MOVE, COPY, SWAPDB: a hold belongs to its key name and does not move with the value. Only SWAPDB
//! moves whole databases with their holds.

use super::World;
use dlock_testkit::{ServerKind, Value, each_server, until};

#[each_server]
fn rename_ends_the_hold_and_the_new_name_holds_nothing(kind: &ServerKind) {
    let mut world = World::new(kind);
    for rename in ["RENAME k x", "RENAMENX k x"] {
        let fence = world.hold("k", "t");
        assert!(!world.ok(rename).is_nil());
        world.published(&["k rename_from", "x rename_to", "k dlock.free"]);
        for key in ["k", "x"] {
            assert_eq!(world.ok(&format!("DLOCK.HOLDS {key} t")), 0);
            assert_eq!(world.ok(&format!("DLOCK.RELEASE {key} t")), 0);
            assert_eq!(world.ok(&format!("DLOCK.PTTL {key}")), -2);
            assert_eq!(world.ok(&format!("DLOCK.INSPECT {key}")), Value::Nil);
        }
        world.agrees(0, &[("k", None), ("x", None)], 0);
        assert!(world.hold("x", "other") > fence);
        assert!(world.hold("k", "third") > fence);
        world.agrees(0, &[("k", Some("third")), ("x", Some("other"))], 2);
        for key in ["k", "x"] {
            assert_eq!(world.ok(&format!("DLOCK.BREAK {key}")), 1);
            // The empty value that the rename left disappears with the key's own hold.
            assert_eq!(world.ok(&format!("EXISTS {key}")), 0);
        }
        world.events.so_far();
    }
}

#[each_server]
fn rename_onto_a_lock_ends_both_holds(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.hold("k", "t");
    world.hold("x", "u");
    assert_eq!(world.ok("RENAMENX k x"), 0);
    world.agrees(0, &[("k", Some("t")), ("x", Some("u"))], 2);
    world.events.so_far();

    assert_eq!(world.ok("RENAME k x"), "OK");
    let mut events: Vec<String> = (0..4).map(|_| world.next_event()).collect();
    events.sort();
    assert_eq!(events, ["k dlock.free", "k rename_from", "x dlock.free", "x rename_to"]);
    world.events.none();
    world.agrees(0, &[("k", None), ("x", None)], 0);
    world.hold("x", "other");
    world.hold("k", "other");
}

#[each_server]
fn rename_onto_itself_keeps_the_hold(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.hold("k", "t");
    assert_eq!(world.ok("RENAME k k"), "OK");
    world.events.none();
    world.agrees(0, &[("k", Some("t"))], 1);
}

#[each_server]
fn move_to_another_database_ends_the_hold(kind: &ServerKind) {
    let mut world = World::new(kind);
    let fence = world.hold("k", "t");
    assert_eq!(world.ok("MOVE k 1"), 1);
    world.published(&["k move_from", "k move_to", "k dlock.free"]);
    world.agrees(0, &[("k", None)], 0);
    world.agrees(1, &[("k", None)], 0);
    world.hold("k", "other");
    world.ok("SELECT 1");
    assert_eq!(world.ok("DLOCK.RELEASE k t"), 0);
    assert!(world.hold("k", "third") > fence);
    world.agrees(1, &[("k", Some("third"))], 2);
    world.agrees(0, &[("k", Some("other"))], 2);
}

#[each_server]
fn copy_refuses_a_lock(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.hold("k", "t");
    for copy in ["COPY k x", "COPY k k DB 1", "COPY k x REPLACE"] {
        assert_eq!(world.conn.say(copy).error(), "ERR not supported for this module key", "{copy}");
    }
    assert_eq!(world.ok("EXISTS x"), 0);
    world.events.none();
    world.agrees(0, &[("k", Some("t")), ("x", None)], 1);
    world.agrees(1, &[("k", None)], 1);
}

#[each_server]
fn swapdb_moves_the_holds(kind: &ServerKind) {
    let mut world = World::new(kind);
    let fence = world.hold("k", "zero");
    world.ok("SELECT 1");
    world.hold("k", "one");
    world.hold("only", "one");
    assert_eq!(world.ok("SWAPDB 0 1"), "OK");
    assert_eq!(world.ok("DLOCK.HOLDS k zero"), 1);
    assert_eq!(world.ok("DLOCK.INSPECT k").field("fence"), &fence);
    assert_eq!(world.ok("DLOCK.RELEASE k one"), 0);
    world.agrees(1, &[("k", Some("zero")), ("only", None)], 3);
    world.agrees(0, &[("k", Some("one")), ("only", Some("one"))], 3);

    // Deadlines move too: a lease ends in the current database of its lock.
    world.ok("SELECT 0");
    let answers = world.conn.say_together(&[
        "DLOCK.ACQUIRE short t 50",
        "SWAPDB 5 0",
        "SELECT 5",
        "DLOCK.HOLDS short t",
    ]);
    assert_eq!(answers[3], 1);
    until("the lease ends in its new database", || world.conn.ok("EXISTS short") == 0);
    assert_eq!(world.master.number("dlock_expiries"), 1);
    world.agrees(5, &[("k", Some("one")), ("only", Some("one"))], 3);
    world.hold("short", "again");
    world.agrees(5, &[("short", Some("again"))], 4);
}
