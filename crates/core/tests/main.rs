//! The core against its contract. One binary, so that it links once: `cargo test -p dlock-core model::` runs one part.

mod bytes;
mod corpus;
mod crowd;
mod cycles;
mod model;
mod regressions;
mod scale;
mod words;
mod worlds;

use dlock_testkit::seed;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// How often a random test runs: so often, or as `DLOCK_CASES` says, or `PROPTEST_CASES`.
fn cases(normally: u32) -> u32 {
    let given = std::env::var("DLOCK_CASES").or_else(|_| std::env::var("PROPTEST_CASES"));
    given.ok().and_then(|cases| cases.parse().ok()).unwrap_or(normally)
}

/// Runs a random test, and says how to run it again where it fails.
fn random<S: Strategy>(strategy: S, normally: u32, test: impl Fn(S::Value)) {
    let seed = seed();
    let config = Config {
        cases: cases(normally),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 100_000,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(why) = result {
        panic!("DLOCK_SEED={seed}: {why}");
    }
}
