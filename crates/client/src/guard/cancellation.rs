//! Tells that a hold is lost.

use std::sync::Arc;

use crate::error::Lost;
use crate::guard::Guard;
use crate::guard::hold::{Hold, first_lost};

/// Tells when a hold is lost, or the first of several, to tasks that do not have the guard: see
/// [`Guard::cancellation`]. It keeps no lock: after the guard has released it there is nothing to tell.
#[derive(Debug, Clone)]
pub struct Cancellation(Arc<[Arc<Hold>]>);

impl Cancellation {
    pub(crate) fn of<'a>(guards: impl IntoIterator<Item = &'a Guard>) -> Cancellation {
        Cancellation(guards.into_iter().map(|guard| guard.hold().clone()).collect())
    }

    /// Whether the hold is lost. Looks at the clock.
    pub fn is_cancelled(&self) -> bool {
        self.0.iter().any(|hold| hold.state().loss.is_some())
    }

    /// Waits until the hold is lost and returns the reason, always before its validity ends.
    pub async fn cancelled(&self) -> Lost {
        first_lost(self.0.iter()).await.1
    }
}
