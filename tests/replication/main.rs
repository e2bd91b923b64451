//! The replication stream, and replicas that apply it. `DLOCK_ROUNDS=50` repeats the failovers and resyncs
//! more often.

#![allow(clippy::disallowed_methods, reason = "tests read the clock, to limit their waits")]

mod cluster;
mod ended_leases;
mod ended_waits;
mod ephemeral;
mod failover;
mod followers;
mod guarded;
mod load;
mod newer_master;
mod plain;
mod random_workload;
mod replicas;
mod resync;
mod stream;

/// Returns the number of rounds of a test. A round is one failover, or two resyncs.
fn rounds() -> usize {
    dlock_testkit::rounds(2)
}
