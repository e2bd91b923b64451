//! A client that locks, writes to the store and releases in a loop, in its own thread and runtime. A hold in
//! which the client will pause is not renewed: renewals run in another thread, which continues during the
//! pause.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use dlock_client::now;
use dlock_quorum::Instant;

use crate::locks::{Held, LONGEST_WAIT, Locks};
use crate::store::Store;
use dlock_testkit::history::{At, Grant, Hold, Mode};
use dlock_testkit::{Random, until_within};

pub const CONTENDERS: usize = 6;
/// In a cluster of three masters, each has one.
pub const RESOURCES: [&str; 3] = ["ledger", "desk", "till"];
/// Longest pause of a client. The pause ends earlier if a later holder writes.
const LONGEST_PAUSE: Duration = Duration::from_secs(6);

/// A wait or a release may take this much longer than its limit, on a busy machine. The clients in other
/// languages have the same number.
const MARGIN: Duration = Duration::from_secs(10);

/// Longer than any wait in a correct run, where clients may be paused for seconds, one after the other.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// State that the clients of a run share, and their instructions.
pub struct Stage {
    pub store: Store,
    pub ended: AtomicBool,
    /// While true, holders do not release their holds, so that masters restart during a hold.
    pub keep_holds: AtomicBool,
    /// Number of holders that keep their holds because of `keep_holds`.
    pub keeping: AtomicUsize,
    /// Kind of each client (`Rust`, `asyncio` or another one), and its number of holds.
    pub acquired: Vec<(String, AtomicUsize)>,
    pub counts: Counts,
    /// Acquisitions and releases that took longer than their limits and [`MARGIN`].
    pub overdue: Mutex<Vec<String>>,
}

/// Counters of events.
#[derive(Default, Debug)]
pub struct Counts {
    /// A holder was paused past its validity.
    pub paused: AtomicUsize,
    /// A client was paused during or after an acquisition.
    pub stalled: AtomicUsize,
    /// An acquisition was dropped in progress.
    pub dropped: AtomicUsize,
    /// An acquisition ended without a hold: it was dropped, there was no quorum, or the lock stayed taken.
    pub not_won: AtomicUsize,
    /// A hold was lost.
    pub lost: AtomicUsize,
    /// The store refused a write.
    pub refused: AtomicUsize,
}

pub struct Contender<'a> {
    pub number: usize,
    pub stage: &'a Stage,
    pub locks: Locks,
    pub random: Random,
    pub holds: Vec<Hold>,
}

impl Stage {
    /// `kinds` are the kinds of the clients.
    pub fn new(store: Store, kinds: impl Iterator<Item = String>) -> Stage {
        Stage {
            store,
            ended: AtomicBool::default(),
            keep_holds: AtomicBool::default(),
            keeping: AtomicUsize::default(),
            acquired: kinds.map(|kind| (kind, AtomicUsize::default())).collect(),
            counts: Counts::default(),
            overdue: Mutex::default(),
        }
    }
}

impl Stage {
    /// Waits until every client has acquired a lock. Ends `keep_holds`.
    pub fn until_all_acquire(&self, when: &str) {
        self.keep_holds.store(false, Relaxed);
        let before = self.acquired_by_each();
        for (number, (kind, _)) in self.acquired.iter().enumerate() {
            until_within(TIMEOUT, &format!("client {number}, {kind}, acquires a lock: {when}"), || {
                self.acquired_by_each()[number] > before[number]
            });
        }
    }

    /// Waits until the clients have acquired this many locks.
    pub fn until_more_are_granted(&self, count: usize) {
        let sum = || self.acquired_by_each().into_iter().sum::<usize>();
        let before = sum();
        until_within(TIMEOUT, "more locks are granted", || sum() >= before + count);
    }

    fn acquired_by_each(&self) -> Vec<usize> {
        self.acquired.iter().map(|(_, count)| count.load(Relaxed)).collect()
    }

    /// `begun` is the begin of the acquisition or release that has ended now.
    fn check_time(&self, what: &str, number: usize, begun: Instant) {
        let took = now().saturating_since(begun);
        if took > LONGEST_WAIT + MARGIN {
            self.overdue.lock().expect("no panic").push(format!("{what} of client {number}: {took:?}"));
        }
    }
}

