//! The replication stream, and replicas that apply it. `DLOCK_ROUNDS=50` makes the failovers and resyncs
//! longer.

#![allow(clippy::disallowed_methods, reason = "tests limit their waits")]

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

/// Returns the number of failovers, or half the number of resyncs, in a test.
fn rounds() -> usize {
    dlock_testkit::rounds(2)
}
