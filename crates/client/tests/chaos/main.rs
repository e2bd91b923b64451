//! A quorum under fire: clients lock five masters and write to a store that checks fences, while masters are
//! killed, stopped, slow, lossy, deaf, mute, restarted empty, and their clocks are set, and while clients are
//! paused past their leases. `make chaos` does it for ROUNDS rounds of faults on every server in turn; `make
//! test` has a few.
//!
//! The same with the Redlock of `SET NX PX`, and with ours without restart-grace, has to fail: the test can.

mod checker;
mod contender;
mod empty_restarts;
mod foreign_clients;
mod guarded;
mod links;
mod locks;
mod masters;
mod mixed_languages;
mod progress;
mod proxy;
mod record;
mod run;
mod store;

use std::time::Duration;

use dlock_testkit::{ServerKind, each_server, rounds};
use run::{Kind, Run};

/// Each fault is dealt once.
const FEW: usize = 9;
const GRACE: u64 = 1_500;
/// Shorter than the grace, and so short that it can run out.
const LEASE: Duration = Duration::from_millis(1_000);

#[each_server(in_turn)]
fn a_few_rounds_of_faults_break_no_promise(kind: &ServerKind) {
    survive(kind, FEW);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_faults_break_no_promise(kind: &ServerKind) {
    survive(kind, rounds(100));
}

fn survive(kind: &ServerKind, rounds: usize) {
    let mut run = Run::prepare(kind, Kind::Ours, GRACE, LEASE);
    let seen = run.during(|scene| {
        scene.faults(rounds);
        scene.until_clients_failed();
        scene.everybody_acquires("all is healed");
    });
    let wrong = seen.record.wrong();
    seen.show(&kind.name, rounds, wrong.len());
    assert!(wrong.is_empty(), "{} violations: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    seen.assert_everything_happened();
}

/// Nobody can refuse their stale writes, so all that is checked is that no two hold at once.
#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_faults_show_no_two_holders_without_fences(kind: &ServerKind) {
    let rounds = rounds(100);
    let mut run = Run::prepare(kind, Kind::Unfenced, GRACE, LEASE);
    let seen = run.during(|scene| {
        scene.faults(rounds);
        scene.everybody_acquires("all is healed");
    });
    let wrong = seen.record.two_at_once();
    seen.show(&kind.name, rounds, wrong.len());
    assert_eq!(wrong, [""; 0]);
    seen.assert_everything_happened();
}

#[each_server(in_turn)]
fn plain_redlock_has_two_holders_after_masters_restart_empty(kind: &ServerKind) {
    must_fail(kind, Kind::Plain);
}

#[each_server(in_turn)]
fn dlock_has_two_holders_after_masters_restart_empty_without_restart_grace(kind: &ServerKind) {
    must_fail(kind, Kind::Ours);
}

/// Restarts three masters under a hold until two clients hold at once. The first time should do.
fn must_fail(kind: &ServerKind, locks: Kind) {
    const TRIES: usize = 20;
    // It outlasts the restarts.
    let lease = Duration::from_secs(6);
    let mut run = Run::prepare(kind, locks, 0, lease);
    let failed = (0..TRIES).any(|_| {
        let seen = run.during(|scene| scene.restart_under_a_hold(3));
        !seen.record.two_at_once().is_empty()
    });
    assert!(failed, "{TRIES} times three masters forgot what they had granted, and nobody noticed");
}
