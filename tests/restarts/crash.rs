//! Servers that are killed, lose power, or have damaged files or a full disk: they lose no acknowledged
//! change, and no lock gets a second holder. `DLOCK_ROUNDS=200` makes the random tests longer.

#![allow(clippy::disallowed_methods, reason = "clients rely on a lease by their clock")]

mod disk;
mod full;
mod killed;
mod rounds;
mod tails;

use dlock_testkit::{Options, Server, ServerKind};

/// Longest lease and grace period, in ms, of servers that may lose holds. Longer than a restart on a busy
/// machine: otherwise a lost hold would have ended before a client can ask for the lock.
const LONGEST: u64 = 1_000;

/// Options that lose no acknowledged command.
fn always(kind: &ServerKind) -> Options {
    // Frequent rewrites, so that some crashes happen during one.
    Server::options(kind).synced().conf("auto-aof-rewrite-min-size 100kb")
}

/// Options that may lose holds, with a grace period.
fn with_grace(kind: &ServerKind) -> Options {
    Server::options(kind).conf(&format!("dlock.restart-grace {LONGEST}"))
}

/// Returns the number of crashes or damaged files.
fn attempts() -> usize {
    dlock_testkit::rounds(4)
}
