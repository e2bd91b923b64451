//! A clock that jumps and stops under load.

use std::sync::atomic::Ordering;

use dlock_testkit::wall_clock::{HOUR, WallClock};
use dlock_testkit::workers::{Clock, Plan, Worker, during, history};
use dlock_testkit::{Conn, Random, Server, ServerKind, each_server, rounds, until};

/// Number of clock changes on each server.
const ROUNDS: usize = 20;

/// Acquires a SET NX PX lock with a TTL longer than the test, and never releases it. Returns true if the lock
/// was free. In later calls it is free only if a clock change has ended the earlier lock.
fn set_nx_was_free(conn: &mut Conn) -> bool {
    conn.ok("SET plain x NX PX 600000") == "OK"
}

#[each_server]
fn clock_steps_under_load_cause_no_second_holder_and_no_lower_fence(kind: &ServerKind) {
    let mut random = Random::fresh();
    let (kind, wall_clock) = WallClock::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    let plan = Plan { waits: vec!["", "BLOCK 5", "BLOCK 300"], ..Plan::new(&[20, 100, 300, 1_000]) };
    let clients_clock = Clock::start();
    let mut workers: Vec<Worker<'_>> =
        (0..6).map(|n| Worker::new(format!("client{n}"), &plan, clients_clock, random.branch())).collect();
    assert!(set_nx_was_free(&mut conn));
    let mut lost = 0;
    during(
        &mut workers,
        || server.port(),
        |granted| {
            for _ in 0..rounds(ROUNDS) {
                match random.below(5) {
                    0 => wall_clock.freeze(&mut conn),
                    _ => wall_clock.set_offset(random.below(2 * HOUR as usize) as i64 - HOUR),
                }
                let before = granted.load(Ordering::Relaxed);
                until("30 more locks are granted", || granted.load(Ordering::Relaxed) > before + 30);
                lost += usize::from(set_nx_was_free(&mut conn));
            }
        },
    );
    assert!(lost > 0, "no clock change ended the SET NX PX lock, so the clock was hardly changed");
    let denied: Vec<String> = workers.iter().flat_map(|worker| worker.denied.clone()).collect();
    assert!(denied.is_empty(), "the server refused to extend unexpired holds: {denied:#?}");
    let history = history(workers, Vec::new());
    assert!(history.holds.iter().filter(|hold| hold.grant.is_some()).count() > 30 * rounds(ROUNDS));
    let faults = [history.exclusion(), history.fences()].concat();
    assert!(faults.is_empty(), "{faults:#?}");
    for field in ["dlock_expiries", "dlock_timeouts", "dlock_handoffs"] {
        assert_ne!(server.number(field), 0, "{field}");
    }
}
