//! Real servers for tests: starts them with the module, and talks to them without a client library.
//!
//! A test has the attribute [`macro@each_server`], starts a [`Server`], and sends commands to the server over
//! a [`Conn`]. No test sleeps: [`until`] waits for a condition, and its panic at a timeout names the
//! condition. A server that ends by itself fails its test. A test can send several commands in one write
//! ([`Conn::say_together`]).
//!
//! - [`Server`], [`Options`]: a server's process, folder and port
//! - [`Conn`], [`Value`]: a connection and its replies; [`Wire`]: the bytes of a connection
//! - [`queue`], [`locks()`], [`Events`], [`Stream`], [`aof`]: views of the state of a server
//! - [`workers`], [`history`]: clients that lock at random, and the checker of their records
//!
//! docs/internals/testing.md lists the variables that the testkit reads.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "waiting for real servers needs a clock")]

pub mod aof;
pub mod cluster;
mod conn;
pub mod documents;
mod events;
mod folder;
pub mod history;
mod kinds;
mod layout;
mod locks;
mod port;
mod preload;
mod process;
mod project;
#[cfg(feature = "proptest")]
pub mod property;
pub mod queue;
mod random;
pub mod sentinels;
mod server;
mod stream;
mod value;
mod wait;
pub mod wall_clock;
mod wire;
pub mod workers;

pub use conn::Conn;
pub use dlock_testkit_macros::each_server;
pub use events::Events;
pub use folder::Folder;
pub use kinds::{ServerKind, each_server, each_server_in_turn, each_shimmed_server};
pub use layout::{HoldLayout, Layout};
pub use locks::{describe_lock, locks, locks_without_fence};
pub use port::Port;
pub use preload::{compiled, preloaded};
pub use process::environment;
pub use project::{module_path, project};
pub use random::{Random, restarts, rounds, run_time, seed};
pub use server::{Options, Server};
pub use stream::Stream;
pub use value::Value;
pub use wait::{TIMEOUT, until, until_some, until_within};
pub use wire::{Wire, encode, parse};

/// Formats a command for messages and comparisons: its arguments separated by blanks, with unprintable bytes
/// escaped.
pub fn line(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.escape_ascii().to_string()).collect();
    words.join(" ")
}
