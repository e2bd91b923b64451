//! A full disk: refused commands, continued service, and no loss of acknowledged commands.

use super::disk::Disk;
use super::rounds::Rounds;
use super::{lossless, with_grace};
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, locks, until};

#[each_server]
fn a_full_disk_ends_the_server_and_loses_no_command_with_appendfsync_always(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let rounds = Rounds { grants: 100, ..Rounds::lossless("disk full, appendfsync always") };
    let tally = rounds.run(lossless(&kind).start(), |server, random| {
        // Only a part of the last write fits.
        disk.leave_room_for(random.below(3_000) as i64);
        assert!(!server.expect_exit().success());
        // Removes the limit.
        disk.leave_room_for(-1);
    });
    tally.assert_nothing_lost();
}

#[each_server]
fn a_full_disk_refuses_commands_and_grants_no_lock_with_appendfsync_everysec(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    // `locks` also returns the greatest fence, which must be the same after the restart. With
    // `dlock.fence-mark`, the server would start with a stored number above that fence.
    let mut server = Server::options(&kind).conf("appendonly yes").conf("dlock.fence-mark no").start();
    let mut conn = server.connect();
    for command in
        ["DLOCK.ACQUIRE kept t 600000", "DLOCK.ACQUIRE short t 600000", "DLOCK.ACQUIRE other t 600000"]
    {
        assert!(conn.ok(command).int() > 0);
    }
    let mut waiter = waiter(&server, "DLOCK.ACQUIRE short next 600000 BLOCK 0");
    // The server has the 4 s of this lease to notice the full disk.
    assert_eq!(conn.ok("DLOCK.EXTEND short t 4000"), 1);
    disk.leave_room_for(0);
    conn.until_error("DLOCK.EXTEND kept t 600000", "MISCONF");
    for command in [
        "DLOCK.ACQUIRE free t 600000",
        "DLOCK.ACQUIRE kept t 600000 BLOCK 0",
        "DLOCK.RELEASE kept t",
        "DLOCK.BREAK kept",
    ] {
        assert!(conn.say(command).error().starts_with("MISCONF"), "{command}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS kept t"), 1, "the lock is still held");
    // The server cannot write, so it neither counts the expiry of the lease nor grants the waiter the lock.
    until("the lease has expired", || conn.ok("DLOCK.HOLDS short t") == 0);
    assert!(conn.say("DLOCK.BREAK kept").error().starts_with("MISCONF"), "the disk is still full");
    assert_eq!(server.numbers(["dlock_expiries", "dlock_waiting"]), [0, 1]);

    disk.leave_room_for(-1);
    granted(&mut waiter);
    assert_eq!(server.number("dlock_expiries"), 1);
    until("the server writes again", || !matches!(conn.say("DLOCK.RELEASE other t"), Value::Error(_)));
    // A line for each of two held locks, and three lines with fields of INFO.
    let before = locks(&server);
    assert_eq!(before.len(), 5, "{before:?}");
    server.wait_written();
    server.kill_and_restart();
    assert_eq!(locks(&server), before);
}

#[each_server]
fn grace_prevents_two_holders_after_a_full_disk_with_appendfsync_everysec(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let rounds = Rounds { grants: 100, ..Rounds::with_grace("disk full, appendfsync everysec") };
    let tally = rounds.run(with_grace(&kind).conf("appendonly yes").start(), |server, random| {
        disk.leave_room_for(random.below(3_000) as i64);
        server.connect().until_error("DLOCK.BREAK nothing", "MISCONF");
        server.kill9();
        disk.leave_room_for(-1);
    });
    assert!(tally.grace > 0, "no reply was GRACE");
}
