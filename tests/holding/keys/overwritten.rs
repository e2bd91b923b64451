//! DEL, UNLINK, an overwritten value and a native TTL (EXPIRE) end the hold.

use super::Fixture;
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn del_ends_the_hold(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    for command in ["DEL k", "UNLINK k", "GETDEL k", "DEL k k2"] {
        fixture.acquire("k", "t");
        fixture.acquire("stays", "t");
        let answer = fixture.conn.say(command);
        // GETDEL deletes strings only.
        if command == "GETDEL k" {
            assert!(answer.error().starts_with("WRONGTYPE"));
            assert_eq!(fixture.ok("DEL k"), 1);
        } else {
            assert_eq!(answer, 1, "{command}");
        }
        fixture.assert_published(&["k del", "k dlock.free"]);
        assert_eq!(fixture.ok("DLOCK.HOLDS k t"), 0);
        assert_eq!(fixture.ok("DLOCK.RELEASE k t"), 0);
        assert_eq!(fixture.ok("DLOCK.EXTEND k t 1000"), 0);
        fixture.assert_locks(0, &[("k", None), ("stays", Some("t"))], 1);
        fixture.acquire("k", "other");
        fixture.assert_locks(0, &[("k", Some("other"))], 2);
        fixture.ok("DLOCK.BREAK k");
        fixture.ok("DLOCK.BREAK stays");
        fixture.events.discard();
    }
}

#[each_server]
fn a_value_written_over_a_lock_ends_its_hold(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.ok("RPUSH list 3 1 2");
    fixture.ok("SET plain x");
    fixture.events.discard();
    for (command, event) in [
        ("SET k x", "k set"),
        ("SORT list STORE k", "k sortstore"),
        ("COPY plain k REPLACE", "k copy_to"),
        ("RENAME plain k", "k rename_to"),
    ] {
        fixture.acquire("k", "t");
        assert!(!fixture.ok(command).is_nil());
        // RENAME first publishes an event of the other key (`plain rename_from`).
        let mut events = [fixture.next_event(), fixture.next_event()];
        if !events[0].starts_with("k ") {
            events.rotate_left(1);
            events[1] = fixture.next_event();
        }
        assert_eq!(events, [event, "k dlock.free"], "{command}");
        fixture.events.assert_none();
        assert!(fixture.conn.say("DLOCK.ACQUIRE k t 1000").error().starts_with("WRONGTYPE"), "{command}");
        fixture.assert_locks(0, &[("k", None)], 0);
        assert_eq!(fixture.ok("DEL k"), 1);
        fixture.events.discard();
    }
    fixture.acquire("k", "t");
    assert_eq!(fixture.ok("SET k x NX"), Value::Nil);
    fixture.events.assert_none();
    fixture.assert_locks(0, &[("k", Some("t"))], 1);
}

#[each_server]
fn a_native_ttl_ends_the_hold_with_the_key(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    fixture.ok("EXPIRE k 1000");
    assert_eq!(fixture.ok("PERSIST k"), 1);
    fixture.assert_locks(0, &[("k", Some("t"))], 1);
    fixture.events.discard();
    assert_eq!(fixture.ok("PEXPIRE k 50"), 1);
    until("the key has expired", || fixture.conn.ok("EXISTS k") == 0);
    fixture.assert_published(&["k expire", "k expired", "k dlock.free"]);
    assert_eq!(fixture.ok("DLOCK.HOLDS k t"), 0);
    assert_eq!(fixture.master.number("dlock_expiries"), 0, "no lease ended");
    fixture.assert_locks(0, &[("k", None)], 0);
    fixture.acquire("k", "other");
}

#[each_server]
fn a_native_ttl_of_the_past_deletes_the_key(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    assert_eq!(fixture.ok("EXPIRE k -1"), 1);
    let events = [fixture.next_event(), fixture.next_event()];
    // Valkey 9 publishes "expired".
    assert!(
        ["k del", "k expired"].contains(&events[0].as_str()) && events[1] == "k dlock.free",
        "{events:?}"
    );
    fixture.assert_locks(0, &[("k", None)], 0);
    fixture.acquire("k", "other");
}

