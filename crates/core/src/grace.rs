//! Restart-grace: after holds may have been forgotten nothing new is granted for as long as the longest of
//! them may still last. What is held as far as the server knows goes on.
//!
//! Here stands when that begins, why, and when it is over. That something was forgotten only the server's
//! events tell: the shell calls in with each of them.

use dlock_protocol::{Instant, Ttl};

mod evictions;

pub use evictions::Evictions;

/// What runs, and how far the server has come since its start.
#[derive(Clone, Debug)]
pub struct Grace {
    /// [`NEVER`] where there is none.
    ends: Instant,
    /// Somebody was told that it begins. Not so at the start, until it is known what was forgotten.
    announced: bool,
    start: Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Whatever there is to load is not loaded yet.
    Begun,
    Loading {
        /// Bytes of the append only files before.
        size: Option<u64>,
        /// An effect could not be taken in. The server goes on with the next.
        skipped: bool,
    },
    /// Clients are served.
    Done,
}

/// What the files have shown once they are loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `appendonly yes`.
    pub has_file: bool,
    /// `appendfsync always` and `no-appendfsync-on-rewrite no`.
    pub syncs_each_grant: bool,
    /// Bytes of the append only files now.
    pub size: Option<u64>,
    /// Whether the run before left a proof that it kept every grant in them, or why that is none.
    pub proof: Result<(), String>,
}

/// The beginning of time, for a grace period that is none.
const NEVER: Instant = Instant::from_micros(0);

fn after(now: Instant, length: Ttl) -> Instant {
    Instant::from_micros(now.micros().saturating_add(length.millis() * 1000))
}

impl Default for Grace {
    fn default() -> Grace {
        Grace::at_start(None, NEVER)
    }
}

impl Grace {
    /// The module is loaded. Whatever will turn out to be remembered, nothing is known of it yet.
    pub fn at_start(length: Option<Ttl>, now: Instant) -> Grace {
        let ends = length.map_or(NEVER, |length| after(now, length));
        Grace { ends, announced: false, start: Start::Begun }
    }

    /// The moment from which new grants are made.
    pub fn grants_from(&self) -> Instant {
        self.ends
    }

    /// It has begun, and nobody has been told that it is over.
    pub fn runs(&self) -> bool {
        self.announced
    }

    /// The millisecond at which it has to be ended.
    pub fn due(&self) -> Option<u64> {
        self.announced.then(|| self.ends.micros().div_ceil(1000))
    }

