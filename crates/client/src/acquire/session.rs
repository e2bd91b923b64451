//! The reentrant holds of one owner.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use dlock_quorum::Deadline;

use crate::clock::sleep_until;
use crate::hold::guard::Share;
use crate::sync::Mutex;

/// The owner of reentrant holds: a client and its clones. If the client already holds a resource, a task that
/// acquires it sends no request to the servers: the task gets another guard of the same hold.
#[derive(Default)]
pub(crate) struct Session(Mutex<HashMap<Vec<u8>, Slot>>);

/// The last hold of one resource. Locked while a task acquires the resource.
type Slot = Arc<AsyncMutex<Weak<Share>>>;

/// A locked slot. Only the task that has it may acquire the resource.
pub(crate) type Entry = OwnedMutexGuard<Weak<Share>>;

impl Session {
    /// Waits until no other task of this session is acquiring the resource. Returns `None` once the deadline
    /// has passed.
    pub(crate) async fn entry(&self, resource: &[u8], deadline: Deadline) -> Option<Entry> {
        let slot = self.slot(resource);
        match deadline {
            Deadline::NoWait => slot.try_lock_owned().ok(),
            Deadline::At(end) => tokio::select! {
                biased;
                entry = slot.lock_owned() => Some(entry),
                () = sleep_until(end) => None,
            },
            Deadline::Never => Some(slot.lock_owned().await),
        }
    }

    fn slot(&self, resource: &[u8]) -> Slot {
        let mut slots = self.0.lock();
        // Before the map grows, resources that no task holds or acquires are removed.
        if slots.len() == slots.capacity() {
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|share| share.strong_count() > 0)
            });
        }
        slots.entry(resource.to_vec()).or_default().clone()
    }
}
