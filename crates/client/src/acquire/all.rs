//! Several locks, all or none.

use std::pin::Pin;

use crate::acquire::{Acquire, Async, none_if_taken};
use crate::clock::now;
use crate::error::{AcquireError, Lost};
use crate::hold::guard::{Guard, Guards};
use crate::reading::printable;
use crate::wait::Wait;

/// Acquires several locks, all or none: see [`Client::lock_all`](crate::Client::lock_all).
#[must_use = "nothing is acquired before it is awaited"]
pub struct AcquireAll<C = Async> {
    /// Sorted, without duplicates.
    pub(crate) resources: Vec<Vec<u8>>,
    /// The options of each lock. `each.resource` is not used.
    pub(crate) each: Acquire<C>,
}

impl<C> AcquireAll<C> {
    /// Sets the options of each lock: `.each(|lock| lock.ttl(..).shared())`. The limit of the wait
    /// is for all locks together.
    pub fn each(mut self, options: impl FnOnce(Acquire<C>) -> Acquire<C>) -> Self {
        self.each = options(self.each);
        self
    }

    /// Returns the same locks and options for another kind of caller (see [`Async`]).
    pub(crate) fn for_caller<D>(self) -> AcquireAll<D> {
        AcquireAll { resources: self.resources, each: self.each.for_caller() }
    }
}

impl AcquireAll {
    /// Acquires all locks, or releases the acquired ones.
    pub async fn acquire(self) -> Result<Guards, AcquireError> {
        let end = match self.each.options.wait {
            Wait::For(limit) => Some(now() + limit),
            Wait::No | Wait::Forever => None,
        };
        let mut guards = Guards(Vec::with_capacity(self.resources.len()));
        for resource in self.resources {
            let mut next = self.each.for_resource(resource);
            if let Some(end) = end {
                next = next.wait(Wait::For(end.saturating_since(now())));
            }
            let acquired = tokio::select! {
                acquired = next.acquire() => acquired,
                (lost, why) = guards.first_lost() => Err(lost_meanwhile(lost, why)),
            };
            // If the runtime was blocked, both branches may be ready, and `select!` may choose `acquired`.
            let lost = guards.iter().find_map(|guard| Some(lost_meanwhile(guard, guard.loss()?)));
            match lost.map_or(acquired, Err) {
                Ok(guard) => guards.0.push(guard),
                Err(why) => {
                    // A release that fails continues in the background, until the lease ends the hold.
                    guards.discard().await;
                    return Err(why);
                }
            }
        }
        Ok(guards)
    }

    /// [`acquire`](Self::acquire) without waiting: `None` if another client holds one of the locks.
    pub async fn try_acquire(self) -> Result<Option<Guards>, AcquireError> {
        none_if_taken(self.each(|lock| lock.wait(Wait::No)).acquire().await)
    }
}

fn lost_meanwhile(lost: &Guard, why: Lost) -> AcquireError {
    AcquireError::LostMeanwhile { resource: printable(lost.resource()), why }
}

impl IntoFuture for AcquireAll {
    type Output = Result<Guards, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// [`acquire`](AcquireAll::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
