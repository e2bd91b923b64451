//! Property tests that can be repeated.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::random::seed;

/// Returns the number of cases of a random test: `DLOCK_CASES`, else `PROPTEST_CASES`, else `default`.
pub fn cases(default: u32) -> u32 {
    let given = std::env::var("DLOCK_CASES").or_else(|_| std::env::var("PROPTEST_CASES"));
    given.ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

/// Runs a random test. A failure prints the seed that repeats it.
pub fn random<S: Strategy>(strategy: S, default_cases: u32, test: impl Fn(S::Value)) {
    let seed = seed();
    let config = Config {
        cases: cases(default_cases),
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
