//! Servers that are killed, lose power, find their files damaged or their disk full: what they remember, and
//! that nobody is granted what somebody else still relies on.
//!
//! `DLOCK_ROUNDS=200` is the long form of the random ones.

#![allow(clippy::disallowed_methods, reason = "clients rely on a lease by their clock")]

mod disk;
mod full;
mod killed;
mod power;
mod rounds;
mod tails;

use dlock_testkit::{Options, Server, ServerKind};

/// The longest lease in ms where holds may be lost, and the grace: longer than a restart on a busy machine
/// takes, or a hold that was lost has ended before anybody can look for it.
const LONGEST: u64 = 1_000;

/// Loses nothing that was acknowledged.
fn always(kind: &ServerKind) -> Options {
    let options = Server::options(kind).conf("appendonly yes").conf("appendfsync always");
    // Rewritten again and again, so that crashes fall into that too.
    options.conf("auto-aof-rewrite-min-size 100kb")
}

/// May lose holds, and waits after a start until they are over.
fn with_grace(kind: &ServerKind) -> Options {
    Server::options(kind).conf(&format!("dlock.restart-grace {LONGEST}"))
}

/// How many crashes, or damaged files.
fn attempts() -> usize {
    dlock_testkit::rounds(4)
}
