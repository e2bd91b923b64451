//! The replication stream, and replicas that apply it. `DLOCK_ROUNDS=50` makes the failovers and resyncs
//! longer.

#![allow(clippy::disallowed_methods, reason = "how long a test waits")]

mod cluster;
mod ended_waits;
mod ephemeral;
mod failover;
mod followers;
mod guarded;
mod handoff;
mod load;
mod newer_master;
mod plain;
mod random_workload;
mod replicas;
mod resync;
mod stream;

/// Returns the number of failovers of each kind.
fn rounds() -> usize {
    dlock_testkit::rounds(2)
}
