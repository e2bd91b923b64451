//! The guards of several holds.

use futures_util::future::join_all;
use std::time::Duration;

use crate::error::{ExtendError, Lost, ReleaseError};
use crate::guard::hold::first_lost;
use crate::guard::{Cancellation, Guard};
use dlock_quorum::Instant;

/// Guards several holds: see [`Client::lock_all`](crate::Client::lock_all).
#[derive(Debug)]
#[must_use = "dropped guards release their locks"]
pub struct Guards(pub(crate) Vec<Guard>);

impl Guards {
    /// The guards, sorted by resource.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: no resource was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time left until the first of them ends.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Waits until the first of them is lost.
    pub async fn lost(&self) -> Lost {
        self.first_lost().await.1
    }

    /// Why the first of them was lost; `None` while all are held.
    pub fn loss(&self) -> Option<Lost> {
        self.iter().find_map(Guard::loss)
    }

    /// Tells when the first of them is lost, to tasks that do not have the guards.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of(self.iter())
    }

    /// Sets the lease of each to `ttl` from now, as [`Guard::extend`]. Returns until when all are valid, or
    /// the first error: then some of them may have the new lease.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        let extended = join_all(self.iter().map(|guard| guard.extend(ttl))).await;
        let first = Instant::since_boot(Duration::MAX);
        extended.into_iter().try_fold(first, |first, end| Ok(first.min(end?)))
    }

    /// Releases all of them; returns the first error, if any.
    pub async fn release(self) -> Result<(), ReleaseError> {
        join_all(self.0.into_iter().map(Guard::release)).await.into_iter().collect()
    }

    /// The guard that is lost first, and why.
    pub(crate) async fn first_lost(&self) -> (&Guard, Lost) {
        let (index, why) = first_lost(self.iter().map(Guard::hold)).await;
        (&self.0[index], why)
    }
}

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    /// The guards one by one, sorted by resource.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
