//! What may be asked of a lock: in which mode, and how often over.

use std::num::NonZeroU32;

/// How a token holds, or wants to hold, a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside any number of other sharers.
    Shared,
    /// Beside at most n - 1 others: a semaphore.
    Permits(NonZeroU32),
}

/// What an ACQUIRE asks of the count of a hold that its token has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// The count stays, so that a retry after a lost reply is harmless.
    Keep,
    /// REENTRANT: one more.
    OneMore,
    /// DEPTH n: n where it was less.
    AtLeast(NonZeroU32),
}

/// The greatest count and the greatest number of permits.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// How many counts RELEASE ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    One,
    All,
    /// DEPTH n: those above n.
    Above(u32),
}
