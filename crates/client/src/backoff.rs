//! Random, growing pauses, so that clients that collided do not collide again.

use std::time::Duration;

/// Draws the random numbers of a [`dlock_quorum::Backoff`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff(dlock_quorum::Backoff);

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Backoff(dlock_quorum::Backoff::new(first, longest))
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.0.next(rand::random())
    }
}
