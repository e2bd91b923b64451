//! DEL, UNLINK, an overwritten value and a native TTL end the hold.

use super::World;
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn del_ends_the_hold(kind: &ServerKind) {
    let mut world = World::new(kind);
    for command in ["DEL k", "UNLINK k", "GETDEL k", "DEL k k2"] {
        world.hold("k", "t");
        world.hold("stays", "t");
        let answer = world.conn.say(command);
        if command == "GETDEL k" {
            assert!(answer.error().starts_with("WRONGTYPE"));
            assert_eq!(world.ok("DEL k"), 1);
        } else {
            assert_eq!(answer, 1, "{command}");
        }
        world.published(&["k del", "k dlock.free"]);
        assert_eq!(world.ok("DLOCK.HOLDS k t"), 0);
        assert_eq!(world.ok("DLOCK.RELEASE k t"), 0);
        assert_eq!(world.ok("DLOCK.EXTEND k t 1000"), 0);
        world.agrees(0, &[("k", None), ("stays", Some("t"))], 1);
        world.hold("k", "other");
        world.agrees(0, &[("k", Some("other"))], 2);
        world.ok("DLOCK.BREAK k");
        world.ok("DLOCK.BREAK stays");
        world.events.so_far();
    }
}

#[each_server]
fn a_value_written_over_a_lock_ends_its_hold(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.ok("RPUSH list 3 1 2");
    world.ok("SET plain x");
    world.events.so_far();
    for (command, event) in [
        ("SET k x", "k set"),
        ("SORT list STORE k", "k sortstore"),
        ("COPY plain k REPLACE", "k copy_to"),
        ("RENAME plain k", "k rename_to"),
    ] {
        world.hold("k", "t");
        assert!(!world.ok(command).is_nil());
        // RENAME and COPY first publish an event of the other key.
        let mut events = [world.next_event(), world.next_event()];
        if !events[0].starts_with("k ") {
            events.rotate_left(1);
            events[1] = world.next_event();
        }
        assert_eq!(events, [event, "k dlock.free"], "{command}");
        world.events.none();
        assert!(world.conn.say("DLOCK.ACQUIRE k t 1000").error().starts_with("WRONGTYPE"), "{command}");
        world.agrees(0, &[("k", None)], 0);
        assert_eq!(world.ok("DEL k"), 1);
        world.events.so_far();
    }
    world.hold("k", "t");
    assert_eq!(world.ok("SET k x NX"), Value::Nil);
    world.events.none();
    world.agrees(0, &[("k", Some("t"))], 1);
}

#[each_server]
fn a_native_ttl_ends_the_hold_with_the_key(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.hold("k", "t");
    world.ok("EXPIRE k 1000");
    assert_eq!(world.ok("PERSIST k"), 1);
    world.agrees(0, &[("k", Some("t"))], 1);
    world.events.so_far();
    assert_eq!(world.ok("PEXPIRE k 50"), 1);
    until("the key is gone", || world.conn.ok("EXISTS k") == 0);
    world.published(&["k expire", "k expired", "k dlock.free"]);
    assert_eq!(world.ok("DLOCK.HOLDS k t"), 0);
    assert_eq!(world.master.number("dlock_expiries"), 0, "no lease ended");
    world.agrees(0, &[("k", None)], 0);
    world.hold("k", "other");
}

#[each_server]
fn a_native_ttl_of_the_past_deletes_the_key(kind: &ServerKind) {
    let mut world = World::new(kind);
    world.hold("k", "t");
    assert_eq!(world.ok("EXPIRE k -1"), 1);
    let events = [world.next_event(), world.next_event()];
    // Valkey 9 publishes "expired".
    assert!(
        ["k del", "k expired"].contains(&events[0].as_str()) && events[1] == "k dlock.free",
        "{events:?}"
    );
    world.agrees(0, &[("k", None)], 0);
    world.hold("k", "other");
}

