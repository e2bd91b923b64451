//! Counters and times since the start, for INFO.

use std::fmt::Write;

use dlock_core::{End, Event, Outcome};
use hdrhistogram::Histogram;

#[derive(Default)]
pub struct Stats {
    pub grants: u64,
    /// Grants to waiters.
    pub handoffs: u64,
    /// ACQUIREs that were answered null at once.
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
    /// Waiters that left because their connection closed.
    pub waiters_gone: u64,
    /// Held locks that the server evicted.
    pub evictions: u64,
    /// Effects and stored locks that could not be read or applied. An effect is a change of a lock in the
    /// replication stream or the append only file.
    pub effects_skipped: u64,
    /// Time from ACQUIRE to the grant of waiters, in ms.
    pub waited: Times,
    /// Time from the grant to the end of holds, in ms.
    pub held: Times,
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
        self.held.record(held_ms.into());
    }

    pub fn answered(&mut self, outcome: &Outcome, waited_ms: u64) {
        match outcome {
            Outcome::Granted(..) => {
                self.handoffs += 1;
                self.waited.record(waited_ms);
            }
            Outcome::TimedOut => self.timeouts += 1,
            Outcome::Cancelled | Outcome::Left => self.cancels += 1,
            Outcome::Refused(_) => {}
        }
    }
}

/// A distribution of times in ms: quantiles since the start, and counts by duration. For the figures of an
/// interval, a monitor can subtract earlier counts. It can add the counts of several servers.
pub struct Times {
    pub all: Histogram<u64>,
    /// For each of `BOUNDS`, the count of recorded times up to this bound and above the previous one. The
    /// last entry counts the times above all bounds.
    counts: [u64; BOUNDS.len() + 1],
    sum: u64,
}

const BOUNDS: [u64; 12] = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 300_000, 3_600_000];

impl Default for Times {
    fn default() -> Self {
        // For times up to a year and two significant digits, the histogram takes 20 KB and never grows.
        let longest = 366 * 86_400_000;
        let all = Histogram::new_with_max(longest, 2).expect("the range is valid");
        Times { all, counts: [0; BOUNDS.len() + 1], sum: 0 }
    }
}

impl Times {
    fn record(&mut self, ms: u64) {
        self.all.saturating_record(ms);
        self.counts[BOUNDS.partition_point(|bound| *bound < ms)] += 1;
        self.sum = self.sum.saturating_add(ms);
    }

    /// Returns `1=0,5=2,...,inf=3,sum=812`: for each bound in ms, the count of recorded times up to this
    /// bound, and the sum of all times.
    pub fn cumulative(&self) -> String {
        let (mut text, mut so_far) = (String::new(), 0);
        let names = BOUNDS.iter().map(u64::to_string).chain(["inf".to_owned()]);
        for (name, count) in names.zip(self.counts) {
            so_far += count;
            let _ = write!(text, "{name}={so_far},");
        }
        let _ = write!(text, "sum={}", self.sum);
        text
    }
}
