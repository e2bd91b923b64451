//! What the locks protect: a store that checks fences.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::record::Write;

/// Takes appends in the order in which they come, and refuses those with a lower fence than it has seen.
#[derive(Default)]
pub struct Store(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    greatest: HashMap<String, i64>,
    log: Vec<Write>,
}

impl Store {
    /// Whether it was accepted.
    pub fn append(&self, resource: &str, fence: i64, hold: &str) -> bool {
        let mut inner = self.lock();
        let greatest = inner.greatest.entry(resource.to_string()).or_default();
        let accepted = fence >= *greatest;
        *greatest = fence.max(*greatest);
        inner.log.push(Write { resource: resource.to_string(), fence, hold: hold.to_string(), accepted });
        accepted
    }

    /// Somebody with a greater fence has written.
    pub fn is_past(&self, resource: &str, fence: i64) -> bool {
        self.lock().greatest.get(resource).is_some_and(|greatest| *greatest > fence)
    }

    pub fn into_log(self) -> Vec<Write> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).log
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
