//! The fence of each grant, and the mark on the disk that reserves fences ahead.
//!
//! Fences come from a hybrid logical clock (Kulkarni et al. 2014) of one node: `max(last + 1, clock in µs)`,
//! where `last` is the greatest fence so far, and the clock is rounded down to whole ms. So the second grant
//! within a ms has the fence of the first one plus 1, and replicas can compute this fence ([`crate::plain`]).
//! Because fences follow the clock, they rise even if `last` is lost, as long as the clock is right. Because
//! they continue from `last`, they rise even if the clock is set back, as long as `last` is known. If `last`
//! is lost and the clock is set back, the **mark** keeps fences rising. The mark is a number on the disk
//! above which a restart continues, as in timestamp oracles. A fence exceeds the mark only if the disk is too
//! slow, or after a fence from outside: of CONFIRM, RESTORE or a master.
//!
//! This file says when another mark is needed. The Redis module writes it, and reports when it is on the
//! disk.

use dlock_protocol::{Fence, Instant, Ttl};

/// Distance of a new mark from the clock, in µs. After a crash, fences run ahead of the clock by up to this
/// distance. Other servers of a quorum accept fences that are up to 10 s ahead.
const AHEAD: u64 = 7_000_000;

/// Fences follow the clock up to this distance below the mark. The numbers in between, a million, are for the
/// grants that are made while the disk is slow. A server makes fewer in a second.
const ROOM: u64 = 1_000_000;

/// Another mark is needed when fences can follow the clock for less than this, in µs: 5 s after the previous
/// mark (`AHEAD - ROOM - MIN_FOLLOWED`).
const MIN_FOLLOWED: u64 = 1_000_000;

/// Distance of a new mark from the last fence, if that fence is far ahead of the clock. Each start then uses
/// up this many numbers. The clock passes them in a quarter of a second, so frequent restarts do not move
/// the mark far ahead.
const SPARE: u64 = 250_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fences {
    last: u64,
    /// Fences follow the clock up to here.
    follow_until: u64,
    mark: Option<u64>,
    /// Number of fences beyond the mark.
    beyond: u64,
}

impl Default for Fences {
    /// Fences without a mark.
    fn default() -> Self {
        Fences { last: 0, follow_until: u64::MAX, mark: None, beyond: 0 }
    }
}

impl Fences {
    /// Greatest number that was issued or accepted. 0 for none.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The fence of the next grant. `None` if the numbers are used up (in the year 2255): the grant is
    /// refused.
    #[inline]
    pub fn issue(&mut self, now: Instant) -> Option<Fence> {
        let mut number = (self.last + 1).max(now.millis() * 1000);
        if number > self.follow_until {
            number = self.number_near_the_mark(number);
        }
        let fence = Fence::from_outside(number)?;
        self.last = fence.get();
        Some(fence)
    }

    /// Near the mark, grants take the next number instead of following the clock. A fence exceeds the mark
    /// only if no number below the mark is left.
    #[cold]
    fn number_near_the_mark(&mut self, number: u64) -> u64 {
        let next = (self.last + 1).max(self.follow_until);
        if self.mark.is_some_and(|mark| next > mark) {
            self.beyond += 1;
            return number;
        }
        next
    }

    /// Continues above `number`, never below the last fence. Numbers that no fence can have are ignored.
    pub fn raise(&mut self, number: u64) {
        if number <= Fence::MAX {
            self.last = self.last.max(number);
        }
    }

    /// The mark on the disk. `None` if there is none.
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// Sets the mark on the disk. `None` if there is none: fences then follow the clock without a limit.
    pub fn set_mark(&mut self, mark: Option<u64>) {
        self.mark = mark;
        self.follow_until = mark.map_or(u64::MAX, |mark| mark.saturating_sub(ROOM));
    }

