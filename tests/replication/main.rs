//! What goes over the replication link, and what replicas make of it. `DLOCK_ROUNDS=50` is the long form of the failovers and resyncs.

#![allow(clippy::disallowed_methods, reason = "how long a test waits")]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../history/mod.rs"]
mod history;
#[path = "../workers/mod.rs"]
mod workers;

mod ephemeral;
mod failover;
mod handoff;
mod load;
mod newer;
mod replicas;
mod resync;
mod same;
mod stream;

/// How many failovers of a kind.
fn rounds() -> usize {
    std::env::var("DLOCK_ROUNDS").map_or(2, |rounds| rounds.parse().expect("DLOCK_ROUNDS wants a number"))
}
