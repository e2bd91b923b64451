//! A cluster and a Sentinel deployment under faults: failovers of all kinds, restarts, slots that move, a
//! split network. With a restart grace above the leases, there are never two holders, fences rise, and no
//! wait or release outlasts its limit by much.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::cluster::Cluster;
use crate::contender::{Stage, TIMEOUT};
use crate::foreign_clients;
use crate::record::Record;
use crate::run::{Contest, LockKind, kinds};
use crate::sentinel::{Deployment, Fault, MAX_LAG};
use crate::store::Store;
use crate::topology::Topology;
use dlock_testkit::{Random, Server, ServerKind, each_server, rounds, until_within};

/// Number of Rust clients.
const RUST_CLIENTS: usize = 3;
/// Number of rounds in a short run.
const FEW: usize = 3;
const LEASE: Duration = Duration::from_millis(1_500);
/// In ms. Longer than a lease and the time in which a master that was stopped may not know of its successor.
const GRACE: u64 = 3_500;
/// In ms: how long an old master grants locks beside a new one after a split.
const OVERLAP: u64 = (MAX_LAG + 2) * 1_000;
/// A hold that is renewed at the new master must not end at the old one during the overlap. A renewal is due
/// after a third of the lease, and the clients are late by up to 1.5 s.
const SPLIT_LEASE: Duration = Duration::from_millis((OVERLAP + 1_500 + 500) * 3 / 2);
/// A hold that was renewed at the old master must not be granted again at the new one.
const SPLIT_GRACE: u64 = SPLIT_LEASE.as_millis() as u64 + OVERLAP;

#[each_server(in_turn)]
fn a_few_failovers_in_a_cluster_break_no_promise(kind: &ServerKind) {
    assert_no_violation::<Cluster>(kind, FEW, Cluster::FAULTS, LEASE, GRACE);
}

#[each_server(in_turn)]
fn a_few_failovers_by_sentinels_break_no_promise(kind: &ServerKind) {
    assert_no_violation::<Deployment>(kind, FEW, Deployment::FAULTS, LEASE, GRACE);
}

#[each_server(in_turn)]
fn a_split_between_master_and_sentinels_breaks_no_promise(kind: &ServerKind) {
    assert_no_violation::<Deployment>(kind, 1, &[Fault::Split], SPLIT_LEASE, SPLIT_GRACE);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_failovers_in_a_cluster_break_no_promise(kind: &ServerKind) {
    assert_no_violation::<Cluster>(kind, rounds(100), Cluster::FAULTS, LEASE, GRACE);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_failovers_by_sentinels_break_no_promise(kind: &ServerKind) {
    assert_no_violation::<Deployment>(kind, rounds(100), Deployment::FAULTS, LEASE, GRACE);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS / 5 rounds: make chaos"]
fn many_splits_between_master_and_sentinels_break_no_promise(kind: &ServerKind) {
    assert_no_violation::<Deployment>(
        kind,
        rounds(100).div_ceil(5),
        &[Fault::Split],
        SPLIT_LEASE,
        SPLIT_GRACE,
    );
}

pub fn network() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// `grace` is in ms.
fn assert_no_violation<T: Topology>(
    kind: &ServerKind,
    rounds: usize,
    possible: &[T::Fault],
    lease: Duration,
    grace: u64,
) {
    let (mut random, network) = (Random::fresh(), network());
    let mut servers = T::start(kind, grace, network.handle());
    let programs = foreign_clients::programs_for_failovers();
    let store = Server::start(kind);
    let stage = Stage::new(Store::new(&store), kinds(RUST_CLIENTS, &programs));
    let randoms = (0..RUST_CLIENTS).map(|_| random.branch()).collect();
    let urls = vec![servers.url()];
    let contest = Contest { rust: RUST_CLIENTS, programs, urls, locks: LockKind::Dlock, lease };
    let mut faults = BTreeMap::<T::Fault, usize>::new();
    let (holds, ()) = contest.during(&stage, randoms, || {
        stage.until_all_acquire("before the first fault");
        let mut deck = Vec::new();
        for _ in 0..rounds {
            if deck.is_empty() {
                deck = possible.to_vec();
            }
            let fault = deck.swap_remove(random.below(deck.len()));
            *faults.entry(fault).or_default() += 1;
            if random.once_in(2) {
                stage.keep_holds.store(true, Relaxed);
                until_within(TIMEOUT, "a client keeps a hold", || stage.keeping.load(Relaxed) > 0);
            }
            servers.suffer(fault, &mut random, &stage);
            stage.keep_holds.store(false, Relaxed);
            servers.until_whole();
            stage.until_all_acquire(&format!("after {fault:?}"));
        }
    });
    let overdue = stage.overdue.into_inner().expect("no panic");
    let record = Record { holds, writes: stage.store.into_log() };
    let violations = record.violations();
    let mut acquired = BTreeMap::<String, usize>::new();
    for (kind, count) in stage.acquired {
        *acquired.entry(kind).or_default() += count.into_inner();
    }
    println!("{}: {rounds} rounds, {} holds: {acquired:?}", kind.name, record.holds.len());
    println!("  faults: {faults:?}, clients: {:?}", stage.counts);
    println!("  violations: {}, over their limits: {}", violations.len(), overdue.len());
    assert!(violations.is_empty(), "{:#?}", &violations[..violations.len().min(20)]);
    assert_eq!(overdue, [""; 0]);
}