    /// Number of fences beyond the mark: after a fence from outside, or because the disk was too slow.
    pub const fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Whether another mark has to be written: fences can follow the clock for less than `MIN_FOLLOWED`, or
    /// less than half of `SPARE` is left.
    pub fn wants_mark(&self, now: Instant) -> bool {
        let by_clock = now.micros().saturating_add(MIN_FOLLOWED + ROOM).min(Fence::MAX);
        let by_grants = (self.last + SPARE / 2).min(Fence::MAX);
        self.mark.is_none_or(|mark| mark < by_clock.max(by_grants))
    }

    /// The time until the clock has passed the last fence. `None` if it has, or does within a ms, or if a
    /// clock that was set back is farther behind than a mark is ahead.
    pub fn ahead_of(&self, now: Instant) -> Option<Ttl> {
        let ahead = self.last.saturating_sub(now.millis() * 1000);
        (1000..=AHEAD + SPARE).contains(&ahead).then(|| Ttl::from_millis(ahead / 1000 + 1)).flatten()
    }

    /// The mark to write at `now`, if `last` was the greatest number.
    pub fn mark_for(now: Instant, last: u64) -> u64 {
        now.micros().saturating_add(AHEAD).max(last + SPARE).min(Fence::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_760_000_000_000_000;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    /// Fences with the mark that is written at `now`.
    fn marked(now: u64) -> Fences {
        let mut fences = Fences::default();
        fences.set_mark(Some(Fences::mark_for(at(now), 0)));
        fences
    }

    #[test]
    fn fences_follow_the_clock_and_never_go_back() {
        let mut fences = Fences::default();
        assert_eq!(fences.issue(at(100_000)).unwrap().get(), 100_000);
        assert_eq!(fences.issue(at(100_000)).unwrap().get(), 100_001);
        assert_eq!(fences.issue(at(5_000)).unwrap().get(), 100_002);
        fences.raise(50_000);
        assert_eq!(fences.issue(at(5_000)).unwrap().get(), 100_003);
        fences.raise(Fence::MAX + 1);
        assert_eq!(fences.last(), 100_003);
        fences.raise(Fence::MAX);
        assert_eq!(fences.issue(at(5)), None);
        assert_eq!(fences.last(), Fence::MAX);
    }

    #[test]
    fn fences_ahead_of_the_clock_are_passed_unless_the_clock_was_set_back() {
        let mut fences = Fences::default();
        assert_eq!(fences.ahead_of(at(NOW)), None);
        fences.raise(NOW + 1_500);
        assert_eq!(fences.ahead_of(at(NOW)).map(Ttl::millis), Some(2));
        assert_eq!(fences.ahead_of(at(NOW + 2_000)), None);
        fences.raise(NOW + AHEAD + SPARE);
        assert_eq!(fences.ahead_of(at(NOW)).map(Ttl::millis), Some((AHEAD + SPARE) / 1000 + 1));
        fences.raise(NOW + AHEAD + SPARE + 1);
        assert_eq!(fences.ahead_of(at(NOW)), None, "such a clock would take too long");
    }

    #[test]
    fn fences_without_a_mark_want_one_and_follow_the_clock() {
        let mut fences = Fences::default();
        assert!(fences.wants_mark(at(NOW)));
        assert_eq!(fences.issue(at(NOW)).unwrap().get(), NOW);
        assert_eq!(fences.beyond(), 0);
    }

    #[test]
    fn fences_follow_the_clock_if_each_write_of_a_mark_takes_less_than_a_second() {
        let mut fences = marked(NOW);
        let mut written = 0;
        // An hour, with a check ten times a second. Each write takes nearly as long as fences can still
        // follow the clock.
        let mut now = NOW;
        while now < NOW + 3_600_000_000 {
            if fences.wants_mark(at(now)) {
                let mark = Fences::mark_for(at(now), fences.last());
                assert!(fences.mark() < Some(mark));
                now += MIN_FOLLOWED - 100_000;
                assert_eq!(fences.issue(at(now)).unwrap().get(), now, "fences follow the clock");
                fences.set_mark(Some(mark));
                written += 1;
            }
            now += 100_000;
            assert_eq!(fences.issue(at(now)).unwrap().get(), now);
            assert!(fences.mark() > Some(now));
        }
        assert_eq!(fences.beyond(), 0);
        assert!((3_600 / 7..=3_600 / 5).contains(&written), "{written} marks in an hour");
    }

    #[test]
    fn a_clock_that_overtakes_the_mark_is_not_followed() {
        let mut fences = marked(NOW);
        let mark = fences.mark().unwrap();
        let first = fences.issue(at(NOW + 3_600_000_000)).unwrap().get();
        assert_eq!(first, mark - ROOM);
        for n in 1..=ROOM {
            assert_eq!(fences.issue(at(NOW + 3_600_000_000 + n)).unwrap().get(), first + n);
        }
        assert_eq!((fences.last(), fences.beyond()), (mark, 0));
        // The disk does not answer at all. Fences exceed the mark, and are counted.
        assert_eq!(fences.issue(at(NOW + 7_200_000_000)).unwrap().get(), NOW + 7_200_000_000);
        assert_eq!(fences.issue(at(NOW + 7_200_000_000)).unwrap().get(), NOW + 7_200_000_001);
        assert_eq!(fences.beyond(), 2);
        fences.set_mark(Some(Fences::mark_for(at(NOW + 7_200_000_000), fences.last())));
        assert_eq!(fences.issue(at(NOW + 7_200_005_000)).unwrap().get(), NOW + 7_200_005_000);
        assert_eq!(fences.beyond(), 2);
    }

    #[test]
    fn marks_are_due_by_the_number_of_grants_when_fences_are_far_ahead_of_the_clock() {
        const DAY: u64 = 86_400_000_000;
        let mut fences = marked(NOW);
        // After a restart in which all but the mark was lost.
        let last = fences.mark().unwrap();
        fences.raise(last);
        let now = at(NOW - DAY);
        assert!(fences.wants_mark(now));
        let mut written = 0;
        for n in 1..=1_000_000 {
            if fences.wants_mark(now) {
                fences.set_mark(Some(Fences::mark_for(now, fences.last())));
                written += 1;
            }
            assert_eq!(fences.issue(now).unwrap().get(), last + n);
            assert!(fences.mark() >= Some(last + n));
        }
        // A mark is due each time that half of `SPARE` is used up.
        assert_eq!((written, fences.beyond()), (8, 0));
    }

    #[test]
    fn each_restart_raises_the_mark_by_the_spare_only() {
        let mut mark = Fences::mark_for(at(NOW), 0);
        for _ in 0..20 {
            mark = Fences::mark_for(at(NOW), mark);
        }
        assert_eq!(mark, NOW + AHEAD + 20 * SPARE);
        // The clock catches up.
        assert_eq!(Fences::mark_for(at(NOW + 60_000_000), mark), NOW + 60_000_000 + AHEAD);
    }

    #[test]
    fn fences_above_a_number_from_outside_are_counted_until_a_mark_covers_them() {
        let mut fences = marked(NOW);
        assert!(!fences.wants_mark(at(NOW)));
        let raised = fences.mark().unwrap() + 2_000_000;
        fences.raise(raised);
        assert!(fences.wants_mark(at(NOW)));
        assert_eq!(fences.issue(at(NOW)).unwrap().get(), raised + 1);
        assert_eq!(fences.beyond(), 1);
        fences.set_mark(Some(Fences::mark_for(at(NOW), fences.last())));
        assert!(!fences.wants_mark(at(NOW)));
        assert_eq!(fences.issue(at(NOW)).unwrap().get(), raised + 2);
        assert_eq!(fences.beyond(), 1);
    }

    #[test]
    fn the_last_fences_want_no_further_mark() {
        let mut fences = Fences::default();
        fences.raise(Fence::MAX - 1);
        let mark = Fences::mark_for(at(NOW), fences.last());
        assert_eq!(mark, Fence::MAX);
        fences.set_mark(Some(mark));
        assert!(!fences.wants_mark(at(NOW)));
        assert_eq!(fences.issue(at(NOW)).unwrap().get(), Fence::MAX);
        assert_eq!(fences.issue(at(NOW)), None);
    }
}
