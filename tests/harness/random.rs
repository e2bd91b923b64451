//! Random work that can be repeated.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64*, from Vigna's paper: enough to shuffle commands, and the same from the same seed.
pub struct Random(u64);

impl Random {
    /// Another one each run, or that of `DLOCK_TEST_SEED`. It is printed, so a failure shows it.
    pub fn fresh() -> Random {
        let given = env::var("DLOCK_TEST_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("DLOCK_TEST_SEED wants a number"));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        let seed = given.unwrap_or_else(now);
        println!("DLOCK_TEST_SEED={seed} repeats this run");
        Random(seed | 1)
    }

    /// One of its own for somebody who works beside others.
    pub fn branch(&mut self) -> Random {
        Random(self.next() | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// True once in `n` times.
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
