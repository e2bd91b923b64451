//! The command `dlock` as its users run it: with real servers, processes and terminals.
//!
//! The commands that run under locks are shell scripts. They report by writing into files of the test's
//! folder, and the test waits for the contents.

mod closing;
mod clusters;
mod deadlocks;
mod doctor;
mod documented;
mod exit_codes;
mod forwarding;
mod hold_and_elect;
mod lock_loss;
mod metrics;
mod operators;
mod outages;
mod runs;
mod scripts;
mod sentinels;
mod untrusted_text;

mod stage;
mod terminal;
mod top;

use dlock_testkit::queue;
use dlock_testkit::until;
use stage::{Done, Running, Stage, with_closed_pipe_as_stdout};
