//! Servers that are killed, lose power, find their files damaged or their disk full: what they remember, and that
//! nobody is granted what somebody else still relies on.
//!
//! `DLOCK_ROUNDS=200` is the long form of the random ones.

#![allow(clippy::disallowed_methods, reason = "clients rely on a lease by their clock")]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../history/mod.rs"]
mod history;
#[path = "../workers/mod.rs"]
mod workers;

mod disk;
mod full;
mod killed;
mod power;
mod rounds;
mod tails;

use harness::{Options, Server, ServerKind};

/// Loses nothing that was acknowledged.
fn always(kind: &ServerKind) -> Options {
    let options = Server::options(kind).conf("appendonly yes").conf("appendfsync always");
    // Rewritten again and again, so that crashes fall into that too.
    options.conf("auto-aof-rewrite-min-size 100kb")
}

/// May lose holds, and waits after a start until they are over.
fn with_grace(kind: &ServerKind) -> Options {
    Server::options(kind).conf("dlock.restart-grace 250")
}

/// How many rounds, or files.
fn attempts() -> usize {
    std::env::var("DLOCK_ROUNDS").map_or(4, |rounds| rounds.parse().expect("DLOCK_ROUNDS wants a number"))
}
