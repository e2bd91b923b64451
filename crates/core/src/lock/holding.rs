//! What a lock holds, and with it where the lock stands in the schedule.

use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Instant, Mode};

use super::hold::{Aside, Hold};
use super::holders::Holders;
use crate::schedule::Slot;

/// Who holds. There is no held lock without a holder. A lock-delay that runs stands where it takes no room of
/// the many locks that have none; nobody is granted a lock alone while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    Free { delay_until: Option<Deadline>, slot: Aside<Option<Slot>> },
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
        Holding::Free { delay_until, slot: Aside(None) }
    }

    pub(crate) fn crowd(
        permits: Option<NonZeroU32>,
        delay_until: Option<Deadline>,
        holders: Holders,
    ) -> Holding {
        Holding::Crowd(Box::new(Crowd { permits, delay_until, holders, slot: Aside(None) }))
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
    /// How many permits there are; None for sharers.
    pub permits: Option<NonZeroU32>,
    /// Lock-delay: nobody is granted the lock before.
    pub delay_until: Option<Deadline>,
    /// Never none.
    pub holders: Holders,
    /// See [`super::Lock::slot`].
    pub slot: Aside<Option<Slot>>,
}

/// Whether a token that holds nothing here could be granted a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    NotNow,
    /// It has as many holders as the server allows.
    Full,
    /// It is a semaphore of another size while it is held.
    OtherPermits(NonZeroU32),
}

impl Crowd {
    #[inline(never)]
    pub(super) fn get(&self, token: &[u8]) -> Option<&Hold> {
        self.holders.get(token)
    }

    /// With what has expired taken out already, or as much of it as a turn may take: then there is a permit.
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
        // More can be stored than may hold it where that was lowered.
        let full = stored >= most && self.holders.count_live(now) >= most;
        if full { Fit::Full } else { Fit::Fits }
    }
}
