//! Random pauses, so that clients that collided do not collide again.

use std::time::Duration;

/// A sequence of growing random pauses. Each is between half of a bound and the bound. The bound doubles with
/// each pause, up to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    bound: Duration,
    longest: Duration,
}

impl Backoff {
    /// Returns the sequence with the shorter of `first` and `longest` as its first bound.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Backoff { bound: first.min(longest), longest }
    }

    /// Returns the next pause. `random` is a uniformly distributed random number.
    pub fn next(&mut self, random: u32) -> Duration {
        let pause = self.bound / 2 + fraction(self.bound - self.bound / 2, random);
        self.bound = self.bound.saturating_mul(2).min(self.longest);
        pause
    }
}

/// A sequence of random numbers that its seed determines (SplitMix64).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn number(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }

    /// Returns a duration from zero to `longest`.
    pub(crate) fn up_to(&mut self, longest: Duration) -> Duration {
        fraction(longest, self.number())
    }
}

/// A duration from zero to `bound`, in proportion to `random`.
fn fraction(bound: Duration, random: u32) -> Duration {
    let nanos = bound.as_nanos().saturating_mul(u128::from(random)) / u128::from(u32::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let ms = Duration::from_millis;
        let pauses = |random| {
            let mut backoff = Backoff::new(ms(100), ms(300));
            [(); 4].map(|()| backoff.next(random))
        };
        assert_eq!(pauses(0), [ms(50), ms(100), ms(150), ms(150)]);
        assert_eq!(pauses(u32::MAX), [ms(100), ms(200), ms(300), ms(300)]);
        assert_eq!(Backoff::new(Duration::ZERO, Duration::ZERO).next(7), Duration::ZERO);
    }

    #[test]
    fn random_numbers_spread_over_the_whole_range_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.number()).collect::<Vec<u32>>()
        };
        let numbers = draw(7);
        assert_eq!(numbers, draw(7));
        assert_ne!(numbers, draw(8));
        for quarter in 0..4 {
            let found = numbers.iter().filter(|number| *number >> 30 == quarter).count();
            assert!((150..350).contains(&found), "{found} of 1000 in quarter {quarter}");
        }
    }
}
