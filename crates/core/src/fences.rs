//! The numbers of grants: the one producer of fences, and how many of them are reserved ahead.
//!
//! A hybrid logical clock (Kulkarni et al. 2014) of one node: `max(last + 1, clock in microseconds)`, of a
//! clock that moves on by whole milliseconds: within one, a grant has the number behind the last one, so that
//! readers of a log can count along ([`crate::codec::Plain`]). It follows the clock, so that losing `last`
//! costs nothing while the clock is right, and goes on from `last`, so that a clock set back costs nothing
//! while `last` is known. What keeps it from falling when both happen at once is the **mark**: a number on
//! the disk that no fence goes beyond, and that a restart goes on above, as timestamp oracles do.
//!
//! Nothing here writes that number. This tells when a further one is wanted; the shell tells when it is on
//! the disk.

use dlock_protocol::{Fence, Instant};

/// A new mark lies so far ahead of the clock, in microseconds. After a crash fences run ahead of the clock by
/// as much, so it stays below the 10 s that other servers of a quorum accept.
const AHEAD: u64 = 7_000_000;

/// The clock is followed up to so far below the mark; the numbers from there on are for grants that come
/// while the disk takes its time. A million: more grants than a server makes in a second.
const ROOM: u64 = 1_000_000;

/// A further mark is wanted when the clock will be followed for no longer than this: so one is written each 5
/// s.
const LEAST: u64 = 1_000_000;

/// A new mark lies so far beyond the last fence, where that is ahead of the clock. Each start takes so many
/// numbers, used or not: less than a quarter of a second, so that one that starts again and again is not led
/// away by it.
const SPARE: u64 = 250_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fences {
    last: u64,
    /// The clock is followed up to here.
    follow: u64,
    mark: Option<u64>,
    beyond: u64,
}

impl Default for Fences {
    /// Without a mark.
    fn default() -> Self {
        Fences { last: 0, follow: u64::MAX, mark: None, beyond: 0 }
    }
}

impl Fences {
    /// The greatest number ever issued or accepted; 0 for none.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The number of the next grant. None when the number space is used up (the year 2255), which refuses the
    /// grant.
    #[inline]
    pub fn issue(&mut self, now: Instant) -> Option<Fence> {
        let mut number = (self.last + 1).max(now.millis() * 1000);
        if number > self.follow {
            number = self.close_to_the_mark(number);
        }
        let fence = Fence::from_outside(number)?;
        self.last = fence.get();
        Some(fence)
    }

    /// The clock is not followed up to the mark and beyond: a grant that would wait for the disk, or go
    /// without its cover, takes the next number instead. Only where none is left it goes beyond.
    #[cold]
    fn close_to_the_mark(&mut self, number: u64) -> u64 {
        let next = (self.last + 1).max(self.follow);
        if self.mark.is_some_and(|mark| next > mark) {
            self.beyond += 1;
            return number;
        }
        next
    }

    /// Goes on above `number` from now on; never goes back. Numbers no fence can have are passed over.
    pub fn raise(&mut self, number: u64) {
        if number <= Fence::MAX {
            self.last = self.last.max(number);
        }
    }

    /// The number on the disk; None where none is kept.
    pub const fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// From now on no fence goes beyond `mark`, or, with None, no mark is kept.
    pub fn set_mark(&mut self, mark: Option<u64>) {
        self.mark = mark;
        self.follow = mark.map_or(u64::MAX, |mark| mark.saturating_sub(ROOM));
    }

    /// How many fences were issued without the cover of the mark that was kept: a number from outside lay
    /// beyond it, or the disk took so long that even the spare ones were used up.
    pub const fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Whether a further mark has to be written now.
    pub fn wants_mark(&self, now: Instant) -> bool {
        let by_clock = now.micros().saturating_add(LEAST + ROOM).min(Fence::MAX);
        let by_grants = (self.last + SPARE / 2).min(Fence::MAX);
        self.mark.is_none_or(|mark| mark < by_clock.max(by_grants))
    }

    /// The mark to write at `now` where `last` was the greatest number.
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

    /// With a mark as it is written at `now`.
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
    fn within_a_millisecond_fences_count_on() {
        let mut fences = Fences::default();
        let issued =
            [7_999, 8_000, 8_001, 8_998, 8_999, 9_000].map(|now| fences.issue(at(now)).unwrap().get());
        assert_eq!(issued, [7_000, 8_000, 8_001, 8_002, 8_003, 9_000]);
    }

    #[test]
    fn without_a_mark_one_is_wanted_and_nothing_waits_for_it() {
        let mut fences = Fences::default();
        assert!(fences.wants_mark(at(NOW)));
        assert_eq!(fences.issue(at(NOW)).unwrap().get(), NOW);
        assert_eq!(fences.beyond(), 0);
    }

    #[test]
    fn a_mark_that_is_written_in_time_is_never_seen() {
        let mut fences = marked(NOW);
        let mut written = 0;
        // An hour; looked at ten times a second, and it takes most of one until what is wanted is on the
        // disk.
        let mut now = NOW;
        while now < NOW + 3_600_000_000 {
            if fences.wants_mark(at(now)) {
                let mark = Fences::mark_for(at(now), fences.last());
                assert!(fences.mark() < Some(mark));
                now += LEAST - 100_000;
                assert_eq!(fences.issue(at(now)).unwrap().get(), now, "it follows the clock");
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
        // The disk does not answer at all: the server goes on, and tells.
        assert_eq!(fences.issue(at(NOW + 7_200_000_000)).unwrap().get(), NOW + 7_200_000_000);
        assert_eq!(fences.issue(at(NOW + 7_200_000_000)).unwrap().get(), NOW + 7_200_000_001);
        assert_eq!(fences.beyond(), 2);
        fences.set_mark(Some(Fences::mark_for(at(NOW + 7_200_000_000), fences.last())));
        assert_eq!(fences.issue(at(NOW + 7_200_005_000)).unwrap().get(), NOW + 7_200_005_000);
        assert_eq!(fences.beyond(), 2);
    }

    #[test]
    fn a_clock_far_behind_the_fences_needs_marks_by_their_number() {
        const DAY: u64 = 86_400_000_000;
        let mut fences = marked(NOW);
        // The restart: everything is lost but the mark.
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
        assert_eq!((written, fences.beyond()), (8, 0));
    }

    #[test]
    fn restarts_in_a_row_lead_away_by_a_little_each() {
        let mut mark = Fences::mark_for(at(NOW), 0);
        for _ in 0..20 {
            mark = Fences::mark_for(at(NOW), mark);
        }
        assert_eq!(mark, NOW + AHEAD + 20 * SPARE);
        // The clock catches up.
        assert_eq!(Fences::mark_for(at(NOW + 60_000_000), mark), NOW + 60_000_000 + AHEAD);
    }

    #[test]
    fn a_number_from_outside_beyond_the_mark_is_counted_until_it_is_covered() {
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
    fn the_last_numbers_need_no_further_mark() {
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
