//! The terms of an attempt.

use crate::{Instant, Lease, Quorum};
use std::time::Duration;

/// The terms of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The terms of each round.
    pub plan: Plan,
    /// The first pause between two tries, and between two rounds.
    pub first_pause: Duration,
    /// The end of the wait.
    pub deadline: Deadline,
    /// Whether there is no second round, because the caller chose the token.
    pub one_round: bool,
    /// Whether to take over a hold of the token instead of acquiring a new one.
    pub adopts: bool,
}

/// The terms of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// The members.
    pub quorum: Quorum,
    /// The lease to request from each.
    pub lease: Lease,
    /// Whether the hold needs a fence that rises over the whole quorum, which takes one more round trip.
    pub fenced: bool,
    /// How many times the members that did not grant may be asked again. The grants of the others are kept
    /// meanwhile.
    pub retries: u8,
}

/// The end of a wait for a lock that another client holds, or for members that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// No wait: the number of tries is the limit.
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

    /// Returns the instant of [`Deadline::At`].
    pub fn instant(self) -> Option<Instant> {
        match self {
            Deadline::At(end) => Some(end),
            Deadline::NoWait | Deadline::Never => None,
        }
    }

    /// Cuts the pause before another try short, so that the last try starts at the deadline. Returns `None`
    /// once the deadline has passed.
    pub fn limit(self, pause: Duration, now: Instant) -> Option<Duration> {
        match self {
            Deadline::At(end) => {
                let left = end.saturating_since(now);
                (!left.is_zero()).then_some(pause.min(left))
            }
            Deadline::NoWait | Deadline::Never => Some(pause),
        }
    }
}
