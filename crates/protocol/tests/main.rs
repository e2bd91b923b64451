//! The protocol against its contract. One binary, so that it links once.

mod commands;
mod errors;
mod replies;

use dlock_testkit::property::random;
