//! How far a server goes along with numbers from outside: leases, delays and fences that it did not choose
//! itself.

use dlock_protocol::{Instant, Ttl};

/// What the options say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub max_ttl: Ttl,
    /// How long nothing new is granted after holds may have been forgotten; None: the grace period is off.
    pub grace: Option<Ttl>,
}

impl Bounds {
    /// No lease and no lock-delay is longer: a longer one than the grace period might outlast it, forgotten.
    pub fn longest_lease(self) -> Ttl {
        self.grace.map_or(self.max_ttl, |grace| grace.min(self.max_ttl))
    }

    /// Less than the grace period, so that a number that was raised so far and forgotten has been passed by
    /// the clock when the next one is issued.
    pub fn skew(self) -> Skew {
        self.grace.map_or(Skew::WITHOUT_GRACE, |grace| Skew(grace.millis() / 2))
    }
}

/// How far ahead of the clock a fence from outside may lie.
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

    /// The greatest fence that is accepted from outside.
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
