//! When the fence mark is written: the number on the disk that no fence goes beyond, so that a start which
//! has lost everything else, clock included, goes on above the fences of before.
//!
//! One is written each 5 s for as long as the server runs, whether or not anything is granted: the first
//! fence after a break would otherwise wait for the disk, fall behind the clock, or lack the cover. Which
//! number it is stands in [`Fences`], its bytes in [`crate::mark`]; the shell has a thread write it.

use dlock_protocol::Instant;

use crate::fences::Fences;

/// After so long, in microseconds, a disk that does not answer counts as one that cannot be written.
const DISK_TIMEOUT: u64 = 10_000_000;

/// What could not be written is retried after so long.
const BACKOFF: u64 = 5_000_000;

/// It is written each so long.
const EACH: u64 = 5_000_000;

/// A mark that is further ahead of the clock than this at a start is worth a word to the operator.
const WORTH_TELLING: u64 = 10_000_000;

#[derive(Debug)]
pub struct Marking {
    status: Status,
    /// What this server wrote there last. None: not written yet, since the start or since the file is
    /// another.
    written: Option<u64>,
    /// When the last write began.
    begun: Instant,
    /// Not retried before.
    retry_at: Instant,
    /// Somebody else's mark was found, and the operator knows.
    shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Off,
    Ok,
    /// It cannot be written; the server goes on without.
    Failing,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::Off => "off",
            Status::Ok => "ok",
            Status::Failing => "failing",
        }
    }
}

/// One write, with all that it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub now: Instant,
    /// The greatest number up to now.
    last: u64,
    /// What this server wrote there last.
    written: Option<u64>,
}

/// What stood in the file before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or what this server wrote.
    Nothing,
    /// The mark of the run before.
    Before(u64),
    /// The mark of somebody else, who runs now.
    Theirs(u64),
    Damaged,
}

impl Order {
    /// Whose mark it is that stands in the file.
    pub fn found(self, there: u64) -> Found {
        match self.written {
            None => Found::Before(there),
            Some(own) if own == there => Found::Nothing,
            Some(_) => Found::Theirs(there),
        }
    }

    /// What to write. Whatever was found may have been issued, by whomever: it is above that.
    pub fn done(self, found: Found) -> Done {
        Done { mark: Fences::mark_for(self.now, self.last.max(found.number())), found }
    }
}

impl Found {
    fn number(self) -> u64 {
        match self {
            Found::Before(number) | Found::Theirs(number) => number,
            Found::Nothing | Found::Damaged => 0,
        }
    }
}

/// A mark is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub mark: u64,
    pub found: Found,
}

/// What an operator should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is written again, after it could not be.
    Again,
    /// The mark of before lies so many seconds ahead of the clock: fences go on above it.
    Ahead(u64),
    /// Another server writes it too.
    Shared,
    Damaged,
    Failing(String),
}

impl Default for Marking {
    fn default() -> Marking {
        let never = Instant::from_micros(0);
        Marking { status: Status::Off, written: None, begun: never, retry_at: never, shared: false }
    }
}

impl Marking {
    pub fn status(&self) -> Status {
        self.status
    }

    /// The file is another from now on.
    pub fn moved(&mut self) {
        self.written = None;
    }

    /// It was switched off.
    pub fn off(&mut self, fences: &mut Fences) {
        (self.status, self.written) = (Status::Off, None);
        fences.set_mark(None);
    }

    /// Whether the write that runs has taken for too long, and that is not known yet.
    pub fn is_late(&self, now: Instant) -> bool {
        self.status == Status::Ok && now.micros() > self.begun.micros() + DISK_TIMEOUT
    }

    /// Whether a further mark is to be written now. Also where it is far enough ahead of the clock: when it
    /// was written last is a sign of life.
    pub fn is_due(&self, fences: &Fences, now: Instant) -> bool {
        let old = now.micros() >= self.begun.micros() + EACH;
        now >= self.retry_at && (old || self.written.is_none() || fences.wants_mark(now))
    }

    /// A write begins.
    pub fn begin(&mut self, fences: &Fences, now: Instant) -> Order {
        self.begun = now;
        Order { now, last: fences.last(), written: self.written }
    }

    /// Takes note of what has come of a write.
    pub fn finish(&mut self, outcome: Result<Done, String>, fences: &mut Fences, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        let was_failing = self.status == Status::Failing;
        match outcome {
            Ok(Done { mark, found }) => {
                (self.status, self.written) = (Status::Ok, Some(mark));
                fences.raise(found.number());
                fences.set_mark(Some(mark));
                news.extend(was_failing.then_some(News::Again));
                news.extend(self.news_of(found, now));
            }
            Err(why) => {
                // It may be that the file is written and only its folder is not: what stands there is looked
                // at again.
                (self.status, self.written) = (Status::Failing, None);
                self.retry_at = Instant::from_micros(now.micros() + BACKOFF);
                fences.set_mark(None);
                news.extend((!was_failing).then_some(News::Failing(why)));
            }
        }
        news
    }

