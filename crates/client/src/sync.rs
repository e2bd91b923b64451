//! A mutex that does not remember panics.

use std::sync::{self, MutexGuard, PoisonError};

/// A [`sync::Mutex`] that can be locked after a panic. A locked value is never half changed by a panic, such
/// as one in a callback of the user, because no code of this crate panics in the middle of a change.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
