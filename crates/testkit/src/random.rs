//! Random work that can be repeated.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::variables::number;

/// xorshift64*, from Vigna's paper: enough to shuffle commands, and the same from the same seed.
pub struct Random(u64);

/// What a random test begins with: `DLOCK_SEED`, or else a different number in each run. The test prints it,
/// so that a failure tells how to repeat it.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    number("DLOCK_SEED").unwrap_or_else(now)
}

impl Random {
    /// From a [`seed`], which it prints.
    pub fn fresh() -> Random {
        let seed = seed();
        let server = thread::current().name().unwrap_or_default().to_owned();
        println!("{server}: DLOCK_SEED={seed} repeats this run");
        Random(seed | 1)
    }

    /// Another generator, for a thread of its own.
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
