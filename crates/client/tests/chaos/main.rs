//! A quorum under faults: clients lock five masters and write to a store that checks fences. Masters are
//! killed, stopped, slow, lossy, cut off in one direction, restarted empty, and get wrong clocks; clients are
//! paused past their leases. The same for a cluster, and for servers that sentinels watch. `make chaos` runs
//! ROUNDS rounds on each server, `make test` a few. With Redlock by `SET NX PX`, and with dlock without
//! restart grace, the tests must find two holders at once.

mod checker;
mod cluster;
mod contender;
mod double_grants;
mod failovers;
mod foreign_clients;
mod gates;
mod guarded;
mod links;
mod locks;
mod masters;
mod messages;
mod mixed_languages;
mod outage;
mod progress;
mod proxy;
mod record;
mod run;
mod sentinel;
mod store;
mod strangers;
mod topology;

use std::time::Duration;

use dlock_testkit::{ServerKind, each_server, rounds};
use run::{LockKind, Run};

/// Number of rounds in which each fault happens once.
const FEW: usize = 9;
/// Grace period of the masters, in ms.
const GRACE: u64 = 1_500;
/// Lease of the holds: shorter than the grace period, and short enough to end during a run.
const LEASE: Duration = Duration::from_millis(1_000);

#[each_server(in_turn)]
fn a_few_rounds_of_faults_break_no_promise(kind: &ServerKind) {
    assert_no_violation(kind, FEW);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_faults_break_no_promise(kind: &ServerKind) {
    assert_no_violation(kind, rounds(100));
}

fn assert_no_violation(kind: &ServerKind, rounds: usize) {
    let mut run = Run::prepare(kind, LockKind::Dlock, GRACE, LEASE);
    let outcome = run.during(|faults| {
        faults.inject(rounds);
        faults.until_write_refused_and_acquisition_dropped();
        faults.stage.until_all_acquire("after the last fault");
    });
    let violations = outcome.record.violations();
    outcome.show(&kind.name, rounds, violations.len());
    assert!(violations.is_empty(), "{:#?}", &violations[..violations.len().min(20)]);
    outcome.assert_all_faults_took_effect();
}

/// Without fences the store cannot refuse stale writes, so the test checks only for two holders at once.
#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_faults_show_no_two_holders_without_fences(kind: &ServerKind) {
    let rounds = rounds(100);
    let mut run = Run::prepare(kind, LockKind::Unfenced, GRACE, LEASE);
    let outcome = run.during(|faults| {
        faults.inject(rounds);
        faults.stage.until_all_acquire("after the last fault");
    });
    let violations = outcome.record.two_at_once();
    outcome.show(&kind.name, rounds, violations.len());
    assert_eq!(violations, [""; 0]);
    outcome.assert_all_faults_took_effect();
}

#[each_server(in_turn)]
fn plain_redlock_has_two_holders_after_masters_restart_empty(kind: &ServerKind) {
    assert_two_holders(kind, LockKind::Redlock);
}

#[each_server(in_turn)]
fn dlock_has_two_holders_after_masters_restart_empty_without_restart_grace(kind: &ServerKind) {
    assert_two_holders(kind, LockKind::Dlock);
}

/// Restarts three masters under a hold until two clients hold at once, normally at the first try.
fn assert_two_holders(kind: &ServerKind, locks: LockKind) {
    const TRIES: usize = 20;
    // The lease outlasts the restarts.
    let lease = Duration::from_secs(6);
    let mut run = Run::prepare(kind, locks, 0, lease);
    let two_held = (0..TRIES).any(|_| {
        let outcome = run.during(|faults| faults.restart_under_a_hold(3));
        !outcome.record.two_at_once().is_empty()
    });
    assert!(two_held, "three masters lost a hold {TRIES} times, and two clients never held one lock at once");
}
