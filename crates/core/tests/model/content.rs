//! The stored content of a lock, in a form that can be compared.

use dlock_core::{Ephemeral, Instant, Lock, Mode};

/// Returns the stored content of a lock. The holds are sorted by token, and their connections are left out.
pub fn content(lock: &Lock) -> Content {
    // At time 0, no hold has expired, and the remaining lock-delay equals the time at which it ends.
    let all = lock.at(Instant::from_micros(0));
    let holds = all.holds().map(|hold| StoredHold {
        token: hold.token().as_bytes().to_vec(),
        fence: hold.fence().get(),
        end: hold.deadline().millis(),
        since: hold.granted().millis(),
        ttl: hold.ttl().millis(),
        count: hold.count(),
        ephemeral: hold.ephemeral() != Ephemeral::No,
        delay: hold.delay().millis(),
        label: hold.label().to_vec(),
    });
    let mut holds: Vec<StoredHold> = holds.collect();
    holds.sort();
    Content { mode: all.mode(), delay_until: all.delay_left(), holds }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub mode: Option<Mode>,
    /// The end of the lock-delay (option DELAY) in ms of the server clock, 0 for none.
    pub delay_until: u64,
    pub holds: Vec<StoredHold>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredHold {
    pub token: Vec<u8>,
    pub fence: u64,
    pub end: u64,
    pub since: u64,
    pub ttl: u64,
    pub count: u32,
    pub ephemeral: bool,
    pub delay: u64,
    pub label: Vec<u8>,
}

impl Content {
    /// Returns whether `other` is the same lock on a replica with a clock that is `us` microseconds ahead.
    /// Both servers round times to whole ms, the replica when it converts them to its own clock. So a time
    /// there may be up to 1 ms too early or 2 ms too late.
    pub fn is_nearly(&self, other: &Content, us: u64) -> bool {
        let is_near = |here: u64, there: u64| {
            (here == 0) == (there == 0)
                && (here == 0 || (0..3000).contains(&(there * 1000 + 1000 - us - here * 1000)))
        };
        let same = |(a, b): (&StoredHold, &StoredHold)| {
            let timeless = |hold: &StoredHold| StoredHold { end: 0, since: 0, ..hold.clone() };
            is_near(a.end, b.end) && is_near(a.since, b.since) && timeless(a) == timeless(b)
        };
        self.mode == other.mode
            && is_near(self.delay_until, other.delay_until)
            && self.holds.len() == other.holds.len()
            && self.holds.iter().zip(&other.holds).all(same)
    }
}