    /// Once it is shared, the operator has other things to do than to hear of its numbers.
    fn news_of(&mut self, found: Found, now: Instant) -> Option<News> {
        let shared_before = self.shared;
        self.shared |= matches!(found, Found::Theirs(_));
        let news = match found {
            Found::Before(mark) if mark > now.micros() + WORTH_TELLING => {
                News::Ahead((mark - now.micros()) / 1_000_000)
            }
            Found::Theirs(_) => News::Shared,
            Found::Damaged => News::Damaged,
            Found::Nothing | Found::Before(_) => return None,
        };
        (!shared_before).then_some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);

    fn later(secs: u64) -> Instant {
        Instant::from_micros(NOW.micros() + secs * 1_000_000)
    }

    /// One that is written with what stood there before.
    fn write(marking: &mut Marking, fences: &mut Fences, there: Option<u64>, now: Instant) -> Vec<News> {
        let order = marking.begin(fences, now);
        let found = there.map_or(Found::Nothing, |there| order.found(there));
        marking.finish(Ok(order.done(found)), fences, now)
    }

    #[test]
    fn it_is_written_at_once_and_then_each_5_s_also_by_an_idle_server() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        assert!(marking.is_due(&fences, NOW));
        assert_eq!(write(&mut marking, &mut fences, None, NOW), []);
        assert_eq!((marking.status(), fences.mark()), (Status::Ok, Some(NOW.micros() + 7_000_000)));
        assert!(!marking.is_due(&fences, later(4)) && marking.is_due(&fences, later(5)));
        fences.raise(NOW.micros() + 8_000_000);
        assert!(marking.is_due(&fences, NOW), "a number from outside lies beyond it");
    }

    #[test]
    fn a_disk_that_keeps_silent_is_told_of_once() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write(&mut marking, &mut fences, None, NOW);
        marking.begin(&fences, later(5));
        assert!(!marking.is_late(later(15)) && marking.is_late(later(16)));
        let silent = marking.finish(Err("silent".into()), &mut fences, later(16));
        assert_eq!(silent, [News::Failing("silent".into())]);
        assert!(!marking.is_late(later(17)));
        assert_eq!(write(&mut marking, &mut fences, None, later(31)), [News::Again]);
    }

    #[test]
    fn what_fails_is_told_once_tried_again_after_5_s_and_covers_nothing() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write(&mut marking, &mut fences, None, NOW);
        let why = || Err("full".to_owned());
        assert_eq!(marking.finish(why(), &mut fences, NOW), [News::Failing("full".into())]);
        assert_eq!(marking.finish(why(), &mut fences, NOW), []);
        assert_eq!((marking.status(), fences.mark()), (Status::Failing, None));
        assert!(!marking.is_due(&fences, later(4)) && marking.is_due(&fences, later(5)));
        // It may have been written all the same.
        assert_eq!(marking.begin(&fences, later(5)).found(7), Found::Before(7));
    }

    #[test]
    fn fences_go_on_above_whatever_stood_there() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        let ahead = NOW.micros() + 60_000_000;
        assert_eq!(write(&mut marking, &mut fences, Some(ahead), NOW), [News::Ahead(60)]);
        assert_eq!((fences.last(), fences.mark()), (ahead, Some(ahead + 250_000)));
        let own = fences.mark();
        assert_eq!(write(&mut marking, &mut fences, own, later(1)), []);
        assert_eq!(write(&mut marking, &mut fences, Some(ahead * 2), later(2)), [News::Shared]);
        assert_eq!(fences.last(), ahead * 2);
        assert_eq!(write(&mut marking, &mut fences, Some(9), later(3)), [], "that is known");
    }

    #[test]
    fn a_damaged_one_is_told_and_written_anew() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        let done = Done { mark: 9, found: Found::Damaged };
        assert_eq!(marking.finish(Ok(done), &mut fences, NOW), [News::Damaged]);
        assert_eq!(fences.mark(), Some(9));
    }

    #[test]
    fn another_file_or_none_is_begun_anew() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write(&mut marking, &mut fences, None, NOW);
        marking.moved();
        assert!(marking.is_due(&fences, NOW));
        marking.off(&mut fences);
        assert_eq!((marking.status(), fences.mark()), (Status::Off, None));
    }
}
