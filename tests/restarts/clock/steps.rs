//! A step of the wall clock while clients hold and wait for locks, and steps while the server is down.

use std::time::{Duration, Instant};

use dlock_testkit::wall_clock::{HOUR, WallClock, seconds};
use dlock_testkit::{Conn, Server, ServerKind, each_server, until};

/// A blocked client and the time of its request.
struct Waiter {
    conn: Conn,
    sent: Instant,
}

impl Waiter {
    fn send(server: &Server, command: &str) -> Waiter {
        let (mut conn, sent) = (server.connect(), Instant::now());
        conn.send(&command.split(' ').collect::<Vec<_>>());
        Waiter { conn, sent }
    }

    /// Asserts that the wait times out, not before `ms`.
    #[track_caller]
    fn times_out(mut self, ms: u64) {
        assert!(self.conn.read().is_nil());
        let waited = self.sent.elapsed();
        assert!(waited >= Duration::from_millis(ms), "a wait of {ms} ms timed out after {waited:?}");
    }

    /// Returns the fence of the grant.
    #[track_caller]
    fn granted(mut self) -> i64 {
        self.conn.read().int()
    }

    /// Asserts that the former holder's lease, of `ms` from `since`, had ended before the grant. Returns the
    /// fence of the grant.
    #[track_caller]
    fn granted_after(self, since: Instant, ms: u64) -> i64 {
        let fence = self.granted();
        let lasted = since.elapsed();
        assert!(lasted >= Duration::from_millis(ms), "a lease of {ms} ms has expired after {lasted:?}");
        fence
    }
}

#[track_caller]
fn assert_lease_left(conn: &mut Conn, least: i64, most: i64) {
    let left = conn.ok("DLOCK.PTTL long t").int();
    assert!((least..=most).contains(&left), "{left} ms left");
}

/// Runs `step` while clients hold and wait for locks, and checks that it affects none of them. `check_set_nx`
/// runs some seconds after the step, and checks the effect of the step on two SET NX PX locks: `plain` of 10
/// minutes, and `soon` of 300 ms.
fn step_with_holders_and_waiters(
    kind: &ServerKind,
    step: impl Fn(&WallClock, &mut Conn),
    check_set_nx: impl Fn(&mut Conn),
) {
    let (kind, clock) = WallClock::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    assert_eq!(conn.ok("SET plain x NX PX 600000"), "OK");
    assert!(conn.ok("DLOCK.ACQUIRE long t 600000").int() > 0);
    let asked_short = Instant::now();
    let mut fences = Vec::new();
    for command in [
        "DLOCK.ACQUIRE short t 5000",
        "DLOCK.ACQUIRE extended t 600000",
        "DLOCK.ACQUIRE handed t 600000",
        "DLOCK.ACQUIRE shared t 600000 SHARED",
    ] {
        fences.push(conn.ok(command).int());
    }
    let after_short = Waiter::send(&server, "DLOCK.ACQUIRE short u 600000 BLOCK 0");
    let timed = Waiter::send(&server, "DLOCK.ACQUIRE long u 600000 BLOCK 6000");
    let after_extended = Waiter::send(&server, "DLOCK.ACQUIRE extended u 600000 BLOCK 600000");
    let first = Waiter::send(&server, "DLOCK.ACQUIRE handed u 600000 BLOCK 0");
    // `first` joins the queue of `handed` before `second`.
    until("four clients wait", || server.number("dlock_waiting") == 4);
    let second = Waiter::send(&server, "DLOCK.ACQUIRE handed v 600000 BLOCK 600000");
    let writer = Waiter::send(&server, "DLOCK.ACQUIRE shared u 600000 BLOCK 0");
    until("all clients wait", || server.number("dlock_waiting") == 6);
    assert_eq!(conn.ok("SET soon x NX PX 300"), "OK");

    step(&clock, &mut conn);

    // Each release grants the lock to the next waiter of the queue.
    assert_eq!(conn.ok("DLOCK.RELEASE handed t"), 1);
    fences.push(first.granted());
    assert_eq!(conn.ok("DLOCK.RELEASE handed u"), 1);
    fences.push(second.granted());
    assert_eq!(conn.ok("DLOCK.RELEASE shared t"), 1);
    fences.push(writer.granted());
    // Leases and waits that begin after the step also last as long as requested.
    let asked_extended = Instant::now();
    assert_eq!(conn.ok("DLOCK.EXTEND extended t 900"), 1);
    let asked_late = Instant::now();
    fences.push(conn.ok("DLOCK.ACQUIRE late t 200").int());
    let after_late = Waiter::send(&server, "DLOCK.ACQUIRE late u 600000 BLOCK 0");
    let late_timed = Waiter::send(&server, "DLOCK.ACQUIRE long v 600000 BLOCK 300");

    fences.push(after_late.granted_after(asked_late, 200));
    late_timed.times_out(300);
    let short = after_short.granted_after(asked_short, 5000);
    let extended = after_extended.granted_after(asked_extended, 900);
    timed.times_out(6000);
    check_set_nx(&mut conn);
    assert_lease_left(&mut conn, 500_000, 600_000);
    assert_eq!(conn.ok("DLOCK.EXTEND long t 1200000"), 1);
    assert_lease_left(&mut conn, 1_100_000, 1_200_000);

    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let last = conn.ok("DLOCK.ACQUIRE last t 600000").int();
    assert!(last > short && last > extended && fences.iter().all(|fence| last > *fence));
    // The leases of `short`, `extended` and `late` expired; both waits for `long` timed out.
    let fields = ["dlock_expiries", "dlock_timeouts", "dlock_handoffs", "dlock_waiting"];
    assert_eq!(server.numbers(fields), [3, 2, 6, 0]);
}

