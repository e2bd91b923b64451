//! The tests of the protocol. All are in one binary, which links once.

mod commands;
mod errors;
mod messages;
mod replies;

use dlock_testkit::property::random;