#[each_server]
fn a_lock_with_an_elapsed_native_ttl_is_granted_to_one_newcomer(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    assert_eq!(fixture.ok("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
    let first = fixture.acquire("k", "t");
    // The first ACQUIRE finds the key expired, and the server deletes the key while that command runs.
    let answers = fixture.conn.say_together(&[
        "PEXPIRE k 20",
        "DEBUG SLEEP 0.05",
        "DLOCK.ACQUIRE k other 600000",
        "DLOCK.ACQUIRE k third 600000",
    ]);
    assert!(answers[2].int() > first);
    assert_eq!(answers[3], Value::Nil);
    fixture.assert_locks(0, &[("k", Some("other"))], 1);
    assert_eq!(fixture.ok("PTTL k"), -1, "the new lock does not have the TTL of the old key");
}

/// Asserts that the key has a native TTL, or has none if `has_ttl` is false: on the master and on the
/// replica, before and after the master loads its append only file.
#[track_caller]
fn assert_ttl(fixture: &mut Fixture, key: &str, has_ttl: bool) {
    let ttl = |server: &Server| server.connect().ok(&format!("PTTL {key}")).int();
    let ttls = |fixture: &Fixture| [ttl(&fixture.master), ttl(&fixture.replica)].map(|ttl| ttl > 0);
    fixture.replica.wait_in_sync(&fixture.master);
    assert_eq!(ttls(fixture), [has_ttl; 2], "{key}");
    assert_eq!(fixture.ok("DEBUG LOADAOF"), "OK");
    assert_eq!(ttls(fixture), [has_ttl; 2], "{key}, from the file");
}

#[each_server]
fn a_native_ttl_does_not_apply_to_later_holds(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    // After a handoff.
    fixture.acquire("k", "t");
    let mut waiter = waiter(&fixture.master, "DLOCK.ACQUIRE k w 600000 BLOCK 0");
    assert_eq!(fixture.ok("PEXPIRE k 500000"), 1);
    assert_eq!(fixture.ok("DLOCK.RELEASE k t"), 1);
    granted(&mut waiter);
    assert_ttl(&mut fixture, "k", false);
    // After a rename to a new name.
    fixture.acquire("old", "t");
    assert_eq!(fixture.ok("PEXPIRE old 500000"), 1);
    assert_eq!(fixture.ok("RENAME old new"), "OK");
    fixture.acquire("new", "t");
    assert_ttl(&mut fixture, "new", false);
    // After another sharer joined.
    let fence = fixture.ok("DLOCK.ACQUIRE s t 600000 SHARED").int();
    assert_eq!(fixture.ok("PEXPIRE s 500000"), 1);
    assert!(fixture.ok("DLOCK.ACQUIRE s u 600000 SHARED").int() > fence);
    assert_ttl(&mut fixture, "s", false);
}

/// A holder relies on the lease of a renewal, so an earlier native TTL must not end the hold.
#[each_server]
fn a_renewal_clears_the_native_ttl(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    let fence = fixture.acquire("k", "t");
    for (command, answer) in [
        ("DLOCK.EXTEND k t 600000", 1),
        ("DLOCK.EXTEND k t 500000", 1),
        ("DLOCK.ACQUIRE k t 700000", fence),
        // The lease is longer than requested and stays as it is.
        ("DLOCK.ACQUIRE k t 1000", fence),
        ("DLOCK.ACQUIRE k t 1000 REENTRANT", fence),
        (&format!("DLOCK.CONFIRM k t {fence} 600000"), fence),
    ] {
        assert_eq!(fixture.ok("PEXPIRE k 400000"), 1);
        assert_ttl(&mut fixture, "k", true);
        assert_eq!(fixture.ok(command), answer, "{command}");
        assert_ttl(&mut fixture, "k", false);
    }
    // Commands that set no lease leave the TTL. REENTRANT has raised the count of the hold to 2, so RELEASE
    // does not end the hold; CONFIRM changes nothing, because the hold has a greater fence.
    assert_eq!(fixture.ok("PEXPIRE k 400000"), 1);
    assert_eq!(fixture.ok("DLOCK.EXTEND k other 600000"), 0);
    assert_eq!(fixture.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(fixture.ok("DLOCK.CONFIRM k t 1 600000"), fence);
    assert_ttl(&mut fixture, "k", true);
}
