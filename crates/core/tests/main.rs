//! The tests of the core. All are in one binary, which links once: `cargo test -p dlock-core model::` runs
//! one part.

mod bytes;
mod corpus;
mod cycles;
mod many_holders;
mod model;
mod regressions;
mod scale;
mod worlds;

use dlock_core::TokenRef;
use dlock_testkit::property::{cases, random};
use dlock_testkit::seed;

fn checked(token: &[u8]) -> TokenRef<'_> {
    TokenRef::new(token).expect("a possible token")
}
