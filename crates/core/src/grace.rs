//! Restart grace (`dlock.restart-grace`): no new grants until every hold that this server may have lost has
//! expired. Holds that the server still has stay valid.
//!
//! The Redis module reports the events that may lose holds: a start, a promotion, a flush, an eviction. This
//! file decides when a grace period begins and ends.

use dlock_protocol::{Instant, Ttl};

use crate::queue::Name;

/// The current grace period, and the progress of the server's start.
#[derive(Clone, Debug)]
pub struct Grace {
    /// The server makes no new grants before this time. [`PAST`] allows new grants.
    ends: Instant,
    /// Whether a grace period is running. While the server starts, `ends` already holds new grants back, but
    /// the grace period begins only after the start.
    is_running: bool,
    start: Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The module is loaded, the data is not.
    ModuleLoaded,
    LoadingData,
    Serving,
}

/// A time that always lies in the past.
const PAST: Instant = Instant::from_micros(0);

fn after(now: Instant, length: Ttl) -> Instant {
    Instant::from_micros(now.micros().saturating_add(length.millis() * 1000))
}

impl Default for Grace {
    fn default() -> Grace {
        Grace::at_start(None, PAST)
    }
}

impl Grace {
    /// The state when the module is loaded. `length` is the option's value, `None` if it is 0.
    pub fn at_start(length: Option<Ttl>, now: Instant) -> Grace {
        let ends = length.map_or(PAST, |length| after(now, length));
        Grace { ends, is_running: false, start: Start::ModuleLoaded }
    }

    /// The time before which the server makes no new grants.
    pub fn grants_from(&self) -> Instant {
        self.ends
    }

    /// True from [`Grace::begin`] until the grace period is ended, by [`Grace::end_if_over`] or
    /// [`Grace::stop`].
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// The time at which the grace period has to be ended, in ms of the server clock. `None` if none runs.
    pub fn due(&self) -> Option<u64> {
        self.is_running.then(|| self.ends.micros().div_ceil(1000))
    }

    /// Ends the grace period if its time is over. Returns whether it did.
    pub fn end_if_over(&mut self, now: Instant) -> bool {
        let over = self.is_running && now >= self.ends;
        if over {
            self.stop();
        }
        over
    }

    pub fn stop(&mut self) {
        (self.ends, self.is_running) = (PAST, false);
    }

    /// Begins a grace period on a master that may have lost holds. A grace period that runs already is never
    /// shortened.
    pub fn begin(&mut self, length: Ttl, now: Instant) {
        (self.ends, self.is_running) = (self.ends.max(after(now, length)), true);
    }

    /// The server begins to load data. Loads after the start, by a replica or by DEBUG, have no effect.
    pub fn loading_begins(&mut self) {
        if self.start == Start::ModuleLoaded {
            self.start = Start::LoadingData;
        }
    }

    /// A load has ended or failed. Returns true if it was the load at the server's start. The caller then
    /// begins the grace period.
    pub fn loading_ended(&mut self) -> bool {
        let was_loading = self.is_loading();
        if was_loading {
            self.start = Start::Serving;
        }
        was_loading
    }

    /// The server can answer clients. Returns true if the start had no data to load. The caller then begins
    /// the grace period. Only the first call can return true.
    pub fn serving_begins(&mut self) -> bool {
        let nothing_loaded = self.start == Start::ModuleLoaded;
        if nothing_loaded {
            self.start = Start::Serving;
        }
        nothing_loaded
    }

    /// True during the load at the server's start. The removal of a hold during this load begins no grace
    /// period, because one begins when the load ends.
    pub fn is_loading(&self) -> bool {
        self.start == Start::LoadingData
    }
}

/// Evictions of held locks. The holder is not notified, and continues to rely on its hold until the lease
/// ends. So an eviction begins a grace period.
#[derive(Debug, Default)]
pub struct Evictions {
    /// Whether the server may evict any key, not only keys with a TTL. A held lock has no TTL.
    of_any_key: bool,
    /// The last held lock that lost its key in this turn of the event loop.
    removed: Option<Name<'static>>,
}

impl Evictions {
    /// Applies the option `maxmemory-policy`.
    pub fn configured(&mut self, policy: &str) {
        self.of_any_key = policy.starts_with("allkeys-");
    }

    /// Whether locks can be evicted.
    pub fn can_evict_locks(&self) -> bool {
        self.of_any_key
    }

    /// The key of a held lock is removed. If the cause is an eviction, the server reports the eviction next.
    pub fn removed(&mut self, name: &Name<'_>) {
        self.removed = Some(name.to_owned());
    }

    /// A key of any type was evicted. Returns whether this ended a hold.
    pub fn ended_hold(&mut self, name: &Name<'_>) -> bool {
        self.removed.take().is_some_and(|removed| removed == *name)
    }

    /// The turn of the event loop has ended. The server reports an eviction directly after it removes the
    /// key, so a later report is about another key.
    pub fn tick(&mut self) {
        self.removed = None;
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

    #[test]
    fn a_start_holds_grants_back_before_its_grace_period_begins() {
        let grace = Grace::at_start(Some(secs(5)), NOW);
        assert_eq!((grace.grants_from(), grace.is_running(), grace.due()), (later(5_000), false, None));
        assert!(!grace.clone().end_if_over(later(9_000)), "a grace period that has not begun cannot end");
        assert_eq!(Grace::at_start(None, NOW).grants_from(), PAST);
    }

    #[test]
    fn a_load_counts_as_the_start_only_once() {
        let mut grace = Grace::at_start(Some(secs(5)), NOW);
        assert!(!grace.loading_ended(), "no load has begun");
        grace.loading_begins();
        assert!(grace.is_loading() && !grace.serving_begins());
        assert!(grace.loading_ended() && !grace.is_loading());
        grace.loading_begins();
        assert!(!grace.is_loading() && !grace.loading_ended() && !grace.serving_begins());
    }

    #[test]
    fn a_start_without_data_ends_when_the_server_serves() {
        let mut grace = Grace::at_start(None, NOW);
        assert!(grace.serving_begins() && !grace.serving_begins());
        grace.loading_begins();
        assert!(!grace.loading_ended());
    }

    #[test]
    fn a_grace_period_ends_once_and_a_second_begin_only_extends_it() {
        let mut grace = Grace::at_start(None, NOW);
        grace.begin(secs(5), NOW);
        grace.begin(secs(1), later(1_000));
        assert_eq!((grace.grants_from(), grace.due()), (later(5_000), Some(later(5_000).millis())));
        grace.begin(secs(5), later(2_000));
        assert!(!grace.end_if_over(later(6_999)));
        assert!(grace.end_if_over(later(7_000)) && !grace.end_if_over(later(7_000)));
        assert_eq!((grace.is_running(), grace.grants_from(), grace.due()), (false, PAST, None));
    }

    #[test]
    fn an_eviction_counts_for_a_lock_only_right_after_its_removal() {
        let (lock, other) = (Name::new(0, b"lock"), Name::new(1, b"lock"));
        let mut evictions = Evictions::default();
        assert!(!evictions.ended_hold(&lock));
        evictions.removed(&lock);
        assert!(!evictions.ended_hold(&other) && !evictions.ended_hold(&lock));
        evictions.removed(&lock);
        assert!(evictions.ended_hold(&lock) && !evictions.ended_hold(&lock));
        evictions.removed(&lock);
        evictions.tick();
        assert!(!evictions.ended_hold(&lock));
    }
}
