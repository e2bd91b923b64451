//! How long to wait for somebody else's hold, and for masters that are missing.

use std::time::Duration;

use crate::clock::now;
use dlock_quorum::Instant;

/// How long to wait while somebody else holds the lock, or while masters are missing: down, silent, loading,
/// in grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one round, with the few retries of [`Retry`](crate::Retry) for masters that are missing.
    No,
    /// At most this long, plus the time limit of one answer.
    For(Duration),
    /// Until the lock is granted or the future is dropped. As long as no majority has ever answered, only the
    /// retries of [`Retry`](crate::Retry) are made: the addresses may be wrong.
    Forever,
}

/// A [`Wait`] under way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline {
    NoWait,
    At(Instant),
    Never,
}

impl Deadline {
    pub(crate) fn of(wait: Wait) -> Deadline {
        match wait {
            Wait::No => Deadline::NoWait,
            Wait::For(limit) => Deadline::At(now() + limit),
            Wait::Forever => Deadline::Never,
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        match self {
            Deadline::NoWait => true,
            Deadline::At(end) => now() >= end,
            Deadline::Never => false,
        }
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        match self {
            Deadline::At(end) => Some(end),
            Deadline::NoWait | Deadline::Never => None,
        }
    }

    /// The pause before another try, cut short so that the last try comes at the deadline. `None` once the
    /// deadline has passed; without a wait, the number of tries is the limit.
    pub(crate) fn limit(self, pause: Duration) -> Option<Duration> {
        match self {
            Deadline::At(end) => {
                let left = end.saturating_since(now());
                (!left.is_zero()).then_some(pause.min(left))
            }
            Deadline::NoWait | Deadline::Never => Some(pause),
        }
    }
}
