//! Which resources are contended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;
use dlock_quorum::Instant;
use dlock_quorum::Member;

/// How long a resource that was found taken counts as contended.
const MEMORY: Duration = Duration::from_secs(1);
/// How long clients queue at a later master before they look whether the first will do again.
const QUEUE_MEMORY: Duration = Duration::from_secs(2);

/// Resources that were found taken a short while ago. An attempt that may wait for one of them queues at
/// once: asking all masters first would briefly take votes from the waiter that has just been granted the
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Vec<u8>, Found>>);

#[derive(Debug)]
struct Found {
    contended_until: Instant,
    /// Where to queue, and until when.
    queue: Option<(Member, Instant)>,
    /// Until then nobody looks again whether others queue elsewhere.
    looked_until: Instant,
}

impl Contended {
    pub(crate) fn note(&self, resource: &[u8]) {
        self.change(resource, |found| found.contended_until = now() + MEMORY);
    }

    /// Records where others queue: see [`Acquisition::next_queue`](dlock_quorum::Acquisition::next_queue).
    pub(crate) fn note_queue(&self, resource: &[u8], queue: Member) {
        self.change(resource, |found| found.queue = Some((queue, now() + QUEUE_MEMORY)));
    }

    pub(crate) fn forget_queue(&self, resource: &[u8]) {
        self.change(resource, |found| found.queue = None);
    }

    /// Whether to look where others queue: one at a time, and not all the time.
    pub(crate) fn may_look(&self, resource: &[u8]) -> bool {
        let mut may = false;
        self.change(resource, |found| {
            may = found.looked_until <= now();
            if may {
                found.looked_until = now() + MEMORY;
            }
        });
        may
    }

    /// [`may_look`](Self::may_look) again: nothing suspicious was there.
    pub(crate) fn saw_nobody(&self, resource: &[u8]) {
        self.change(resource, |found| found.looked_until = now());
    }

    pub(crate) fn contains(&self, resource: &[u8]) -> bool {
        self.all().get(resource).is_some_and(|found| now() < found.contended_until)
    }

    pub(crate) fn queue(&self, resource: &[u8]) -> Option<Member> {
        let (queue, until) = self.all().get(resource)?.queue?;
        (now() < until).then_some(queue)
    }

    /// The same, if it is no older than that.
    pub(crate) fn queue_of_last(&self, age: Duration, resource: &[u8]) -> Option<Member> {
        let (queue, until) = self.all().get(resource)?.queue?;
        (now() + QUEUE_MEMORY <= until + age).then_some(queue)
    }

    fn change(&self, resource: &[u8], change: impl FnOnce(&mut Found)) {
        let mut all = self.all();
        // Before the map grows, it drops what has expired.
        if all.len() == all.capacity() {
            let is_past = |until: Instant| until <= now();
            all.retain(|_, found| {
                !is_past(found.contended_until) || found.queue.is_some_and(|(_, until)| !is_past(until))
            });
        }
        let new = || Found { contended_until: now(), queue: None, looked_until: now() };
        change(all.entry(resource.to_vec()).or_insert_with(new));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
