//! Property tests that can be run again.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::seed;

/// How often a random test runs: so often, or as `DLOCK_CASES` says, or `PROPTEST_CASES`.
pub fn cases(normally: u32) -> u32 {
    let given = std::env::var("DLOCK_CASES").or_else(|_| std::env::var("PROPTEST_CASES"));
    given.ok().and_then(|cases| cases.parse().ok()).unwrap_or(normally)
}

/// Runs a random test, and says how to run it again where it fails.
pub fn random<S: Strategy>(strategy: S, normally: u32, test: impl Fn(S::Value)) {
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
