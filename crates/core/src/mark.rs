//! The fence mark: a number on the disk that is normally greater than all fences. A server that starts
//! without its other data, and with a clock that was set back, continues above the mark.
//!
//! A mark is written every 5 s while the server runs, even if no lock is granted. Otherwise the first fence
//! after a pause would have to wait for the disk, fall behind the clock, or exceed the mark. This file
//! decides when to write a mark, and encodes it. [`Fences`] chooses the number. A thread of the Redis module
//! writes the mark.
//!
//! The mark file is one line of text, so that an operator can read it:
//!
//! ```text
//!   dlock-fence-mark 1 1795179170661712 7212020084079279
//!   |                | |                2^53 - 1 minus the mark, as a checksum
//!   |                | the mark
//!   |                version
//!   name
//! ```

use std::fmt;

use dlock_protocol::{Fence, Instant};

use crate::fences::Fences;

/// A write that takes longer than this, in µs, counts as failed.
const DISK_TIMEOUT: u64 = 10_000_000;

/// Pause before a failed write is retried, in µs.
const RETRY_PAUSE: u64 = 5_000_000;

/// Interval of the writes, in µs.
const INTERVAL: u64 = 5_000_000;

/// A mark that is further ahead of the clock than this at a start is reported to the operator. In µs.
const WORTH_REPORTING: u64 = 10_000_000;

/// The state of the mark file, and of the write in progress.
#[derive(Debug)]
pub struct Marking {
    status: Status,
    /// The last mark that this server wrote to the file. `None` if it has not written to this file yet, or if
    /// the last write failed.
    written: Option<u64>,
    /// Begin of the last write.
    begun: Instant,
    /// Time from which a failed write is retried.
    retry_at: Instant,
    /// Whether the mark of another server was found in the file. This is reported once.
    shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Off,
    Ok,
    /// The mark cannot be written. The server continues without one.
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

/// A write to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub now: Instant,
    /// Greatest fence up to now.
    last: u64,
    /// The last mark that this server wrote to the file.
    written: Option<u64>,
}

/// The former content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No other mark: there was no file, or the file had this server's last mark.
    Nothing,
    /// The mark of the previous run.
    Before(u64),
    /// The mark of another running server.
    Theirs(u64),
    Damaged,
}

impl Order {
    /// Classifies `there`, the mark that was found in the file.
    pub fn found(self, there: u64) -> Found {
        match self.written {
            None => Found::Before(there),
            Some(own) if own == there => Found::Nothing,
            Some(_) => Found::Theirs(there),
        }
    }

    /// The finished write. Its mark is above the found mark, because fences up to the found mark may have
    /// been issued.
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

/// A finished write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub mark: u64,
    pub found: Found,
}

/// A message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The mark was written, after writes that failed.
    Recovered,
    /// The mark of the previous run is this many s ahead of the clock: fences continue above it.
    Ahead(u64),
    /// Another server writes the same file.
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

    /// Called when the path of the mark file has changed: the new file needs a mark.
    pub fn moved(&mut self) {
        self.written = None;
    }

    /// Called when the option `dlock.fence-mark` was switched off.
    pub fn off(&mut self, fences: &mut Fences) {
        (self.status, self.written) = (Status::Off, None);
        fences.set_mark(None);
    }

    /// Whether the write in progress takes too long, and this is not reported yet. Called only during a
    /// write.
    pub fn is_late(&self, now: Instant) -> bool {
        self.status == Status::Ok && now.micros() > self.begun.micros() + DISK_TIMEOUT
    }

    /// Whether a mark must be written: 5 s after the last write, or earlier if the fences need it.
    pub fn is_due(&self, fences: &Fences, now: Instant) -> bool {
        let interval_over = now.micros() >= self.begun.micros() + INTERVAL;
        now >= self.retry_at && (interval_over || self.written.is_none() || fences.wants_mark(now))
    }

    /// Begins a write.
    pub fn begin(&mut self, fences: &Fences, now: Instant) -> Order {
        self.begun = now;
        Order { now, last: fences.last(), written: self.written }
    }

    /// Records the result of a write, and returns the messages for the operator.
    pub fn finish(&mut self, outcome: Result<Done, String>, fences: &mut Fences, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        let was_failing = self.status == Status::Failing;
        match outcome {
            Ok(Done { mark, found }) => {
                (self.status, self.written) = (Status::Ok, Some(mark));
                fences.raise(found.number());
                fences.set_mark(Some(mark));
                news.extend(was_failing.then_some(News::Recovered));
                news.extend(self.news_of(found, now));
            }
            Err(why) => {
                // If only syncing the folder failed, the file has the new mark. As `written` is `None`, the
                // next write takes this mark for that of an earlier run, and not for that of another server.
                (self.status, self.written) = (Status::Failing, None);
                self.retry_at = Instant::from_micros(now.micros() + RETRY_PAUSE);
                fences.set_mark(None);
                news.extend((!was_failing).then_some(News::Failing(why)));
            }
        }
        news
    }

    /// Returns the message about the former content of the file. `None` if the content is not worth a
    /// message, or if an earlier message said that the file is shared.
    fn news_of(&mut self, found: Found, now: Instant) -> Option<News> {
        let shared_before = self.shared;
        self.shared |= matches!(found, Found::Theirs(_));
        let news = match found {
            Found::Before(mark) if mark > now.micros() + WORTH_REPORTING => {
                News::Ahead((mark - now.micros()) / 1_000_000)
            }
            Found::Theirs(_) => News::Shared,
            Found::Damaged => News::Damaged,
            Found::Nothing | Found::Before(_) => return None,
        };
        (!shared_before).then_some(news)
    }
}