#[each_server]
fn an_elapsed_native_ttl_admits_one_newcomer(kind: &ServerKind) {
    let mut world = World::new(kind);
    assert_eq!(world.ok("DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
    let first = world.hold("k", "t");
    // The command finds the key expired, and the server deletes it while the command runs.
    let answers = world.conn.say_together(&[
        "PEXPIRE k 20",
        "DEBUG SLEEP 0.05",
        "DLOCK.ACQUIRE k other 600000",
        "DLOCK.ACQUIRE k third 600000",
    ]);
    assert!(answers[2].int() > first);
    assert_eq!(answers[3], Value::Nil);
    world.agrees(0, &[("k", Some("other"))], 1);
    assert_eq!(world.ok("PTTL k"), -1, "the new lock has no ttl of the old key");
}

/// Asserts whether the key has a native TTL, on the master, on the replica, and after the append only file is
/// loaded.
#[track_caller]
fn assert_has_ttl(world: &mut World, key: &str, has: bool) {
    let ttl = |server: &Server| server.connect().ok(&format!("PTTL {key}")).int();
    let ttls = |world: &World| [ttl(&world.master), ttl(&world.replica)].map(|ttl| ttl > 0);
    world.replica.wait_in_sync(&world.master);
    assert_eq!(ttls(world), [has; 2], "{key}");
    assert_eq!(world.ok("DEBUG LOADAOF"), "OK");
    assert_eq!(ttls(world), [has; 2], "{key}, from the file");
}

#[each_server]
fn a_native_ttl_does_not_apply_to_later_holds(kind: &ServerKind) {
    let mut world = World::new(kind);
    // After a handoff.
    world.hold("k", "t");
    let mut waiter = waiter(&world.master, "DLOCK.ACQUIRE k w 600000 BLOCK 0");
    assert_eq!(world.ok("PEXPIRE k 500000"), 1);
    assert_eq!(world.ok("DLOCK.RELEASE k t"), 1);
    granted(&mut waiter);
    assert_has_ttl(&mut world, "k", false);
    // After a rename to a new name.
    world.hold("old", "t");
    assert_eq!(world.ok("PEXPIRE old 500000"), 1);
    assert_eq!(world.ok("RENAME old new"), "OK");
    world.hold("new", "t");
    assert_has_ttl(&mut world, "new", false);
    // After another sharer joined.
    let fence = world.ok("DLOCK.ACQUIRE s t 600000 SHARED").int();
    assert_eq!(world.ok("PEXPIRE s 500000"), 1);
    assert!(world.ok("DLOCK.ACQUIRE s u 600000 SHARED").int() > fence);
    assert_has_ttl(&mut world, "s", false);
}

/// A holder relies on the lease that a renewal returned. EXTEND returned 1, and a second later the hold was
/// gone.
#[each_server]
fn a_renewal_clears_the_native_ttl(kind: &ServerKind) {
    let mut world = World::new(kind);
    let fence = world.hold("k", "t");
    for (command, answer) in [
        ("DLOCK.EXTEND k t 600000", 1),
        ("DLOCK.EXTEND k t 500000", 1),
        ("DLOCK.ACQUIRE k t 700000", fence),
        // The lease is longer than requested and stays as it is.
        ("DLOCK.ACQUIRE k t 1000", fence),
        ("DLOCK.ACQUIRE k t 1000 REENTRANT", fence),
        (&format!("DLOCK.CONFIRM k t {fence} 600000"), fence),
    ] {
        assert_eq!(world.ok("PEXPIRE k 400000"), 1);
        assert_has_ttl(&mut world, "k", true);
        assert_eq!(world.ok(command), answer, "{command}");
        assert_has_ttl(&mut world, "k", false);
    }
    // Commands that set no lease leave the TTL.
    assert_eq!(world.ok("PEXPIRE k 400000"), 1);
    assert_eq!(world.ok("DLOCK.EXTEND k other 600000"), 0);
    assert_eq!(world.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(world.ok("DLOCK.CONFIRM k t 1 600000"), fence);
    assert_has_ttl(&mut world, "k", true);
}
