//! What the servers push about resources that this client holds: each connection tracks the keys that were
//! read over it, and tells when somebody else has changed one (CLIENT TRACKING).

use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

use crate::sync::Mutex;

/// The resources that are held, each with what to notify when it may have changed.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<HashMap<Vec<u8>, Arc<Notify>>>);

impl Watched {
    /// A new hold takes the place of an earlier one, which has ended, or is shared and needs none.
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

    pub(crate) fn pushed(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                for key in keys {
                    if let Value::BulkString(key) = key {
                        self.notify(key);
                    }
                }
            }
            // Null: all keys, by a flush. And a server forgets with a connection what it was to tell over it:
            // it is to be asked again.
            (PushKind::Invalidate | PushKind::Disconnection, _) => {
                self.0.lock().values().for_each(|changed| changed.notify_one());
            }
            _ => {}
        }
    }
}
