//! The options of an attempt and of its rounds, and their types for time: deadline, instant, lease.

use crate::Quorum;
use std::ops::Add;
use std::time::Duration;

/// The options of an attempt, for all its rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptOptions {
    /// How to carry out each round.
    pub plan: Plan,
    /// Upper bound of the first pause within a round (before it asks members again), and of the first pause
    /// between two rounds. The length of a pause is random. The bound doubles with each pause, up to a limit.
    pub first_pause: Duration,
    /// The end of the wait.
    pub deadline: Deadline,
    /// Whether the attempt acquires the lock in its first round or not at all. True if the caller chose the
    /// token, because every later round has a fresh token.
    pub one_round: bool,
    /// Whether to take over a hold that the token already has, instead of acquiring a new one:
    /// [`Start::Adopting`](crate::Start::Adopting).
    pub adopts: bool,
}

/// The plan of a round: what it asks for, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// The members.
    pub quorum: Quorum,
    /// The lease to request from each member.
    pub lease: Lease,
    /// Whether the hold needs a fence that rises over the whole quorum, which takes one more round trip.
    pub fenced: bool,
    /// How many times the round may send another ACQUIRE to the members that did not grant. Meanwhile it
    /// keeps the grants of the other members.
    pub retries: u8,
}

/// The end of a wait for a lock that another client holds, or for members that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// No wait. Another round follows only after a split vote: clients that asked at the same time each got a
    /// part of the votes, and none a majority. The number of such rounds is limited.
    NoWait,
    /// The wait ends at this instant.
    At(Instant),
    /// The wait never ends.
    Never,
}

impl Deadline {
    /// Returns whether the deadline has passed; true for [`Deadline::NoWait`].
    pub fn has_passed(self, now: Instant) -> bool {
        match self {
            Deadline::NoWait => true,
            Deadline::At(end) => now >= end,
            Deadline::Never => false,
        }
    }

    /// Returns the instant of [`Deadline::At`]; `None` for the other variants.
    pub fn instant(self) -> Option<Instant> {
        match self {
            Deadline::At(end) => Some(end),
            Deadline::NoWait | Deadline::Never => None,
        }
    }

    /// Shortens a pause that would end after [`Deadline::At`], so that the client asks once more at the
    /// deadline. Returns `None` once that deadline has passed. The other variants limit no pause.
    pub fn limit_pause(self, pause: Duration, now: Instant) -> Option<Duration> {
        match self {
            Deadline::At(end) => {
                let left = end.saturating_since(now);
                (!left.is_zero()).then_some(pause.min(left))
            }
            Deadline::NoWait | Deadline::Never => Some(pause),
        }
    }
}

/// An instant of a clock that never jumps and keeps running while the machine is suspended: on Linux the
/// boot-time clock (`CLOCK_BOOTTIME`). The clock of `std::time::Instant` stops during a suspend. By that
/// clock, a laptop that wakes up would still hold a lock that expired an hour ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, by: Duration) -> Instant {
        Self(self.0.saturating_add(by))
    }
}

impl Instant {
    /// Returns the instant that is `uptime` after the boot. `uptime` includes suspends.
    pub const fn since_boot(uptime: Duration) -> Self {
        Self(uptime)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this instant less `by`, but not before the boot.
    pub fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    /// Rounds the time since the boot down to a multiple of `step`. A `step` of zero changes nothing.
    pub fn round_down(self, step: Duration) -> Self {
        let remainder = self.0.as_nanos().checked_rem(step.as_nanos()).unwrap_or(0);
        Self(self.0.saturating_sub(u64::try_from(remainder).map_or(Duration::ZERO, Duration::from_nanos)))
    }
}

/// The lease that the client requests (`ttl`), and the part at its end that the client does not trust
/// (`drift`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    ttl: Duration,
    drift: Duration,
}

impl Lease {
    /// Returns a lease of `ttl` with the drift of the Redlock algorithm: a hundredth of the ttl, because the
    /// rates of two clocks may differ by 1 %, and 2 ms for their resolution. `None` if `ttl` is not longer
    /// than the drift.
    pub fn new(ttl: Duration) -> Option<Self> {
        Self::with_drift(ttl, ttl / 100 + Duration::from_millis(2))
    }

    /// Returns a lease of `ttl` that the client trusts for `ttl - drift`. `None` if `ttl` is not longer than
    /// `drift`.
    pub fn with_drift(ttl: Duration, drift: Duration) -> Option<Self> {
        (ttl > drift).then_some(Self { ttl, drift })
    }

    /// Returns the whole length of the lease, including the drift.
    pub fn ttl(self) -> Duration {
        self.ttl
    }

    /// Returns the end of validity of a hold. `sent` is an instant before its first request was sent.
    ///
    /// A server counts the ttl from the arrival of the request, so its lease ends later than the validity: by
    /// the travel time of the request and by the drift. Validity must not count from the arrival of a reply,
    /// which can be delayed for any time (`refuted_valid_from_receipt` in `tests/model.rs`).
    pub fn valid_until(self, sent: Instant) -> Instant {
        sent + (self.ttl - self.drift)
    }

    /// Returns the end of validity of a hold whose lease may be as short as `shorter`. `sent` is an instant
    /// before its first request was sent.
    pub fn valid_until_within(self, sent: Instant, shorter: Duration) -> Instant {
        sent + self.ttl.min(shorter).saturating_sub(self.drift)
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
    fn instants_round_down_to_whole_steps() {
        let at = |ms| Instant::since_boot(Duration::from_millis(ms));
        let rounded = [0, 233, 234, 5_000].map(|ms| at(ms).round_down(Duration::from_millis(234)));
        assert_eq!(rounded, [at(0), at(0), at(234), at(4_914)]);
        assert_eq!(at(7).round_down(Duration::ZERO), at(7));
    }

    #[test]
    fn a_ttl_not_above_its_drift_is_no_lease() {
        assert_eq!(Lease::new(Duration::from_millis(2)), None);
        assert!(Lease::new(Duration::from_millis(3)).is_some());
        let second = Duration::from_secs(1);
        assert_eq!(Lease::with_drift(second, second), None);
    }

    #[test]
    fn the_longest_lease_does_not_overflow() {
        let lease = Lease::with_drift(Duration::MAX, Duration::ZERO).unwrap();
        let sent = Instant::since_boot(Duration::from_secs(1));
        assert_eq!(lease.valid_until(sent), Instant::since_boot(Duration::MAX));
    }
}
