//! What a lock holds, and with it where the lock stands in the schedule.

use std::num::NonZeroU32;

use dlock_protocol::Deadline;

use super::{Aside, Crowd, Hold, Holders};
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
