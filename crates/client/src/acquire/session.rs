//! The reentrant holds of one owner.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use dlock_quorum::Deadline;

use crate::clock::sleep_until;
use crate::hold::guard::Share;
use crate::sync::Mutex;

/// The owner of reentrant holds: a client and its clones. Entries are counted here, not by the servers.
#[derive(Default)]
pub(crate) struct Session(Mutex<HashMap<Vec<u8>, Entries>>);

type Entries = Arc<Turn<Weak<Share>>>;

/// The hold of one resource, if there is one. Only the owner of this may acquire it.
pub(crate) type Entry = OwnedMutexGuard<Weak<Share>>;

impl Session {
    /// Waits until nobody else of this session is acquiring the resource; `None` once the deadline has
    /// passed.
    pub(crate) async fn entry(&self, resource: &[u8], deadline: Deadline) -> Option<Entry> {
        let turn = self.turn(resource);
        match deadline {
            Deadline::NoWait => turn.try_lock_owned().ok(),
            Deadline::At(end) => tokio::select! {
                biased;
                entry = turn.lock_owned() => Some(entry),
                () = sleep_until(end) => None,
            },
            Deadline::Never => Some(turn.lock_owned().await),
        }
    }

    fn turn(&self, resource: &[u8]) -> Entries {
        let mut entries = self.0.lock();
        // Before the map grows, it drops what nobody holds or acquires any longer.
        if entries.len() == entries.capacity() {
            entries.retain(|_, turn| {
                Arc::strong_count(turn) > 1 || turn.try_lock().is_ok_and(|share| share.strong_count() > 0)
            });
        }
        entries.entry(resource.to_vec()).or_default().clone()
    }
}
