//! Servers that are killed, lose power, or have damaged files or a full disk. With `appendfsync always` they
//! lose no acknowledged command; with weaker settings the grace period prevents a second holder.
//! `DLOCK_ROUNDS=200` makes the random tests longer.

#![allow(clippy::disallowed_methods, reason = "clients measure their leases")]

mod damaged;
mod disk;
mod full;
mod killed;
mod messages;
mod rounds;

use dlock_testkit::{Options, Server, ServerKind};

/// Grace period and longest lease, in ms, of servers that may lose holds. A restart takes less time, even on
/// a busy machine. So when clients ask for the lock again, the lease of a lost hold has not passed. Only the
/// grace period then prevents a second holder.
const GRACE_MS: u64 = 1_000;

/// Options with `appendfsync always`, which loses no acknowledged command.
fn lossless(kind: &ServerKind) -> Options {
    // Frequent rewrites, so that some crashes happen during one.
    Server::options(kind).synced().conf("auto-aof-rewrite-min-size 100kb")
}

/// Options that may lose holds, with a grace period.
fn with_grace(kind: &ServerKind) -> Options {
    Server::options(kind).conf(&format!("dlock.restart-grace {GRACE_MS}"))
}

/// Returns the number of crashes or of damaged files in a test.
fn attempts() -> usize {
    dlock_testkit::rounds(4)
}
