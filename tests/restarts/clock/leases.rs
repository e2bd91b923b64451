//! Leases and fences while the wall clock is set forward and back.

use dlock_testkit::wall_clock::{HOUR, WallClock, seconds};
use dlock_testkit::{Conn, Server, ServerKind, each_server, until};

#[track_caller]
fn assert_left(conn: &mut Conn, range: std::ops::RangeInclusive<i64>) {
    let left = conn.ok("DLOCK.PTTL k t").int();
    assert!(range.contains(&left), "{left} ms left");
}

#[each_server]
fn a_clock_set_forward_ends_no_lease(kind: &ServerKind) {
    let (kind, clock) = WallClock::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    let before = seconds(&mut conn);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert_eq!(conn.ok("SET plain x NX PX 600000"), "OK");
    clock.set_off_by(24 * HOUR);
    until("the server sees the step", || seconds(&mut conn) >= before + 24 * HOUR);
    assert_eq!(conn.ok("EXISTS plain"), 0, "a plain lock is lost: so the clock was really set");

    // Lets the background job run: due leases end, the others stay.
    conn.ok("DLOCK.ACQUIRE mark t 50");
    until("the background has looked", || conn.ok("EXISTS mark") == 0);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_left(&mut conn, 540_000..=600_000);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 1200000"), 1);
    assert_left(&mut conn, 1_140_000..=1_200_000);
    assert_eq!(server.info("dlock_expiries"), "1");
}

#[each_server]
fn a_clock_set_back_makes_no_lease_longer(kind: &ServerKind) {
    let (kind, clock) = WallClock::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("DLOCK.ACQUIRE short t 300");
    let before = seconds(&mut conn);
    clock.set_off_by(-24 * HOUR);
    until("the server sees the step", || seconds(&mut conn) < before);
    assert_left(&mut conn, 540_000..=600_000);
    // The server's timer is a day late now; the lease ends on time.
    until("the short lease ends", || conn.ok("EXISTS short") == 0);
    conn.ok("DLOCK.ACQUIRE short t 30");
    until("one that began after the step ends too", || conn.ok("EXISTS short") == 0);
    assert_eq!(server.info("dlock_expiries"), "2");
}

#[each_server]
fn a_clock_set_back_lowers_no_fence_in_a_running_server(kind: &ServerKind) {
    let (kind, clock) = WallClock::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    let mut last = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    for hours in [-24, 24, -48] {
        clock.set_off_by(hours * HOUR);
        conn.ok("DLOCK.BREAK k");
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[each_server]
fn leases_and_fences_are_right_after_a_restart_with_the_clock_set(kind: &ServerKind) {
    for rewrite in [false, true] {
        let (kind, clock) = WallClock::of(kind);
        let mut server = Server::options(&kind).conf("appendonly yes").conf("appendfsync always").start();
        let mut last = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
        for hours in [24, -24, 0] {
            if rewrite {
                assert_eq!(server.connect().ok("CONFIG SET aof-use-rdb-preamble no"), "OK");
                server.connect().ok("BGREWRITEAOF");
                until("the rewrite is done", || server.info("aof_rewrite_in_progress") == "0");
            }
            server.kill9();
            clock.set_off_by(hours * HOUR);
            server.restart();
            let mut conn = server.connect();
            assert_left(&mut conn, 540_000..=600_000);
            let fence = conn.ok("DLOCK.ACQUIRE other t 600000").int();
            assert!(fence > last, "{hours} h off: {fence} after {last}");
            assert_eq!(conn.ok("DLOCK.RELEASE other t"), 1);
            last = fence;
        }
    }
}
