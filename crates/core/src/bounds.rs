//! Limits on numbers from outside: leases, delays and fences.

use dlock_protocol::{Instant, Ttl};

/// The options that limit them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub max_ttl: Ttl,
    /// Length of the grace period. `None` if it is off.
    pub grace: Option<Ttl>,
}

impl Bounds {
    /// Maximum of a lease and of a lock-delay. Not more than the grace period, which a forgotten hold must
    /// not outlast.
    pub fn longest_lease(self) -> Ttl {
        self.grace.map_or(self.max_ttl, |grace| grace.min(self.max_ttl))
    }

    /// Half of the grace period, so that the clock has passed a number that was accepted and forgotten before
    /// the next fence is issued.
    pub fn skew(self) -> Skew {
        self.grace.map_or(Skew::WITHOUT_GRACE, |grace| Skew(grace.millis() / 2))
    }
}

/// Maximum distance of a fence from outside to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew(u64);

impl Skew {
    pub const WITHOUT_GRACE: Skew = Skew(10_000);

    pub const fn from_millis(ms: u32) -> Skew {
        Skew(ms as u64)
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Greatest fence that is accepted from outside.
    pub const fn greatest_fence(self, now: Instant) -> u64 {
        now.micros().saturating_add(self.0 * 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl(ms: u64) -> Ttl {
        Ttl::from_millis(ms).unwrap()
    }

    #[test]
    fn without_a_grace_period_max_ttl_and_ten_seconds_bound_all() {
        let bounds = Bounds { max_ttl: ttl(60_000), grace: None };
        assert_eq!((bounds.longest_lease(), bounds.skew().millis()), (ttl(60_000), 10_000));
    }

    #[test]
    fn no_lease_outlasts_the_grace_period_and_no_fence_from_outside_does() {
        for (max, grace, longest) in [(60_000, 90_000, 60_000), (60_000, 5_000, 5_000), (7, 1, 1)] {
            let bounds = Bounds { max_ttl: ttl(max), grace: Some(ttl(grace)) };
            assert_eq!(bounds.longest_lease(), ttl(longest));
            assert!(bounds.skew().millis() < grace, "{grace}");
        }
        assert_eq!(Bounds { max_ttl: Ttl::MAX, grace: Some(ttl(3_001)) }.skew(), Skew::from_millis(1_500));
    }

    #[test]
    fn the_greatest_fence_counts_from_the_clock() {
        let now = Instant::from_micros(1_000_001);
        assert_eq!(Skew::from_millis(2).greatest_fence(now), 1_002_001);
        assert_eq!(Skew::from_millis(u32::MAX).greatest_fence(Instant::from_micros(u64::MAX)), u64::MAX);
    }
}
