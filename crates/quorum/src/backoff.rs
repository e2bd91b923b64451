//! Random, growing pauses, so that clients that collided do not collide again.

use std::time::Duration;

/// A sequence of pauses. Each is between half of a bound and the bound, which doubles up to a longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backoff {
    bound: Duration,
    longest: Duration,
}

impl Backoff {
    /// Begins with a bound of `first`, or of `longest` if that is shorter.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Backoff { bound: first.min(longest), longest }
    }

    /// Returns the next pause. `random` is any number, drawn evenly from all.
    pub fn next(&mut self, random: u32) -> Duration {
        let pause = self.bound / 2 + fraction(self.bound - self.bound / 2, random);
        self.bound = self.bound.saturating_mul(2).min(self.longest);
        pause
    }
}

/// Returns a duration from zero to `bound`, in proportion to `random`.
pub(crate) fn fraction(bound: Duration, random: u32) -> Duration {
    let nanos = bound.as_nanos().saturating_mul(u128::from(random)) / u128::from(u32::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_differ() {
        let ms = Duration::from_millis;
        let pauses = |random| {
            let mut backoff = Backoff::new(ms(100), ms(300));
            [(); 4].map(|()| backoff.next(random))
        };
        assert_eq!(pauses(0), [ms(50), ms(100), ms(150), ms(150)]);
        assert_eq!(pauses(u32::MAX), [ms(100), ms(200), ms(300), ms(300)]);
        assert_eq!(Backoff::new(Duration::ZERO, Duration::ZERO).next(7), Duration::ZERO);
    }
}