#[each_server]
fn a_clock_step_an_hour_forward_changes_no_lease_wait_or_fence(kind: &ServerKind) {
    let forward = |clock: &WallClock, conn: &mut Conn| {
        let before = seconds(conn);
        clock.set_offset(HOUR);
        until("the server sees the step", || seconds(conn) >= before + HOUR);
    };
    step_with_holders_and_waiters(kind, forward, |conn| {
        assert_eq!(conn.ok("EXISTS plain"), 0, "the SET NX PX lock of 10 minutes has expired");
        assert_eq!(conn.ok("SET plain other NX PX 600000"), "OK", "another client acquires it");
    });
}

#[each_server]
fn a_clock_step_an_hour_back_changes_no_lease_wait_or_fence(kind: &ServerKind) {
    let back = |clock: &WallClock, conn: &mut Conn| {
        let before = seconds(conn);
        clock.set_offset(-HOUR);
        until("the server sees the step", || seconds(conn) < before);
    };
    step_with_holders_and_waiters(kind, back, |conn| {
        assert!(conn.ok("PTTL soon").int() > 3_000_000, "the SET NX PX lock of 300 ms lasts an hour");
    });
}

#[each_server]
fn a_stopped_clock_changes_no_lease_wait_or_fence(kind: &ServerKind) {
    step_with_holders_and_waiters(kind, WallClock::freeze, |conn| {
        let left = conn.ok("PTTL soon").int();
        assert!(left > 0, "the SET NX PX lock of 300 ms does not expire");
        // On Valkey 9.1, the time of a stopped clock varies a little: see `WallClock::freeze`.
        assert!(conn.ok("PTTL soon").int().abs_diff(left) <= 1);
    });
}

#[each_server]
fn a_restart_with_a_clock_step_changes_no_lease_and_fences_rise(kind: &ServerKind) {
    for rewrite in [false, true] {
        let (kind, clock) = WallClock::of(kind);
        // Without the preamble, a rewritten file contains the locks as commands.
        let mut server = Server::options(&kind).synced().conf("aof-use-rdb-preamble no").start();
        let mut last = server.connect().ok("DLOCK.ACQUIRE long t 600000").int();
        for hours in [24, -24, 0] {
            if rewrite {
                server.rewrite();
            }
            server.kill9();
            clock.set_offset(hours * HOUR);
            server.restart();
            let mut conn = server.connect();
            assert_lease_left(&mut conn, 540_000, 600_000);
            let fence = conn.ok("DLOCK.ACQUIRE other t 600000").int();
            assert!(fence > last, "the clock is {hours} h off: fence {fence} after {last}");
            assert_eq!(conn.ok("DLOCK.RELEASE other t"), 1);
            last = fence;
        }
    }
}
