//! Random, growing pauses, so that clients that collided do not collide again.

use std::time::Duration;

/// Each pause is drawn from half of a bound to all of it; the bound doubles up to a longest one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    bound: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Backoff { bound: first.min(longest), longest }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = rand::random_range(self.bound / 2..=self.bound);
        self.bound = self.bound.saturating_mul(2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_differ() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(300));
        let drawn: Vec<Duration> = (0..50).map(|_| backoff.next()).collect();
        assert!((ms(50)..=ms(100)).contains(&drawn[0]));
        assert!((ms(100)..=ms(200)).contains(&drawn[1]));
        assert!(drawn[2..].iter().all(|pause| (ms(150)..=ms(300)).contains(pause)));
        assert!(drawn[2..].iter().any(|pause| *pause != drawn[2]));
        assert_eq!(Backoff::new(Duration::ZERO, Duration::ZERO).next(), Duration::ZERO);
    }
}
