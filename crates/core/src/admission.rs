//! Limits on leases, delays, fences and bytes from outside.
//!
//! Bytes from this server's files or its master are accepted without limits. With limits, a server whose
//! clock was set back would refuse the fences in its own file, and lose all holds. RESTORE can bring any
//! bytes, so these must be within the limits on arguments of commands.

use dlock_protocol::{Instant, Ttl};

use crate::codec::{Origin, Reader, Written};

/// The options from which the limits follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub max_ttl: Ttl,
    /// Length of the grace period. `None` if it is off.
    pub grace: Option<Ttl>,
}

impl Bounds {
    /// Maximum of a lease and of a lock-delay (the pause before the next grant after a hold that expired or
    /// lost its connection). At most the grace period, so that a hold that a restart lost has expired when
    /// the grace period ends.
    pub fn longest_lease(self) -> Ttl {
        self.grace.map_or(self.max_ttl, |grace| grace.min(self.max_ttl))
    }

    /// The skew bound: half of the grace period, or 10 s if it is off. A restart may lose a fence that was
    /// accepted from outside. With a grace period, the server then issues no fence before the period ends. By
    /// that time, the clock has passed the lost fence, so the next fence is greater.
    pub fn skew(self) -> Skew {
        self.grace.map_or(Skew::WITHOUT_GRACE, |grace| Skew(grace.millis() / 2))
    }
}

/// The skew bound: how far a fence from outside (CONFIRM, RESTORE) may be ahead of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew(u64);

impl Skew {
    /// The skew bound while the grace period is off.
    pub const WITHOUT_GRACE: Skew = Skew(10_000);

    pub const fn from_millis(ms: u32) -> Skew {
        Skew(ms as u64)
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Greatest fence that is accepted from outside.
    pub const fn greatest_fence(self, now: Instant) -> u64 {
        now.micros().saturating_add(self.0 * 1000)
    }
}

/// The source of the bytes of a whole lock, and the limits that apply to them. `loading` is the source of the
/// data that the server is loading, `None` if it loads none. There are limits only for RESTORE on a master.
pub fn source(loading: Option<Origin>, is_master: bool, bounds: Bounds) -> (Origin, Option<Bounds>) {
    // If the server loads nothing, the bytes come by RESTORE, perhaps from another machine with another
    // clock. A replica accepts every key that its master accepted.
    (loading.unwrap_or(Origin::Live), (loading.is_none() && is_master).then_some(bounds))
}

impl Reader {
    /// Decodes a whole lock, and checks it against `bounds`. The error says why the bytes are refused.
    pub fn admit(self, bytes: &[u8], bounds: Option<Bounds>) -> Result<Written, String> {
        let written = self.read(bytes).map_err(|why| why.to_string())?;
        if !written.is_whole() {
            return Err("the bytes are a change of a lock, not a lock".into());
        }
        let Some(bounds) = bounds else { return Ok(written) };
        let longest = bounds.longest_lease().millis();
        let refused = if written.longest_ttl() > longest {
            "its ttl is longer than dlock.max-ttl, or dlock.restart-grace"
        } else if written.longest_delay(self.now) > bounds.max_ttl.millis() {
            "its lock-delay is longer than dlock.max-ttl"
        } else if written.greatest_fence() > bounds.skew().greatest_fence(self.now) {
            "its fence is further ahead of this server's clock than the skew bound"
        } else {
            return Ok(written);
        };
        Err(refused.into())
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{ClientId, Delay, Instant, LockRequestRef, Mode, TokenRef, Ttl};

    use super::*;
    use crate::codec::{Anchor, Malformed, write};
    use crate::{Change, Fences, Grants, Lock, Name, Step, Terms, Turn, Waiting};

    const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);
    const ANCHOR: Anchor = Anchor { boot: 7, offset: 0 };
    const READER: Reader = Reader { now: NOW, anchor: ANCHOR, origin: Origin::Live };

