//! Starts real servers with the module in them and talks to them byte by byte.
//!
//! A test reads `mod harness;`, asks [`each_server`] for the servers to run on, starts a [`Server`], and calls it by a
//! [`Conn`]. Nothing here sleeps to let something happen: [`until`] waits for a condition and names it when it does
//! not come. A server that dies by itself fails the test that owns it. No async, no client library: races are made by
//! deciding which bytes share one write.

// Each test binary compiles its own copy and uses a part of it; waiting for real servers takes a look at the clock.
#![allow(dead_code, unused_imports, clippy::disallowed_methods)]

use std::path::Path;

pub mod aof;
mod conn;
mod events;
mod folder;
mod kinds;
mod layout;
mod locks;
mod module;
mod options;
mod port;
mod preload;
mod process;
mod random;
pub mod readme;
mod server;
mod stream;
mod value;
mod wait;
pub mod wall_clock;
mod wire;

pub use conn::Conn;
pub use events::Events;
pub use folder::Folder;
pub use kinds::{ServerKind, each_server};
pub use layout::Layout;
pub use locks::locks;
pub use module::module_path;
pub use options::Options;
pub use port::Port;
pub use preload::preloaded;
pub use process::environment;
pub use random::Random;
pub use server::Server;
pub use stream::Stream;
pub use value::Value;
pub use wait::{PATIENCE, until, until_some, until_within};
pub use wire::{Wire, encode, parse};

/// The folder of the whole project: this is compiled into the tests of more than one package.
pub fn project() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .ancestors()
        .find(|folder| folder.join("tests/harness").is_dir())
        .expect("a package of this project")
}

/// A command as one line to read and to compare: its arguments with blanks between, other bytes escaped.
pub fn line(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.escape_ascii().to_string()).collect();
    words.join(" ")
}