    /// True once, when it is over.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let over = self.announced && now >= self.ends;
        if over {
            self.stop();
        }
        over
    }

    pub fn stop(&mut self) {
        (self.ends, self.announced) = (NEVER, false);
    }

    /// Holds may have been forgotten on a master. It never ends sooner than one that runs.
    pub fn begin(&mut self, length: Ttl, now: Instant) {
        (self.ends, self.announced) = (self.ends.max(after(now, length)), true);
    }

    /// `size`: bytes of the append only files.
    pub fn loading_begins(&mut self, size: Option<u64>) {
        if self.start == Start::Begun {
            self.start = Start::Loading { size, skipped: false };
        }
    }

    /// None where it was not the load of the start. Else whether all that was granted was loaded, or why
    /// holds may have been forgotten.
    pub fn loading_ended(&mut self, loaded: &Loaded) -> Option<Result<(), String>> {
        let Start::Loading { size, skipped } = self.start else { return None };
        self.start = Start::Done;
        let loss = if !loaded.has_file {
            "keeps no append only file"
        } else if size.is_none() || size != loaded.size {
            // The server cuts off what it cannot read at the end.
            "the end of the append only file was missing"
        } else if skipped {
            "a part of the append only file could not be read"
        } else if let Err(why) = &loaded.proof {
            if loaded.syncs_each_grant {
                return Some(Err(format!(
                    "nothing proves that all that was granted was loaded (its proof: {why})"
                )));
            }
            "does not keep every grant on the disk (appendfsync always)"
        } else {
            return Some(Ok(()));
        };
        Some(Err(loss.into()))
    }

    /// Whether that was the load of the start. What could not be loaded may be repaired, and so cut off,
    /// before the next.
    pub fn loading_failed(&mut self) -> bool {
        let at_start = self.is_loading();
        if at_start {
            self.start = Start::Done;
        }
        at_start
    }

    /// The server can answer. Whether there was nothing to load: if no load has been seen by now, there was
    /// none.
    pub fn serves(&mut self) -> bool {
        let nothing = self.start == Start::Begun;
        if nothing {
            self.start = Start::Done;
        }
        nothing
    }

    /// The load of the start runs. What goes in its course went as long ago as the file is old: what the
    /// proof says is of its end.
    pub fn is_loading(&self) -> bool {
        matches!(self.start, Start::Loading { .. })
    }

    /// All that there was is loaded.
    pub fn is_up(&self) -> bool {
        self.start == Start::Done
    }

    /// An effect could not be taken in. Where it stands in the append only file, what it tells is forgotten.
    pub fn effect_skipped(&mut self) {
        if let Start::Loading { skipped, .. } = &mut self.start {
            *skipped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_micros(1_000_000_000);

    fn secs(secs: u64) -> Ttl {
        Ttl::from_millis(secs * 1000).unwrap()
    }

    fn later(ms: u64) -> Instant {
        Instant::from_micros(NOW.micros() + ms * 1000)
    }

    fn complete() -> Loaded {
        Loaded { has_file: true, syncs_each_grant: true, size: Some(9), proof: Ok(()) }
    }

    fn loading(size: Option<u64>) -> Grace {
        let mut grace = Grace::at_start(Some(secs(5)), NOW);
        grace.loading_begins(size);
        grace
    }

    #[test]
    fn from_the_start_nothing_is_granted_until_it_is_known_what_was_forgotten() {
        let mut grace = loading(Some(9));
        assert_eq!((grace.grants_from(), grace.runs(), grace.due()), (later(5_000), false, None));
        assert!(!grace.is_over(later(9_000)), "nobody was told of it");
        assert_eq!(grace.loading_ended(&complete()), Some(Ok(())));
        grace.stop();
        assert_eq!(grace.grants_from(), NEVER);
        assert_eq!(Grace::at_start(None, NOW).grants_from(), NEVER);
    }

    #[test]
    fn a_load_is_complete_only_where_nothing_speaks_against_it() {
        let unproven = Loaded { proof: Err("x".into()), ..complete() };
        for (before, skips, loaded, loss) in [
            (Some(9), false, Loaded { has_file: false, ..complete() }, "keeps no"),
            (Some(9), false, Loaded { size: Some(8), ..complete() }, "missing"),
            (Some(9), false, Loaded { size: None, ..complete() }, "missing"),
            (None, false, Loaded { size: None, ..complete() }, "missing"),
            (Some(9), true, complete(), "could not be read"),
            (Some(9), false, unproven.clone(), "(its proof: x)"),
            (Some(9), false, Loaded { syncs_each_grant: false, ..unproven }, "does not keep"),
        ] {
            let mut grace = loading(before);
            if skips {
                grace.effect_skipped();
            }
            let judged = grace.loading_ended(&loaded).unwrap().unwrap_err();
            assert!(judged.contains(loss), "{loaded:?}: {judged}");
        }
    }

    #[test]
    fn only_the_first_load_is_the_one_of_the_start() {
        let mut grace = loading(Some(9));
        assert!(grace.is_loading() && !grace.is_up());
        assert_eq!(grace.loading_ended(&complete()), Some(Ok(())));
        grace.loading_begins(Some(1));
        grace.effect_skipped();
        assert_eq!(grace.loading_ended(&complete()), None);
        assert!(!grace.loading_failed() && !grace.serves() && grace.is_up());
    }

    #[test]
    fn a_load_that_failed_and_one_that_never_came_are_told_once() {
        let mut grace = loading(None);
        assert!(!grace.serves(), "it loads");
        assert!(grace.loading_failed() && !grace.loading_failed());
        let mut grace = Grace::at_start(None, NOW);
        assert!(!grace.loading_failed());
        assert!(grace.serves() && !grace.serves() && grace.is_up());
    }

    #[test]
    fn it_is_over_once_and_a_new_reason_only_makes_it_longer() {
        let mut grace = Grace::at_start(None, NOW);
        grace.begin(secs(5), NOW);
        grace.begin(secs(1), later(1_000));
        assert_eq!((grace.grants_from(), grace.due()), (later(5_000), Some(later(5_000).millis())));
        grace.begin(secs(5), later(2_000));
        assert!(!grace.is_over(later(6_999)));
        assert!(grace.is_over(later(7_000)) && !grace.is_over(later(7_000)));
        assert_eq!((grace.runs(), grace.grants_from(), grace.due()), (false, NEVER, None));
    }
}
