//! The locks that were contended lately.

use std::collections::HashMap;

use dlock_quorum::Contention;

use crate::clock::now;
use crate::sync::Mutex;

/// What a client remembers of each contended lock, by resource.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Vec<u8>, Contention>>);

impl Contended {
    pub(crate) fn get(&self, resource: &[u8]) -> Contention {
        self.0.lock().get(resource).copied().unwrap_or_default()
    }

    /// Lets `change` read and change what is remembered of the lock.
    pub(crate) fn update<T>(&self, resource: &[u8], change: impl FnOnce(&mut Contention) -> T) -> T {
        let mut all = self.0.lock();
        let before = all.get(resource).copied().unwrap_or_default();
        let mut after = before;
        let outcome = change(&mut after);
        if after != before {
            // Before the map grows, it drops what has expired.
            if all.len() == all.capacity() {
                let now = now();
                all.retain(|_, known| !known.is_over(now));
            }
            all.insert(resource.to_vec(), after);
        }
        outcome
    }
}
