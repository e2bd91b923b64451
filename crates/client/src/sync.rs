//! A mutex that does not remember panics.

use std::sync::{self, MutexGuard, PoisonError};

/// A [`sync::Mutex`] without poisoning: no code of this crate panics halfway through a change of a locked
/// value, so the value is sound even if a callback of the user has panicked.
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
