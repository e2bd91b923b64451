//! What happened, counted.

use dlock_core::{End, Event, Outcome};
use hdrhistogram::Histogram;

/// Counts since the start.
pub struct Stats {
    pub grants: u64,
    pub handoffs: u64,
    pub denials: u64,
    pub releases: u64,
    pub expiries: u64,
    pub disconnects: u64,
    pub breaks: u64,
    pub timeouts: u64,
    pub cancels: u64,
    pub deadlocks: u64,
    pub queue_refusals: u64,
    pub grace_refusals: u64,
    pub gone: u64,
    /// Held locks that the server has evicted.
    pub evictions: u64,
    /// Effects that could not be taken in.
    pub effects_skipped: u64,
    /// ms from ACQUIRE to grant, of those who waited.
    pub waited: Histogram<u64>,
    /// ms from grant to end.
    pub held: Histogram<u64>,
}

impl Default for Stats {
    fn default() -> Self {
        // Two digits, up to a year: 2 x 20 KB that never grow.
        let histogram = || {
            let longest = 366 * 86_400_000;
            Histogram::new_with_max(longest, 2).expect("the bounds are right")
        };
        Stats {
            grants: 0,
            handoffs: 0,
            denials: 0,
            releases: 0,
            expiries: 0,
            disconnects: 0,
            breaks: 0,
            timeouts: 0,
            cancels: 0,
            deadlocks: 0,
            queue_refusals: 0,
            grace_refusals: 0,
            gone: 0,
            evictions: 0,
            effects_skipped: 0,
            waited: histogram(),
            held: histogram(),
        }
    }
}

impl Stats {
    pub fn count(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Acquired => self.grants += 1,
                Event::Extended | Event::Downgraded | Event::AllEnded(_) | Event::Freed => {}
                Event::Ended(end, held_ms) => self.ended(*end, *held_ms),
            }
        }
    }

    pub fn ended(&mut self, why: End, held_ms: u32) {
        *match why {
            End::Released => &mut self.releases,
            End::Expired => &mut self.expiries,
            End::Disconnected => &mut self.disconnects,
            End::Broken => &mut self.breaks,
        } += 1;
        self.held.saturating_record(held_ms.into());
    }

    pub fn answered(&mut self, outcome: &Outcome, waited_ms: u64) {
        match outcome {
            Outcome::Granted(..) => {
                self.handoffs += 1;
                self.waited.saturating_record(waited_ms);
            }
            Outcome::TimedOut => self.timeouts += 1,
            Outcome::Cancelled | Outcome::Left => self.cancels += 1,
            Outcome::Refused(_) => {}
        }
    }
}