const NAME: &str = "dlock-fence-mark";
const VERSION: &str = "1";

/// Maximum length of a mark file in bytes, in any version.
pub const MAX_LEN: usize = 128;

/// The reason why a file contains no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMark {
    /// A newer version, which this module cannot read.
    Newer,
    Damaged,
}

impl fmt::Display for NoMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoMark::Newer => "a newer module wrote it, load that one or remove the file",
            NoMark::Damaged => "it is damaged",
        })
    }
}

pub fn write(mark: u64) -> String {
    format!("{NAME} {VERSION} {mark} {}\n", Fence::MAX.saturating_sub(mark))
}

pub fn read(bytes: &[u8]) -> Result<u64, NoMark> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_LEN).ok_or(NoMark::Damaged)?;
    let line = text.strip_suffix('\n').ok_or(NoMark::Damaged)?;
    let mut words = line.split(' ');
    if words.next() != Some(NAME) {
        return Err(NoMark::Damaged);
    }
    if words.next() != Some(VERSION) {
        return Err(NoMark::Newer);
    }
    let mut number = || words.next()?.parse::<u64>().ok();
    match (number(), number(), words.next()) {
        (Some(mark), Some(rest), None) if mark.checked_add(rest) == Some(Fence::MAX) => Ok(mark),
        _ => Err(NoMark::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);

    fn later(secs: u64) -> Instant {
        Instant::from_micros(NOW.micros() + secs * 1_000_000)
    }

    /// Writes a mark to a file that contains the mark `there`.
    fn write_over(marking: &mut Marking, fences: &mut Fences, there: Option<u64>, now: Instant) -> Vec<News> {
        let order = marking.begin(fences, now);
        let found = there.map_or(Found::Nothing, |there| order.found(there));
        marking.finish(Ok(order.done(found)), fences, now)
    }

    #[test]
    fn a_mark_is_due_at_once_and_then_every_5_s() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        assert!(marking.is_due(&fences, NOW));
        assert_eq!(write_over(&mut marking, &mut fences, None, NOW), []);
        // 7 s is the distance `AHEAD` of a new mark from the clock.
        assert_eq!((marking.status(), fences.mark()), (Status::Ok, Some(NOW.micros() + 7_000_000)));
        assert!(!marking.is_due(&fences, later(4)) && marking.is_due(&fences, later(5)));
        fences.raise(NOW.micros() + 8_000_000);
        assert!(marking.is_due(&fences, NOW), "the last fence is beyond the mark");
    }

    #[test]
    fn a_disk_that_does_not_answer_is_reported_once() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write_over(&mut marking, &mut fences, None, NOW);
        marking.begin(&fences, later(5));
        assert!(!marking.is_late(later(15)) && marking.is_late(later(16)));
        let silent = marking.finish(Err("silent".into()), &mut fences, later(16));
        assert_eq!(silent, [News::Failing("silent".into())]);
        assert!(!marking.is_late(later(17)));
        assert_eq!(write_over(&mut marking, &mut fences, None, later(31)), [News::Recovered]);
    }

    #[test]
    fn a_failed_write_is_reported_once_and_retried_after_5_s() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write_over(&mut marking, &mut fences, None, NOW);
        let why = || Err("full".to_owned());
        assert_eq!(marking.finish(why(), &mut fences, NOW), [News::Failing("full".into())]);
        assert_eq!(marking.finish(why(), &mut fences, NOW), []);
        assert_eq!((marking.status(), fences.mark()), (Status::Failing, None));
        assert!(!marking.is_due(&fences, later(4)) && marking.is_due(&fences, later(5)));
        // The failed write may have reached the file, so its mark counts as that of an earlier run.
        assert_eq!(marking.begin(&fences, later(5)).found(7), Found::Before(7));
    }

    #[test]
    fn fences_continue_above_an_earlier_mark_of_the_file() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        let ahead = NOW.micros() + 60_000_000;
        assert_eq!(write_over(&mut marking, &mut fences, Some(ahead), NOW), [News::Ahead(60)]);
        // 250,000 is the distance `SPARE` of a new mark from fences that are ahead of the clock.
        assert_eq!((fences.last(), fences.mark()), (ahead, Some(ahead + 250_000)));
        let own = fences.mark();
        assert_eq!(write_over(&mut marking, &mut fences, own, later(1)), []);
        assert_eq!(write_over(&mut marking, &mut fences, Some(ahead * 2), later(2)), [News::Shared]);
        assert_eq!(fences.last(), ahead * 2);
        let news = write_over(&mut marking, &mut fences, Some(9), later(3));
        assert_eq!(news, [], "a shared file is reported once");
    }

    #[test]
    fn a_damaged_mark_is_reported_and_replaced() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        let done = Done { mark: 9, found: Found::Damaged };
        assert_eq!(marking.finish(Ok(done), &mut fences, NOW), [News::Damaged]);
        assert_eq!(fences.mark(), Some(9));
    }

    #[test]
    fn a_mark_is_due_when_the_file_has_moved_and_forgotten_when_switched_off() {
        let (mut marking, mut fences) = (Marking::default(), Fences::default());
        write_over(&mut marking, &mut fences, None, NOW);
        marking.moved();
        assert!(marking.is_due(&fences, NOW));
        marking.off(&mut fences);
        assert_eq!((marking.status(), fences.mark()), (Status::Off, None));
    }

    #[test]
    fn the_bytes_of_a_mark_never_change() {
        let bytes = "dlock-fence-mark 1 1795179170661712 7212020084079279\n";
        assert_eq!(write(1_795_179_170_661_712), bytes);
        assert_eq!(read(bytes.as_bytes()), Ok(1_795_179_170_661_712));
        for mark in [0, 1, Fence::MAX] {
            assert_eq!(read(write(mark).as_bytes()), Ok(mark));
        }
    }

    #[test]
    fn a_changed_or_missing_byte_of_a_mark_is_detected() {
        let bytes = write(1_795_179_170_661_712).into_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                assert!(read(&wrong).is_err(), "{}", wrong.escape_ascii());
            }
            assert!(read(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn bytes_that_are_no_mark_are_refused() {
        let longer =
            [b"dlock-fence-mark 1 1795179170661712 7212020084079279".to_vec(), vec![b' '; 100]].concat();
        for wrong in [
            &b""[..],
            b"\n",
            b"1795179170661712\n",
            b"dlock-fence-mark 1 1795179170661712\n",
            b"dlock-fence-mark 1 1795179170661712 7212020084079279 5\n",
            b"dlock-fence-mark 1 -5 9007199254740996\n",
            // 2^53, and one so great that the sum overflows
            b"dlock-fence-mark 1 9007199254740992 0\n",
            b"dlock-fence-mark 1 18446744073709551615 9007199254740992\n",
            b"\xff\xfe\n",
            &longer,
        ] {
            assert_eq!(read(wrong), Err(NoMark::Damaged), "{}", wrong.escape_ascii());
        }
        assert_eq!(read(b"dlock-fence-mark 2 anything\n"), Err(NoMark::Newer));
    }
}
