//! How often a failover without restart grace grants a lock a second time while a client still relies on it:
//! dlock beside `SET NX PX`, with the same clients in the same cluster.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dlock_client::now;
use dlock_testkit::history::{At, Hold};
use dlock_testkit::{Random, Server, ServerKind, each_server, rounds, until_within};

use crate::cluster::{Cluster, SHARDS};
use crate::contender::{CONTENDERS, RESOURCES, Stage, TIMEOUT};
use crate::failovers::network;
use crate::run::{Contest, LockKind, kinds};
use crate::store::Store;
use crate::topology::Topology;

/// Number of kills, of which each takes longer than a lease.
const MOST: usize = 10;
/// Outlasts a failover.
const LEASE: Duration = Duration::from_secs(6);

#[each_server(in_turn)]
#[ignore = "prints counts: see docs/choosing.md"]
fn failovers_without_grace_grant_some_locks_twice(kind: &ServerKind) {
    let rounds = rounds(MOST).min(MOST);
    for (locks, name) in [(LockKind::Dlock, "dlock"), (LockKind::SetNx, "SET NX PX")] {
        for ahead in [false, true] {
            let overlaps = overlaps(&hold_over_failovers(kind, locks, ahead, rounds));
            let sum = Duration::from_micros(overlaps.iter().sum());
            let state = if ahead { "lacks the last grants" } else { "is in sync" };
            let (server, count) = (&kind.name, overlaps.len());
            println!(
                "{server}: {name}, {rounds} kills, the replica {state}: {count} double grants, in all {sum:?}"
            );
        }
    }
}

/// Kills masters while every lock is held, and returns the holds. The replica of each master is in sync, or
/// lacks the last grants.
fn hold_over_failovers(kind: &ServerKind, locks: LockKind, ahead: bool, rounds: usize) -> Vec<Hold> {
    let (mut random, network) = (Random::fresh(), network());
    let mut cluster = Cluster::start(kind, 0, network.handle());
    let store = Server::start(kind);
    let stage = Stage::new(Store::new(&store), kinds(CONTENDERS, &[]));
    let randoms = (0..CONTENDERS).map(|_| random.branch()).collect();
    let (programs, urls) = (Vec::new(), vec![cluster.url()]);
    let contest = Contest { rust: CONTENDERS, programs, urls, locks, lease: LEASE };
    let (holds, ()) = contest.during(&stage, randoms, || {
        for _ in 0..rounds {
            let shard = random.below(SHARDS);
            if ahead {
                cluster.outrun_replica(shard, &stage);
            }
            stage.keep_holds.store(true, Relaxed);
            let are_kept = || stage.keeping.load(Relaxed) >= RESOURCES.len();
            until_within(TIMEOUT, "every lock is kept", are_kept);
            let (master, replica) = cluster.kill_master(shard);
            cluster.until_promoted(replica);
            // Until every lease from before the kill has ended.
            let end = now() + LEASE;
            until_within(TIMEOUT, "the leases have ended", || now() > end);
            stage.keep_holds.store(false, Relaxed);
            cluster.restart(master, false);
            cluster.until_whole();
            stage.until_all_acquire("after a failover");
        }
    });
    holds
}

/// Returns for how long each hold was relied on while an earlier one of the same lock was.
fn overlaps(holds: &[Hold]) -> Vec<At> {
    let mut by_key: BTreeMap<&str, Vec<(At, At)>> = BTreeMap::new();
    for hold in holds {
        if let Some(grant) = hold.grant.filter(|grant| grant.at < grant.until) {
            by_key.entry(&hold.key).or_default().push((grant.at, grant.until));
        }
    }
    let mut overlaps = Vec::new();
    for intervals in by_key.values_mut() {
        intervals.sort_unstable();
        let mut latest = 0;
        for (at, until) in intervals {
            if *at < latest {
                overlaps.push(latest.min(*until) - *at);
            }
            latest = latest.max(*until);
        }
    }
    overlaps
}

#[test]
fn each_overlap_of_two_holds_counts() {
    let hold = |at: At, until| Hold {
        key: "r".into(),
        token: at.to_string(),
        mode: dlock_testkit::history::Mode::Exclusive,
        asked: 0,
        grant: Some(dlock_testkit::history::Grant { fence: 1, at, until }),
        ended: None,
    };
    assert_eq!(overlaps(&[hold(10, 20), hold(20, 30), hold(40, 60), hold(50, 55), hold(58, 70)]), [5, 2]);
}
