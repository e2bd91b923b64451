//! Random work that can be repeated, and the environment variables that set its length, such as
//! `DLOCK_ROUNDS` and `DLOCK_SECONDS`. `make` sets these two from its variables ROUNDS and SECONDS.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

/// xorshift64* of Vigna's paper. Yields the same numbers from the same seed.
pub struct Random(u64);

/// Returns the seed of a random test: `DLOCK_SEED`, or else a different number in each run. The test prints
/// it, so that a failure can be repeated.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    number("DLOCK_SEED").unwrap_or_else(now)
}

impl Random {
    /// Starts from a [`seed`] and prints it.
    pub fn fresh() -> Random {
        let seed = seed();
        let thread_name = thread::current().name().unwrap_or_default().to_owned();
        println!("{thread_name}: DLOCK_SEED={seed} repeats this run");
        Random(seed | 1)
    }

    /// Returns another generator, for another thread.
    pub fn branch(&mut self) -> Random {
        Random(self.next() | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// Returns true once in `n` calls on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Returns the number of repetitions of a random test: `DLOCK_ROUNDS`, or else `default`.
pub fn rounds(default: usize) -> usize {
    number("DLOCK_ROUNDS").unwrap_or(default)
}

/// Returns the number of restarts in the test that sets the clock back before restarts: `DLOCK_RESTARTS`, or
/// else `default`.
pub fn restarts(default: usize) -> usize {
    number("DLOCK_RESTARTS").unwrap_or(default)
}

/// Returns the duration of a test that has no end of its own: `DLOCK_SECONDS`. `None` if it is not set.
pub fn run_time() -> Option<Duration> {
    number("DLOCK_SECONDS").map(Duration::from_secs)
}

fn number<N: FromStr>(name: &str) -> Option<N> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
