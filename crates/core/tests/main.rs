//! The core against its contract. One binary, so that it links once: `cargo test -p dlock-core model::` runs one part.

mod model;
mod regressions;
mod worlds;

/// How often a random test runs: so often, or as `DLOCK_CASES` says, or `PROPTEST_CASES`.
fn cases(normally: u32) -> u32 {
    let given = std::env::var("DLOCK_CASES").or_else(|_| std::env::var("PROPTEST_CASES"));
    given.ok().and_then(|cases| cases.parse().ok()).unwrap_or(normally)
}

/// Where random tests begin: anywhere, or as `DLOCK_SEED` says, so that what failed can be run again.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("DLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(()))
}
