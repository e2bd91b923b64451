//! The wait for a lock, and the pauses between tries.

use dlock_quorum::Deadline;
use std::time::Duration;

use crate::clock::now;

/// How long to wait while another client holds the lock, or while servers are missing: down, silent, loading,
/// or in a grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait. Asks the servers once, and again as [`Retry`](crate::Retry) says if servers are
    /// missing.
    No,
    /// Waits at most this long, plus the time limit of two answers (`ClientBuilder::node_timeout`): the last
    /// one about the lock, and that about its holder.
    For(Duration),
    /// Waits until the lock is granted or the future is dropped. Fails if no majority has answered after the
    /// retries of [`Retry`](crate::Retry), because the addresses may be wrong. An error that passes (`BUSY`,
    /// `LOADING`, `NOREPLICAS`) is an answer.
    Forever,
}

impl Wait {
    /// Returns the end of a wait that begins now.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Wait::No => Deadline::NoWait,
            Wait::For(limit) => Deadline::At(now() + limit),
            Wait::Forever => Deadline::Never,
        }
    }
}

/// Random, growing pauses, so that clients that collided do not collide again. Supplies the random numbers
/// that [`dlock_quorum::Backoff`] takes as arguments.
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
