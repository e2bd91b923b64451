//! The tests of the core, in one binary, so that cargo links only once. `cargo test -p dlock-core model::`
//! runs the tests of the module `model`.

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
