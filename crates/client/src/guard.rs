//! The guard of a hold.

pub(crate) mod extend;
pub(crate) mod hold;
pub(crate) mod release;
pub(crate) mod renewal;

use futures_util::future::{join_all, select_all};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::{Fence, Token};
use tokio_util::sync::CancellationToken;

use crate::clock::now;
use crate::error::{ExtendError, Lost, ReleaseError};
use crate::guard::hold::Hold;
use crate::lease::Instant;

/// Guards a hold: it is renewed in the background, and released when the last guard of it is dropped.
#[must_use = "a dropped guard releases its lock"]
pub struct Guard {
    share: Arc<Share>,
}

/// Shared by the guards of one hold; the last of them releases it.
pub(crate) struct Share(pub(crate) Arc<Hold>);

impl Drop for Share {
    fn drop(&mut self) {
        // The releases go on in the background.
        drop(self.0.give_back());
    }
}

/// A hold without a guard: see [`Guard::forget`].
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenHold {
    /// The locked resource.
    pub resource: Vec<u8>,
    /// Its token.
    pub token: Token,
    /// Its fence, if it has one.
    pub fence: Option<Fence>,
    /// Until when it is valid, on the clock of [`crate::now`].
    pub valid_until: Instant,
}

impl Guard {
    /// The fencing token of the hold (its fence): greater than that of every earlier hold of the resource.
    /// Store it with whatever the lock protects, and reject lower ones. `None` in a quorum unless requested
    /// by [`fenced`](crate::Acquire::fenced).
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence
    }

    /// The locked resource.
    pub fn resource(&self) -> &[u8] {
        &self.hold().request.resource
    }

    /// The token that owns the hold on the servers.
    pub fn token(&self) -> &Token {
        &self.hold().request.token
    }

    /// Until when the hold is valid, on the clock of [`crate::now`].
    pub fn valid_until(&self) -> Instant {
        self.hold().state().valid_until
    }

    /// The time left until then; zero once the hold is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.hold().state();
        match state.loss {
            None => state.valid_until.saturating_since(now()),
            Some(_) => Duration::ZERO,
        }
    }

    /// Waits until the hold is lost and returns the reason, always before its validity ends.
    pub async fn lost(&self) -> Lost {
        self.hold().lost().await
    }

    /// Why the hold was lost; `None` while it is held.
    pub fn loss(&self) -> Option<Lost> {
        self.hold().state().loss
    }

    /// A token that is cancelled when the hold is lost.
    pub fn cancellation(&self) -> CancellationToken {
        // Looks at the clock. A child token: cancelling it must not look like a lost hold.
        let _ = self.hold().state();
        self.hold().lost.child_token()
    }

    /// Sets the lease to `ttl` from now, longer or shorter, also for the renewals to come. Returns until when
    /// the hold is valid.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        let extended = self.hold().extend(ttl, Duration::MAX).await;
        self.hold().changed.notify_one();
        extended
    }

    /// Releases the lock. Returns once a majority has confirmed it; the others are told in the background.
    ///
    /// If other guards share the hold ([`reentrant`](crate::Acquire::reentrant)), this only drops the guard.
    pub async fn release(self) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.share) {
            Some(share) => share.0.release().await,
            None => Ok(()),
        }
    }

    /// Drops the guard without releasing the lock. The hold lasts until its lease ends, unless
    /// [`Client::extend`](crate::Client::extend) renews or [`Client::release`](crate::Client::release) ends
    /// it.
    ///
    /// Returns `None` if the hold cannot outlive its guard: an ephemeral hold is released, and one that other
    /// guards share stays with them.
    pub fn forget(self) -> Option<ForgottenHold> {
        let share = Arc::into_inner(self.share)?;
        let hold = &share.0;
        if hold.request.ephemeral {
            return None;
        }
        hold.leave();
        let (resource, token) = (hold.request.resource.clone(), hold.request.token.clone());
        Some(ForgottenHold { resource, token, fence: hold.fence, valid_until: hold.state().valid_until })
    }

    pub(crate) fn new(share: Arc<Share>) -> Guard {
        Guard { share }
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.share.0
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = crate::reading::shown(self.resource());
        let (fence, remaining) = (self.fence(), self.remaining());
        let mut shown = f.debug_struct("Guard");
        shown.field("resource", &resource).field("token", self.token()).field("fence", &fence);
        shown.field("remaining", &remaining).finish()
    }
}

/// Guards several holds: see [`Client::lock_all`](crate::Client::lock_all).
#[derive(Debug)]
#[must_use = "dropped guards release their locks"]
pub struct Guards(pub(crate) Vec<Guard>);

impl Guards {
    /// The guards, sorted by resource.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// The time left until the first of them ends.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Waits until the first of them is lost.
    pub async fn lost(&self) -> Lost {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// Releases all of them; returns the first error, if any.
    pub async fn release(self) -> Result<(), ReleaseError> {
        join_all(self.0.into_iter().map(Guard::release)).await.into_iter().collect()
    }
}
