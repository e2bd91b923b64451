//! How long a hold may be trusted. No clock is read here: every instant is an argument.

use std::ops::Add;
use std::time::Duration;

/// A point on the machine's boot-time clock (`CLOCK_BOOTTIME`), which never steps and runs on while the machine is
/// suspended. `std::time::Instant` stands still in a suspend on Linux, and a laptop that wakes up would believe that
/// it still holds what ran out an hour ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, by: Duration) -> Instant {
        Self(self.0.saturating_add(by))
    }
}

impl Instant {
    /// The instant `uptime` after the boot, suspends included.
    pub const fn since_boot(uptime: Duration) -> Self {
        Self(uptime)
    }

    /// How long it is from `earlier` until here; zero if `earlier` is not earlier.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

/// The lease asked of the servers, and how much of it the client may trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    ttl: Duration,
    drift: Duration,
}

impl Lease {
    /// A lease of `ttl` with the drift that the Redlock algorithm advises: a hundredth of the ttl, for clocks that
    /// run at rates up to 1 % apart, and 2 ms for their resolution. None when nothing of the lease would be left.
    pub fn new(ttl: Duration) -> Option<Self> {
        Self::with_drift(ttl, ttl / 100 + Duration::from_millis(2))
    }

    /// A lease of `ttl`, trusted for `drift` less than that. None when nothing of it would be left.
    pub fn with_drift(ttl: Duration, drift: Duration) -> Option<Self> {
        (ttl > drift).then_some(Self { ttl, drift })
    }

    /// The lease as the servers count it.
    pub fn ttl(self) -> Duration {
        self.ttl
    }

    /// The end of the validity of a hold whose first request left at `sent` or later; valid is what is before it.
    ///
    /// A server counts the whole ttl from the request's arrival, so from `sent` the client's end comes first, by as
    /// much as the request took and by the drift. Nothing else than the instant before the first send is sound: a
    /// reply can be late by any time (`tests/model.rs` has the counterexamples).
    pub fn valid_until(self, sent: Instant) -> Instant {
        sent + (self.ttl - self.drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_ttl_less_a_hundredth_and_two_milliseconds() {
        let lease = Lease::new(Duration::from_secs(30)).unwrap();
        let sent = Instant::since_boot(Duration::from_secs(5));
        assert_eq!(lease.valid_until(sent), Instant::since_boot(Duration::from_millis(5_000 + 30_000 - 302)));
    }

    #[test]
    fn a_ttl_that_drift_eats_up_is_no_lease() {
        assert_eq!(Lease::new(Duration::from_millis(2)), None);
        assert!(Lease::new(Duration::from_millis(3)).is_some());
        let second = Duration::from_secs(1);
        assert_eq!(Lease::with_drift(second, second), None);
    }

    #[test]
    fn the_farthest_lease_does_not_overflow() {
        let lease = Lease::with_drift(Duration::MAX, Duration::ZERO).unwrap();
        let sent = Instant::since_boot(Duration::from_secs(1));
        assert_eq!(lease.valid_until(sent), Instant::since_boot(Duration::MAX));
    }
}
