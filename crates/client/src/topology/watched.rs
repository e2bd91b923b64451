//! The resources that this client holds, and the servers' messages about them: each connection tracks the
//! keys that were read over it, and receives a message when another client changes one (CLIENT TRACKING).

use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::sync::Mutex;

/// The held resources.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// By resource: makes its hold check whether it still exists.
    changed: Mutex<HashMap<Vec<u8>, Arc<Notify>>>,
    owned: Mutex<OwnedHolds>,
}

/// The holds of named owners, by resource and owner.
type OwnedHolds = HashMap<(Vec<u8>, Vec<u8>), Vec<Ends>>;

/// The tokens of which each ends a hold.
type Ends = [CancellationToken; 2];

fn is_held(ends: &Ends) -> bool {
    !ends.iter().any(CancellationToken::is_cancelled)
}

impl Watched {
    /// Adds a hold, in place of an earlier hold of the resource. One entry for each resource is enough,
    /// because only an exclusive hold needs its entry. When a second hold of a resource is added, the earlier
    /// one has ended or is not exclusive. The client checks no shared hold after a message, because the key
    /// of a shared lock changes whenever one of its holders renews.
    pub(crate) fn add(&self, resource: &[u8], changed: &Arc<Notify>) {
        self.changed.lock().insert(resource.to_vec(), changed.clone());
    }

    pub(crate) fn remove(&self, resource: &[u8], changed: &Arc<Notify>) {
        let mut all = self.changed.lock();
        if all.get(resource).is_some_and(|current| Arc::ptr_eq(current, changed)) {
            all.remove(resource);
        }
    }

    pub(crate) fn notify(&self, resource: &[u8]) {
        self.changed.lock().get(resource).iter().for_each(|changed| changed.notify_one());
    }

    pub(crate) fn on_push(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                for key in keys {
                    if let Value::BulkString(key) = key {
                        self.notify(key);
                    }
                }
            }
            // Null instead of keys means all keys (FLUSHALL). When a connection closes, its tracking ends, so
            // all holds are checked.
            (PushKind::Invalidate | PushKind::Disconnection, _) => self.check_all(),
            _ => {}
        }
    }

    /// Makes every hold check whether it still exists.
    pub(crate) fn check_all(&self) {
        self.changed.lock().values().for_each(|changed| changed.notify_one());
    }

    /// Records a hold of a named owner, until one of the tokens `ends` is cancelled.
    pub(crate) fn add_owned(&self, resource: &[u8], owner: &[u8], ends: Ends) {
        let mut owned = self.owned.lock();
        // Before the map grows, the holds that have ended are removed.
        if owned.len() == owned.capacity() {
            owned.retain(|_, holds| holds.iter().any(is_held));
        }
        let holds = owned.entry((resource.to_vec(), owner.to_vec())).or_default();
        holds.retain(is_held);
        holds.push(ends);
    }

    /// Returns true if this client holds the resource for the owner.
    pub(crate) fn is_held_by(&self, resource: &[u8], owner: &[u8]) -> bool {
        let owned = self.owned.lock();
        owned.get(&(resource.to_vec(), owner.to_vec())).is_some_and(|holds| holds.iter().any(is_held))
    }
}
