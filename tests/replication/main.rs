//! What goes over the replication link, and what replicas make of it. `DLOCK_ROUNDS=50` is the long form of
//! the failovers and resyncs.

#![allow(clippy::disallowed_methods, reason = "how long a test waits")]

mod cluster;
mod demoted;
mod ephemeral;
mod failover;
mod followers;
mod guarded;
mod handoff;
mod load;
mod newer_master;
mod plain;
mod queued;
mod random_workload;
mod replicas;
mod resync;
mod stream;

/// How many failovers of a kind.
fn rounds() -> usize {
    dlock_testkit::rounds(2)
}
