//! The content of a lock: its holds, its lock-delay and its slot in the schedule.

use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Instant, Mode};

use super::hold::{Hold, NotCompared};
use super::holders::Holders;
use crate::schedule::Slot;

/// The holds. A lock with a mode always has a holder. A lock-delay has its place in the variants that can
/// have one, so that other locks need no room for it; no exclusive grant is made while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    Free { delay_until: Option<Deadline>, slot: NotCompared<Option<Slot>> },
    Exclusive(Hold),
    Crowd(Box<Crowd>),
}

impl Default for Holding {
    fn default() -> Self {
        Holding::free(None)
    }
}

impl Holding {
    pub(crate) fn free(delay_until: Option<Deadline>) -> Holding {
        Holding::Free { delay_until, slot: NotCompared(None) }
    }

    pub(crate) fn crowd(
        permits: Option<NonZeroU32>,
        delay_until: Option<Deadline>,
        holders: Holders,
    ) -> Holding {
        Holding::Crowd(Box::new(Crowd { permits, delay_until, holders, slot: NotCompared(None) }))
    }

    pub(super) fn slot(&self) -> Option<Slot> {
        match self {
            Holding::Free { slot, .. } => slot.0,
            Holding::Exclusive(hold) => hold.slot.0,
            Holding::Crowd(crowd) => crowd.slot.0,
        }
    }

    pub(super) fn slot_mut(&mut self) -> &mut Option<Slot> {
        match self {
            Holding::Free { slot, .. } => &mut slot.0,
            Holding::Exclusive(hold) => &mut hold.slot.0,
            Holding::Crowd(crowd) => &mut crowd.slot.0,
        }
    }
}

/// Sharers, or holders of permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Number of permits. `None` for a shared lock.
    pub permits: Option<NonZeroU32>,
    /// End of the lock-delay, before which no grant is made.
    pub delay_until: Option<Deadline>,
    /// Never empty.
    pub holders: Holders,
    /// See [`super::Lock::slot`].
    pub slot: NotCompared<Option<Slot>>,
}

/// Whether a token without a hold can be granted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    NotNow,
    /// The lock has the maximum number of holders.
    Full,
    /// A semaphore with another number of permits is held.
    OtherPermits(NonZeroU32),
}

impl Crowd {
    #[inline(never)]
    pub(super) fn get(&self, token: &[u8]) -> Option<&Hold> {
        self.holders.get(token)
    }

    /// Expired holds must have been removed, as far as one turn allows.
    pub(super) fn fit(&self, mode: Mode, most: usize, now: Instant) -> Fit {
        let stored = self.holders.len();
        let room = match (self.permits, mode) {
            (Some(n), Mode::Permits(asked)) if n != asked => return Fit::OtherPermits(n),
            (Some(n), Mode::Permits(_)) => stored < n.get() as usize,
            (None, Mode::Shared) => true,
            _ => false,
        };
        if !room || self.delay_until.is_some() {
            return Fit::NotNow;
        }
        // More holds than `most` can be stored if the option was lowered.
        let full = stored >= most && self.holders.count_live(now) >= most;
        if full { Fit::Full } else { Fit::Fits }
    }
}