impl Contender<'_> {
    pub async fn work(mut self) -> Vec<Hold> {
        while !self.stage.ended.load(Relaxed) {
            let resource = *self.random.of(&RESOURCES);
            let (begun, pauses) = (now(), self.random.once_in(25));
            let asked = at(begun);
            let acquired = self.acquire(resource, !pauses).await;
            self.stage.check_time("acquire", self.number, begun);
            match acquired {
                Some(held) => self.hold(resource, asked, held, pauses).await,
                None => _ = self.stage.counts.not_won.fetch_add(1, Relaxed),
            }
        }
        self.locks.flush().await;
        self.holds
    }

    async fn acquire(&mut self, resource: &str, renew: bool) -> Option<Held> {
        if self.random.once_in(40) {
            let (before, length) = (self.random_ms(20), self.random_ms(1_500));
            self.stage.counts.stalled.fetch_add(1, Relaxed);
            // Blocks the only thread of the runtime.
            tokio::spawn(async move {
                tokio::time::sleep(before).await;
                thread::sleep(length);
            });
        }
        let timeout = if self.random.once_in(20) { self.random_ms(30) } else { Duration::from_secs(60) };
        match tokio::time::timeout(timeout, self.locks.acquire(resource, renew)).await {
            Ok(held) => held,
            Err(_) => {
                self.stage.counts.dropped.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Writes under the hold, in time or too late, and releases it.
    async fn hold(&mut self, resource: &str, asked: At, held: Held, pauses: bool) {
        let since = at(now());
        let stage = self.stage;
        let fence = held.fence();
        let name = format!("{}:{}", self.number, self.holds.len());
        let write = || {
            if !stage.store.append(resource, fence, &name) {
                stage.counts.refused.fetch_add(1, Relaxed);
            }
        };
        stage.acquired[self.number].1.fetch_add(1, Relaxed);
        if pauses {
            stage.counts.paused.fetch_add(1, Relaxed);
            self.pause(resource, &held);
            write();
        } else {
            self.write_until_end(&held, write).await;
        }
        let until = at(now().min(held.valid_until()));
        let grant = Some(Grant { fence, at: since, until });
        let (key, mode) = (resource.to_string(), Mode::Exclusive);
        self.holds.push(Hold { key, token: name, mode, asked, grant, ended: None });
        let begun = now();
        self.locks.release(resource, held).await;
        stage.check_time("release", self.number, begun);
    }

    /// Writes until the hold has lasted for its planned length or is lost.
    async fn write_until_end(&mut self, held: &Held, write: impl Fn()) {
        let stage = self.stage;
        let until = now() + self.hold_length();
        let mut keeps = false;
        loop {
            write();
            tokio::time::sleep(self.random_ms(10)).await;
            if held.is_lost() {
                stage.counts.lost.fetch_add(1, Relaxed);
                break;
            }
            if stage.keep_holds.load(Relaxed) {
                if !keeps {
                    stage.keeping.fetch_add(1, Relaxed);
                }
                keeps = true;
            } else if now() >= until {
                break;
            }
        }
        stage.keeping.fetch_sub(usize::from(keeps), Relaxed);
    }

    /// Sleeps until the validity has ended and a newer holder has written. Returns earlier if the run ends,
    /// and after [`LONGEST_PAUSE`].
    fn pause(&self, resource: &str, held: &Held) {
        let (end, limit) = (held.valid_until(), now() + LONGEST_PAUSE);
        let overtaken = || now() > end && self.stage.store.is_past(resource, held.fence());
        while now() < limit && !overtaken() && !self.stage.ended.load(Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the length of a hold, mostly short.
    fn hold_length(&mut self) -> Duration {
        if self.random.once_in(20) { self.random_ms(1_500) } else { self.random_ms(5) }
    }

    fn random_ms(&mut self, max: usize) -> Duration {
        Duration::from_millis(self.random.below(max + 1) as u64)
    }
}

pub fn at(instant: Instant) -> At {
    instant.saturating_since(Instant::since_boot(Duration::ZERO)).as_micros() as At
}
