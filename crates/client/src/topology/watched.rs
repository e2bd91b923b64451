//! The resources that this client holds, and the servers' messages about them: each connection tracks the
//! keys that were read over it, and receives a message when another client changes one (CLIENT TRACKING).

use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

use crate::sync::Mutex;

/// The held resources, each with the [`Notify`] that makes its hold check whether it still exists.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<HashMap<Vec<u8>, Arc<Notify>>>);

impl Watched {
    /// Adds a hold, in place of an earlier hold of the resource. One entry for each resource is enough,
    /// because only an exclusive hold needs its entry. When a second hold of a resource is added, the earlier
    /// one has ended or is not exclusive. The client checks no shared hold after a message, because the key
    /// of a shared lock changes whenever one of its holders renews.
    pub(crate) fn add(&self, resource: &[u8], changed: &Arc<Notify>) {
        self.0.lock().insert(resource.to_vec(), changed.clone());
    }

    pub(crate) fn remove(&self, resource: &[u8], changed: &Arc<Notify>) {
        let mut all = self.0.lock();
        if all.get(resource).is_some_and(|current| Arc::ptr_eq(current, changed)) {
            all.remove(resource);
        }
    }

    pub(crate) fn notify(&self, resource: &[u8]) {
        self.0.lock().get(resource).iter().for_each(|changed| changed.notify_one());
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
            (PushKind::Invalidate | PushKind::Disconnection, _) => {
                self.0.lock().values().for_each(|changed| changed.notify_one());
            }
            _ => {}
        }
    }
}
