//! Which resources are contended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;
use crate::lease::Instant;

/// How long a resource that was found taken counts as contended.
const MEMORY: Duration = Duration::from_secs(1);

/// Resources that were found taken a short while ago. An attempt that may wait for one of them queues at
/// once: asking all masters first would briefly take votes from the waiter that has just been granted the
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Vec<u8>, Instant>>);

impl Contended {
    pub(crate) fn note(&self, resource: &[u8]) {
        let mut found = self.found();
        // Before the map grows, it drops what has expired.
        if found.len() == found.capacity() {
            found.retain(|_, until| now() < *until);
        }
        found.insert(resource.to_vec(), now() + MEMORY);
    }

    pub(crate) fn contains(&self, resource: &[u8]) -> bool {
        self.found().get(resource).is_some_and(|until| now() < *until)
    }

    fn found(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
