//! The numbers that mean something, each with one way to make it.
//!
//! Nothing here reads a clock or draws a random number.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Add;

/// A moment of the server clock, in microseconds. The server clock is the wall clock at the server's start
/// and moves with the boot-time clock from there on, so it never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The first moment of a millisecond.
    pub const fn from_millis(ms: u64) -> Self {
        Instant(ms.saturating_mul(1000))
    }

    /// `us`: microseconds of the server clock.
    pub const fn from_micros(us: u64) -> Self {
        Instant(us)
    }

    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The whole milliseconds that have passed: rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds since an `earlier` moment; 0 where it is later.
    pub const fn millis_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }
}

/// How long a lease lasts: 1 to 4,294,967,295 ms (49 days).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(NonZeroU32);

impl Ttl {
    pub const MAX: Ttl = Ttl(NonZeroU32::MAX);

    /// None outside the range.
    pub fn from_millis(ms: u64) -> Option<Ttl> {
        u32::try_from(ms).ok().and_then(NonZeroU32::new).map(Ttl)
    }

    pub const fn millis(self) -> u64 {
        self.0.get() as u64
    }
}

/// Lock-delay: for how many ms nobody is granted the lock after a hold that ended without a release. At most
/// 49 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delay(u32);

impl Delay {
    pub const NONE: Delay = Delay(0);

    /// None outside the range.
    pub fn from_millis(ms: u64) -> Option<Delay> {
        u32::try_from(ms).ok().map(Delay)
    }

    pub const fn millis(self) -> u64 {
        self.0 as u64
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// How long an ACQUIRE waits in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `BLOCK 0`.
    Forever,
    /// 1 to [`Wait::MAX_MILLIS`] milliseconds.
    Millis(u64),
}

impl Wait {
    /// About 31 years: far beyond any use, and far from overflowing a clock.
    pub const MAX_MILLIS: u64 = 1_000_000_000_000;

    /// As BLOCK says it: 0 waits for ever. None above [`Wait::MAX_MILLIS`].
    pub fn from_millis(ms: u64) -> Option<Wait> {
        match ms {
            0 => Some(Wait::Forever),
            1..=Self::MAX_MILLIS => Some(Wait::Millis(ms)),
            _ => None,
        }
    }

    /// As BLOCK says it.
    pub const fn millis(self) -> u64 {
        match self {
            Wait::Forever => 0,
            Wait::Millis(ms) => ms,
        }
    }

    /// When the wait is over, if ever.
    pub fn until(self, now: Instant) -> Option<Deadline> {
        match self {
            Wait::Forever => None,
            Wait::Millis(ms) => Some(now.after_millis(ms)),
        }
    }
}

/// The millisecond of the server clock at which something is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(NonZeroU64);

impl Instant {
    /// Rounded up, so that what is promised for `ms` is never over sooner.
    pub fn after_millis(self, ms: u64) -> Deadline {
        Deadline::at_millis(self.0.div_ceil(1000).saturating_add(ms))
    }
}

impl Add<Ttl> for Instant {
    type Output = Deadline;

    fn add(self, ttl: Ttl) -> Deadline {
        self.after_millis(ttl.millis())
    }
}

impl Deadline {
    /// For the codec and the schedule, which carry deadlines as plain milliseconds.
    pub fn at_millis(ms: u64) -> Deadline {
        Deadline(NonZeroU64::new(ms).unwrap_or(NonZeroU64::MIN))
    }

    pub const fn millis(self) -> u64 {
        self.0.get()
    }

    pub const fn passed(self, now: Instant) -> bool {
        now.millis() >= self.0.get()
    }

    /// Milliseconds left, rounded down; 0 once it has passed.
    pub const fn left(self, now: Instant) -> u64 {
        self.0.get().saturating_mul(1000).saturating_sub(now.micros()) / 1000
    }

    /// The later deadline that lies `ms` behind this one.
    pub fn plus_millis(self, ms: u64) -> Deadline {
        Deadline(self.0.saturating_add(ms))
    }
}

/// The number of a hold: greater than that of every grant before it on this server, and below 2^53 so that
/// every client language holds it. Resources outside refuse writes that carry a lower one than they have
/// seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// 2^53 - 1; as microseconds of Unix time that is the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Less than any that is granted.
    pub const MIN: Fence = Fence(NonZeroU64::MIN);

    /// A fence that came from outside (an argument, stored bytes). None outside 1..=[`Fence::MAX`].
    pub fn from_outside(number: u64) -> Option<Fence> {
        NonZeroU64::new(number).filter(|n| n.get() <= Self::MAX).map(Fence)
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// A connection as the server numbers it; means nothing after a restart or on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_over_before_its_ttl() {
        let granted = Instant::from_micros(10_900);
        let deadline = granted + Ttl::from_millis(5).unwrap();
        assert!(!deadline.passed(Instant::from_micros(15_899)));
        assert!(deadline.passed(Instant::from_micros(16_000)));
        assert_eq!(deadline.left(granted), 5);
    }
}
