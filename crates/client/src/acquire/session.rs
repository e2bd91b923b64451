//! Re-entrant holds of one owner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::acquire::patience::Patience;
use crate::clock::sleep_until;
use crate::guard::Share;

/// The owner of re-entrant holds: a client and its clones. What it holds is counted here, not by the servers.
#[derive(Default)]
pub(crate) struct Session(Mutex<HashMap<Vec<u8>, Entries>>);

type Entries = Arc<Turn<Weak<Share>>>;

/// The hold of one resource, if there is one. Who has this is the only one who acquires it.
pub(crate) type Entry = OwnedMutexGuard<Weak<Share>>;

impl Session {
    /// Waits until nobody else of this session is about to acquire the resource; None when patience is over.
    pub(crate) async fn entry(&self, resource: &[u8], patience: Patience) -> Option<Entry> {
        let turn = self.turn(resource);
        match patience {
            Patience::None => turn.try_lock_owned().ok(),
            Patience::Until(end) => tokio::select! {
                biased;
                entry = turn.lock_owned() => Some(entry),
                () = sleep_until(end) => None,
            },
            Patience::Endless => Some(turn.lock_owned().await),
        }
    }

    fn turn(&self, resource: &[u8]) -> Entries {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody holds or acquires any more is forgotten, each time that the room is used up.
        if entries.len() == entries.capacity() {
            entries.retain(|_, turn| {
                Arc::strong_count(turn) > 1 || turn.try_lock().is_ok_and(|share| share.strong_count() > 0)
            });
        }
        entries.entry(resource.to_vec()).or_default().clone()
    }
}
