//! Newtypes for times, fences and client ids, with checked constructors. No function here reads a clock.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Add;

/// A moment of the server clock, in µs. When the module is loaded, the server clock is set to the time of the
/// wall clock. From then on, it advances with the boot-time clock (CLOCK_BOOTTIME), so it never jumps.
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

    /// Milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds since `earlier`. 0 if `earlier` is later than this moment.
    pub const fn millis_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }

    /// The deadline `ms` after this moment, rounded up, so that a lease of `ms` never ends earlier.
    pub fn after_millis(self, ms: u64) -> Deadline {
        Deadline::at_millis(self.0.div_ceil(1000).saturating_add(ms))
    }
}

/// The length of a lease: 1 to 4,294,967,295 ms (49 days).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(NonZeroU32);

impl Ttl {
    pub const MAX: Ttl = Ttl(NonZeroU32::MAX);

    /// `None` outside of the range.
    pub fn from_millis(ms: u64) -> Option<Ttl> {
        u32::try_from(ms).ok().and_then(NonZeroU32::new).map(Ttl)
    }

    pub const fn millis(self) -> u64 {
        self.0.get() as u64
    }
}

/// The time in ms for which a lock is not granted after its hold expired or the holder's connection was lost.
/// At most 49 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delay(u32);

impl Delay {
    pub const NONE: Delay = Delay(0);

    /// `None` outside of the range.
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

/// The timeout of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No timeout: `BLOCK 0`.
    Forever,
    /// 1 to [`Wait::MAX_MILLIS`] milliseconds.
    Millis(u64),
}

impl Wait {
    /// About 31 years, so a deadline that far ahead does not overflow.
    pub const MAX_MILLIS: u64 = 1_000_000_000_000;

    /// Reads the argument of BLOCK: 0 means no timeout. `None` above [`Wait::MAX_MILLIS`].
    pub fn from_millis(ms: u64) -> Option<Wait> {
        match ms {
            0 => Some(Wait::Forever),
            1..=Self::MAX_MILLIS => Some(Wait::Millis(ms)),
            _ => None,
        }
    }

    /// The argument of BLOCK.
    pub const fn millis(self) -> u64 {
        match self {
            Wait::Forever => 0,
            Wait::Millis(ms) => ms,
        }
    }

    /// The end of a wait that begins now. `None` if it has no timeout.
    pub fn until(self, now: Instant) -> Option<Deadline> {
        match self {
            Wait::Forever => None,
            Wait::Millis(ms) => Some(now.after_millis(ms)),
        }
    }
}

/// A deadline: a millisecond of the server clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(NonZeroU64);

impl Add<Ttl> for Instant {
    type Output = Deadline;

    fn add(self, ttl: Ttl) -> Deadline {
        self.after_millis(ttl.millis())
    }
}

impl Deadline {
    /// A deadline at this millisecond of the server clock.
    pub fn at_millis(ms: u64) -> Deadline {
        Deadline(NonZeroU64::new(ms).unwrap_or(NonZeroU64::MIN))
    }

    pub const fn millis(self) -> u64 {
        self.0.get()
    }

    pub const fn passed(self, now: Instant) -> bool {
        now.millis() >= self.0.get()
    }

    /// Milliseconds left, rounded down. 0 if the deadline has passed.
    pub const fn left(self, now: Instant) -> u64 {
        self.0.get().saturating_mul(1000).saturating_sub(now.micros()) / 1000
    }

    /// This deadline plus `ms`.
    pub fn plus_millis(self, ms: u64) -> Deadline {
        Deadline(self.0.saturating_add(ms))
    }
}

/// The fence of a hold (a fencing token): greater than the fence of every earlier grant of this server, and
/// below 2^53, so that every client language represents it exactly. A resource rejects writes with a fence
/// lower than the greatest that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// 2^53 - 1. As Unix time in µs, this is the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Lower than every fence that a server issues.
    pub const MIN: Fence = Fence(NonZeroU64::MIN);

    /// A fence from an argument or from stored bytes. `None` outside of 1 to [`Fence::MAX`].
    pub fn from_outside(number: u64) -> Option<Fence> {
        NonZeroU64::new(number).filter(|n| n.get() <= Self::MAX).map(Fence)
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// The server's id of a connection. Only valid on this server, until its next restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_before_the_ttl_has_passed() {
        let granted = Instant::from_micros(10_900);
        let deadline = granted + Ttl::from_millis(5).unwrap();
        assert!(!deadline.passed(Instant::from_micros(15_899)));
        assert!(deadline.passed(Instant::from_micros(16_000)));
        assert_eq!(deadline.left(granted), 5);
    }
}
