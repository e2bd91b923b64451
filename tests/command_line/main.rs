//! The command `dlock` as its users run it: real servers, real processes, real terminals.
//!
//! The programs that are run under locks are shell scripts. What they have to say they write into files of the test's
//! folder; a test waits until it stands there.

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../line/mod.rs"]
mod line;

mod ending;
mod exclusion;
mod forwarding;
mod losing;
mod scripts;
mod stage;
mod terminal;

use harness::{PATIENCE, Value, each_server, until, until_some};
use stage::{Done, Running, Stage};
