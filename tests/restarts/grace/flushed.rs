//! FLUSHALL and FLUSHDB end holds, and SWAPDB moves holds to another database. A grace period then begins,
//! because the holders may still run.

#![allow(clippy::disallowed_methods, reason = "measures the time as a client does")]

use std::time::{Duration, Instant};

use super::{assert_grace, end_grace, grace_left, logged_grace, with_grace};
use dlock_testkit::queue::{clients, granted, until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, ServerKind, each_server, until};

/// Starts a server and ends the grace period of its start.
fn past_grace(kind: &ServerKind) -> (Server, Conn) {
    let server = with_grace(kind).start();
    end_grace(&server);
    let conn = server.connect();
    (server, conn)
}

#[each_server]
fn a_flush_of_held_locks_begins_grace(kind: &ServerKind) {
    for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHALL SYNC", "FLUSHDB", "FLUSHDB ASYNC", "SWAPDB 9 0"] {
        let (server, mut conn) = past_grace(kind);
        let before = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        assert_eq!(conn.ok(flush), "OK");
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0, "{flush}");
        // The server also refuses the former holder, because it has no record of the hold any more.
        for token in ["t", "other"] {
            assert_grace(&mut conn, &format!("DLOCK.ACQUIRE k {token} 1000 BLOCK 0"));
        }
        let logged = logged_grace(&server);
        // The start of the server began the first grace period.
        assert_eq!(logged.begun, 2, "{flush}");
        let reason = if flush.starts_with("SWAP") { "swapped" } else { "flushed" };
        assert!(logged.last_reason.contains(reason), "{flush}: {}", logged.last_reason);
        end_grace(&server);
        assert!(conn.ok("DLOCK.ACQUIRE k other 1000").int() > before);
    }
}

#[each_server]
fn a_flush_that_ends_no_hold_begins_no_grace(kind: &ServerKind) {
    let (server, mut conn) = past_grace(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("SELECT 3"), "OK");
    for command in ["SET cached x", "FLUSHDB", "SWAPDB 4 5"] {
        conn.ok(command);
    }
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("DLOCK.RELEASE k t");
    conn.ok("FLUSHDB");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(logged_grace(&server).begun, 1, "{}", server.log());
}

#[each_server]
fn waiters_stay_queued_after_a_flush_and_are_served_when_grace_ends(kind: &ServerKind) {
    for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "SWAPDB 0 9"] {
        let (server, mut conn) = past_grace(kind);
        assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 2500"), "OK");
        conn.ok("DLOCK.ACQUIRE k t 2500");
        let mut first = waiter(&server, "DLOCK.ACQUIRE k first 2500 BLOCK 0");
        let mut second = waiter(&server, "DLOCK.ACQUIRE k second 2500 BLOCK 0");
        let start = Instant::now();
        assert_eq!(conn.ok("DLOCK.EXTEND k t 2500"), 1);
        assert_eq!(conn.ok(flush), "OK");
        assert_grace(&mut conn, "DLOCK.ACQUIRE k newcomer 2500 BLOCK 0");
        assert_eq!(clients(&mut conn, "k").len(), 2, "{flush}");
        let fence = granted(&mut first);
        assert!(start.elapsed() >= Duration::from_millis(2500), "{flush}: the flushed lease is over");
        assert_eq!(conn.ok("DLOCK.RELEASE k first"), 1);
        assert!(granted(&mut second) > fence);
        until_no_waiters(&server);
        until("the log reports the end of grace", || logged_grace(&server).ended == 2);
    }
}

/// Begins a grace period by flushing a hold in database 3.
fn begin_grace(conn: &mut Conn) {
    for command in ["SELECT 3", "DLOCK.ACQUIRE lost t 600000", "FLUSHDB", "SELECT 0"] {
        conn.ok(command);
    }
}

#[each_server]
fn a_release_in_grace_serves_the_queue_only_when_grace_ends(kind: &ServerKind) {
    let (server, mut conn) = past_grace(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    let mut next = waiter(&server, "DLOCK.ACQUIRE k next 600000 BLOCK 0");
    let mut timed = waiter(&server, "DLOCK.ACQUIRE k timed 600000 BLOCK 2000");
    begin_grace(&mut conn);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    assert!(timed.read().is_nil(), "the wait times out in grace too");
    let shown = conn.ok("DLOCK.INSPECT k");
    assert_eq!((shown.field("mode"), shown.field("waiters")), (&"free".into(), &1.into()));
    assert_grace(&mut conn, "DLOCK.ACQUIRE k t 1000");
    end_grace(&server);
    assert!(granted(&mut next) > fence);
    until_no_waiters(&server);
}

#[each_server]
fn an_upgrade_that_waits_is_granted_after_grace(kind: &ServerKind) {
    let (server, mut conn) = past_grace(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000 SHARED").int();
    conn.ok("DLOCK.ACQUIRE k other 600000 SHARED");
    let mut upgrade = waiter(&server, "DLOCK.ACQUIRE k t 600000 BLOCK 0");
    begin_grace(&mut conn);
    assert_eq!(conn.ok("DLOCK.RELEASE k other"), 1);
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("mode"), &"shared");
    assert_eq!(clients(&mut conn, "k").len(), 1);
    end_grace(&server);
    assert_eq!(upgrade.read(), fence);
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("mode"), &"exclusive");
}

#[each_server]
fn a_hold_moved_by_swapdb_stays_valid_in_its_new_database(kind: &ServerKind) {
    let (server, mut conn) = past_grace(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert_eq!(conn.ok("SWAPDB 0 9"), "OK");
    assert_eq!(conn.ok("SELECT 9"), "OK");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 600000"), 1);
    assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
    assert!(grace_left(&server) > 0);
}

#[each_server]
fn every_queue_is_served_when_grace_ends(kind: &ServerKind) {
    let (server, mut conn) = past_grace(kind);
    for request in ["DLOCK.ACQUIRE KEY t 600000", "DLOCK.ACQUIRE KEY next 600000 QUEUE 600000"] {
        let requests: Vec<String> = (0..500).map(|n| request.replace("KEY", &format!("k{n}"))).collect();
        let _ = conn.say_together(&requests);
    }
    assert_eq!(server.numbers(["dlock_held", "dlock_queued"]), [500, 500]);
    assert_eq!(conn.ok("FLUSHALL"), "OK");
    assert_eq!(server.numbers(["dlock_held", "dlock_queued"]), [0, 500]);
    end_grace(&server);
    until("every waiter is granted its lock", || server.numbers(["dlock_held", "dlock_queued"]) == [500, 0]);
}