    fn ttl(ms: u64) -> Ttl {
        Ttl::from_millis(ms).unwrap()
    }

    /// A held lock with this ttl and lock-delay in ms. Its fence is `last + 1` if that is ahead of the clock.
    fn held(ms: u64, delay: u32, last: u64) -> Lock {
        held_in(Mode::Exclusive, ms, delay, last)
    }

    fn held_in(mode: Mode, ms: u64, delay: u32, last: u64) -> Lock {
        let (mut lock, mut fences, mut waiting) = (Lock::default(), Fences::default(), Waiting::default());
        fences.raise(last);
        let terms = Terms {
            grants: Grants::From(Instant::from_micros(0)),
            longest_lease: Ttl::MAX,
            max_holders: 9,
            max_grants_per_turn: 9,
        };
        let (name, mut step) = (Name::new(0, b"k"), Step::default());
        let delay = Delay::from_millis(delay.into()).unwrap();
        let token = TokenRef::new(b"t").unwrap();
        let request = LockRequestRef { mode, delay, ..LockRequestRef::new(token, ttl(ms)) };
        let mut turn = Turn::new(NOW, terms, &name, &mut fences, &mut waiting, &mut lock, &mut step);
        turn.acquire(&request, ClientId(1));
        lock
    }

    fn bytes(lock: &Lock, change: &Change) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(lock, change, NOW, ANCHOR, &mut bytes);
        bytes
    }

    fn bounds(max_ttl: u64) -> Bounds {
        Bounds { max_ttl: ttl(max_ttl), grace: None }
    }

    #[test]
    fn only_restore_on_a_master_has_limits() {
        let bounds = bounds(5_000);
        assert_eq!(source(None, true, bounds), (Origin::Live, Some(bounds)));
        assert_eq!(source(None, false, bounds), (Origin::Live, None));
        for (origin, is_master) in [(Origin::Live, false), (Origin::Stored, true), (Origin::Stored, false)] {
            assert_eq!(source(Some(origin), is_master, bounds), (origin, None));
        }
    }

    #[test]
    fn bytes_with_bounds_are_limited_and_bytes_without_bounds_are_not() {
        // The skew bound without a grace period is 10 s.
        let far = NOW.micros() + 10_000_000;
        for (lock, refused) in [
            (held(5_000, 0, 0), None),
            (held(5_000, 5_000, far - 1), None),
            (held(5_001, 0, 0), Some("its ttl")),
            (held(5_000, 5_001, 0), Some("its lock-delay")),
            (held(5_000, 0, far), Some("its fence")),
        ] {
            let bytes = bytes(&lock, &Change::Whole);
            let why = READER.admit(&bytes, Some(bounds(5_000))).err();
            assert_eq!(why.as_deref().and_then(|why| why.split(" is ").next()), refused);
            let mut read = Lock::default();
            assert!(READER.admit(&bytes, None).unwrap().apply(&mut read));
            assert_eq!(read.at(NOW).fence(), lock.at(NOW).fence());
        }
    }

    #[test]
    fn a_partial_change_and_damaged_bytes_are_refused_with_their_reason() {
        let lock = held_in(Mode::Shared, 1_000, 0, 0);
        for bounds in [Some(bounds(9)), None] {
            let part = bytes(&lock, &Change::Part(Vec::new()));
            assert!(READER.admit(&part, bounds).unwrap_err().contains("not a lock"));
            let short = Malformed::Short.to_string();
            assert_eq!(READER.admit(b"", bounds), Err(short));
        }
    }

    #[test]
    fn max_ttl_and_ten_seconds_are_the_bounds_without_a_grace_period() {
        let bounds = Bounds { max_ttl: ttl(60_000), grace: None };
        assert_eq!((bounds.longest_lease(), bounds.skew().millis()), (ttl(60_000), 10_000));
    }

    #[test]
    fn the_grace_period_bounds_leases_and_the_skew() {
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
