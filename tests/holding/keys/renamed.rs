//! RENAME, MOVE, COPY, SWAPDB: a hold belongs to its key name and does not move with the value. Only SWAPDB
//! moves whole databases with their holds.

use super::Fixture;
use dlock_testkit::{ServerKind, Value, each_server, until};

#[each_server]
fn rename_ends_the_hold_and_leaves_the_new_name_without_a_hold(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    for rename in ["RENAME k x", "RENAMENX k x"] {
        let fence = fixture.acquire("k", "t");
        assert!(!fixture.ok(rename).is_nil());
        fixture.assert_published(&["k rename_from", "x rename_to", "k dlock.free"]);
        for key in ["k", "x"] {
            assert_eq!(fixture.ok(&format!("DLOCK.HOLDS {key} t")), 0);
            assert_eq!(fixture.ok(&format!("DLOCK.RELEASE {key} t")), 0);
            assert_eq!(fixture.ok(&format!("DLOCK.PTTL {key}")), -2);
            assert_eq!(fixture.ok(&format!("DLOCK.INSPECT {key}")), Value::Nil);
        }
        fixture.assert_locks(0, &[("k", None), ("x", None)], 0);
        assert!(fixture.acquire("x", "other") > fence);
        assert!(fixture.acquire("k", "third") > fence);
        fixture.assert_locks(0, &[("k", Some("third")), ("x", Some("other"))], 2);
        for key in ["k", "x"] {
            assert_eq!(fixture.ok(&format!("DLOCK.BREAK {key}")), 1);
            // BREAK ends the only hold and so deletes the key, even x, which RENAME created.
            assert_eq!(fixture.ok(&format!("EXISTS {key}")), 0);
        }
        fixture.events.discard();
    }
}

#[each_server]
fn rename_onto_a_lock_ends_both_holds(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    fixture.acquire("x", "u");
    assert_eq!(fixture.ok("RENAMENX k x"), 0);
    fixture.assert_locks(0, &[("k", Some("t")), ("x", Some("u"))], 2);
    fixture.events.discard();

    assert_eq!(fixture.ok("RENAME k x"), "OK");
    let mut events: Vec<String> = (0..4).map(|_| fixture.next_event()).collect();
    events.sort();
    assert_eq!(events, ["k dlock.free", "k rename_from", "x dlock.free", "x rename_to"]);
    fixture.events.assert_none();
    fixture.assert_locks(0, &[("k", None), ("x", None)], 0);
    fixture.acquire("x", "other");
    fixture.acquire("k", "other");
}

#[each_server]
fn rename_onto_itself_keeps_the_hold(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    assert_eq!(fixture.ok("RENAME k k"), "OK");
    fixture.events.assert_none();
    fixture.assert_locks(0, &[("k", Some("t"))], 1);
}

#[each_server]
fn move_to_another_database_ends_the_hold(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    let fence = fixture.acquire("k", "t");
    assert_eq!(fixture.ok("MOVE k 1"), 1);
    fixture.assert_published(&["k move_from", "k move_to", "k dlock.free"]);
    fixture.assert_locks(0, &[("k", None)], 0);
    fixture.assert_locks(1, &[("k", None)], 0);
    fixture.acquire("k", "other");
    fixture.ok("SELECT 1");
    assert_eq!(fixture.ok("DLOCK.RELEASE k t"), 0);
    assert!(fixture.acquire("k", "third") > fence);
    fixture.assert_locks(1, &[("k", Some("third"))], 2);
    fixture.assert_locks(0, &[("k", Some("other"))], 2);
}

#[each_server]
fn copy_refuses_a_lock(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    for copy in ["COPY k x", "COPY k k DB 1", "COPY k x REPLACE"] {
        assert_eq!(fixture.conn.say(copy).error(), "ERR not supported for this module key", "{copy}");
    }
    assert_eq!(fixture.ok("EXISTS x"), 0);
    fixture.events.assert_none();
    fixture.assert_locks(0, &[("k", Some("t")), ("x", None)], 1);
    fixture.assert_locks(1, &[("k", None)], 1);
}

#[each_server]
fn swapdb_moves_the_holds(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    let fence = fixture.acquire("k", "zero");
    fixture.ok("SELECT 1");
    fixture.acquire("k", "one");
    fixture.acquire("only", "one");
    assert_eq!(fixture.ok("SWAPDB 0 1"), "OK");
    assert_eq!(fixture.ok("DLOCK.HOLDS k zero"), 1);
    assert_eq!(fixture.ok("DLOCK.INSPECT k").field("fence"), &fence);
    assert_eq!(fixture.ok("DLOCK.RELEASE k one"), 0);
    fixture.assert_locks(1, &[("k", Some("zero")), ("only", None)], 3);
    fixture.assert_locks(0, &[("k", Some("one")), ("only", Some("one"))], 3);

    // Deadlines move too: a lease ends in the database that its lock is in.
    fixture.ok("SELECT 0");
    let answers = fixture.conn.say_together(&[
        "DLOCK.ACQUIRE short t 50",
        "SWAPDB 5 0",
        "SELECT 5",
        "DLOCK.HOLDS short t",
    ]);
    assert_eq!(answers[3], 1);
    until("the lease ends in its new database", || fixture.conn.ok("EXISTS short") == 0);
    assert_eq!(fixture.master.number("dlock_expiries"), 1);
    fixture.assert_locks(5, &[("k", Some("one")), ("only", Some("one"))], 3);
    fixture.acquire("short", "again");
    fixture.assert_locks(5, &[("short", Some("again"))], 4);
}
