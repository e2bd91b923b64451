//! A full disk: refused commands, continued service, and no loss of acknowledged commands.

use std::fs;

use super::disk::Disk;
use super::rounds::Rounds;
use super::{LONGEST, always, with_grace};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, locks, until};

#[each_server]
fn a_full_disk_ends_the_server_and_loses_nothing_with_appendfsync_always(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let rounds = Rounds {
        name: "disk full, appendfsync always",
        leases: &[100, 600_000, 600_000],
        grants: 100,
        all_is_given_back: true,
    };
    let tally = rounds.run(always(&kind).start(), |server, random| {
        // Only a part of the last write fits.
        disk.leave_room_for(random.below(3_000) as i64);
        assert!(!server.expect_exit().success());
        disk.leave_room_for(-1);
    });
    tally.assert_nothing_lost();
}

#[track_caller]
fn until_refused(conn: &mut Conn, command: &str) {
    until(
        "the server has noticed",
        || matches!(conn.say(command), Value::Error(line) if line.starts_with("MISCONF")),
    );
}

#[each_server]
fn a_full_disk_refuses_commands_and_grants_nothing_with_appendfsync_everysec(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    // The test compares the fences of the file, so no mark may be above them.
    let mut server = Server::options(&kind).conf("appendonly yes").conf("dlock.fence-mark no").start();
    let mut conn = server.connect();
    for command in
        ["DLOCK.ACQUIRE kept t 600000", "DLOCK.ACQUIRE short t 1000", "DLOCK.ACQUIRE other t 600000"]
    {
        assert!(conn.ok(command).int() > 0);
    }
    let mut waiter = server.connect();
    waiter.send(&["DLOCK.ACQUIRE", "short", "next", "600000", "BLOCK", "0"]);
    until("the client waits", || server.info("dlock_waiting") == "1");
    disk.leave_room_for(0);
    until_refused(&mut conn, "DLOCK.EXTEND kept t 600000");
    for command in [
        "DLOCK.ACQUIRE free t 600000",
        "DLOCK.ACQUIRE kept t 600000 BLOCK 0",
        "DLOCK.RELEASE kept t",
        "DLOCK.BREAK kept",
    ] {
        assert!(conn.say(command).error().starts_with("MISCONF"), "{command}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS kept t"), 1, "the hold is kept");
    // After a crash the holder would be unknown: the next waiter keeps waiting beyond the first lease.
    until("the lease has expired", || conn.ok("DLOCK.HOLDS short t") == 0);
    until_refused(&mut conn, "DLOCK.BREAK kept");
    assert_eq!((server.info("dlock_expiries"), server.info("dlock_waiting")), ("0".into(), "1".into()));

    disk.leave_room_for(-1);
    assert!(waiter.read().int() > 0);
    assert_eq!(server.info("dlock_expiries"), "1");
    until("the server writes again", || !matches!(conn.say("DLOCK.RELEASE other t"), Value::Error(_)));
    let before = locks(&server);
    assert_eq!(before.len(), 5, "{before:?}");
    server.wait_written();
    server.kill9();
    server.restart();
    assert_eq!(locks(&server), before);
}

#[each_server]
fn grace_covers_grants_lost_to_a_full_disk_with_appendfsync_everysec(kind: &ServerKind) {
    let (kind, disk) = Disk::of(kind);
    let rounds = Rounds {
        name: "disk full, appendfsync everysec",
        leases: &[60, 250, LONGEST],
        grants: 100,
        all_is_given_back: false,
    };
    let tally = rounds.run(with_grace(&kind).conf("appendonly yes").start(), |server, random| {
        disk.leave_room_for(random.below(3_000) as i64);
        until_refused(&mut server.connect(), "DLOCK.BREAK nothing");
        server.kill9();
        disk.leave_room_for(-1);
    });
    assert!(tally.grace > 0);
}

#[each_server]
fn a_snapshot_that_fails_stops_commands_until_one_succeeds(kind: &ServerKind) {
    let mut server = Server::options(kind).conf("save 3600 1").start();
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 600000");
    // A folder blocks the path of the snapshot.
    let in_the_way = server.dir().join("dump.rdb");
    fs::create_dir(&in_the_way).expect("a folder");
    let _ = conn.say("BGSAVE");
    until_refused(&mut conn, "DLOCK.EXTEND k t 600000");
    assert!(conn.say("DLOCK.RELEASE k t").error().starts_with("MISCONF"));
    fs::remove_dir(&in_the_way).expect("it can be removed");
    let _ = conn.say("BGSAVE");
    until("the server takes commands again", || conn.say("DLOCK.EXTEND k t 600000") == 1);
    conn.ok("SAVE");
    let before = locks(&server);
    server.kill9();
    server.restart();
    assert_eq!(locks(&server)[0], before[0]);
}
