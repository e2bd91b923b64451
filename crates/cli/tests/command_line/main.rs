//! The command `dlock` as its users run it: real servers, real processes, real terminals.
//!
//! The programs that are run under locks are shell scripts. What they have to say they write into files of
//! the test's folder; a test waits until it stands there.

mod contrib;
mod deadlocks;
mod doctor;
mod documented;
mod exclusion;
mod exit_codes;
mod forwarding;
mod hold_and_elect;
mod lock_loss;
mod metrics;
mod operators;
mod runs;
mod scripts;
mod untrusted_text;

mod stage;
mod terminal;
mod top;

use dlock_testkit::queue;
use dlock_testkit::until;
use stage::{Done, Running, Stage, unread};
