//! Which resources are in demand.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;
use crate::lease::Instant;

/// For so long a resource counts as contended that was found taken.
const MEMORY: Duration = Duration::from_secs(1);

/// Resources that were found taken a short while ago. Who wants one of them and would wait goes in line at once: to ask all
/// masters first would take votes away, for a moment, from whoever the line has just let through.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Vec<u8>, Instant>>);

impl Contended {
    pub(crate) fn note(&self, resource: &[u8]) {
        let mut found = self.found();
        // Each time that the room is used up, what has been forgotten makes room.
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
