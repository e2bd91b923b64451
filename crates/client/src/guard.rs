//! A hold, as long as its guard lives.

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

/// A hold.
#[must_use = "a dropped guard releases its lock"]
pub struct Guard {
    share: Arc<Share>,
}

/// What the guards of one hold have in common: with the last of them it is given back.
pub(crate) struct Share(pub(crate) Arc<Hold>);

impl Drop for Share {
    fn drop(&mut self) {
        // Dropped, its releases go on in the background.
        drop(self.0.give_back());
    }
}

/// A hold that goes on without its guard: see [`Guard::forget`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What is held.
    pub resource: Vec<u8>,
    /// By whom.
    pub token: Token,
    /// Its fence, if it has one.
    pub fence: Option<Fence>,
    /// Until when.
    pub valid_until: Instant,
}

impl Guard {
    /// The number of the hold: greater than that of every earlier hold of the resource. Write it beside what the lock
    /// protects, and refuse lower ones. None in a quorum unless it was asked for: [`fenced`](crate::Acquire::fenced).
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence
    }

    /// What is held.
    pub fn resource(&self) -> &[u8] {
        &self.hold().request.resource
    }

    /// Whose hold it is on the servers.
    pub fn token(&self) -> &Token {
        &self.hold().request.token
    }

    /// Until when the hold is valid, on the clock of [`crate::now`].
    pub fn valid_until(&self) -> Instant {
        self.hold().state().valid_until
    }

    /// What is left until then; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.hold().state();
        match state.loss {
            None => state.valid_until.saturating_since(now()),
            Some(_) => Duration::ZERO,
        }
    }

    /// Returns when the hold is lost, with the reason; always before its validity ends.
    pub async fn lost(&self) -> Lost {
        self.hold().lost.cancelled().await;
        self.loss().unwrap_or(Lost::Ended)
    }

    /// Why the hold was lost; None while it is not.
    pub fn loss(&self) -> Option<Lost> {
        self.hold().state().loss
    }

    /// Cancelled when the hold is lost, for work that takes such a token.
    pub fn cancellation(&self) -> CancellationToken {
        // A child: whoever cancels it has not lost the hold.
        self.hold().lost.child_token()
    }

    /// Sets the lease to `ttl` from now, longer or shorter; renewals go on with it. Answers until when the hold is valid.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        let extended = self.hold().extend(ttl, Duration::MAX).await;
        self.hold().changed.notify_one();
        extended
    }

    /// Ends the hold. Returns when a majority has confirmed it; the others are told in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.share) {
            Some(share) => share.0.release().await,
            None => Ok(()),
        }
    }

    /// Lets the hold go on without this guard, until its lease ends: nobody renews or releases it but by
    /// [`Client::extend`](crate::Client::extend) and [`Client::release`](crate::Client::release). None where that is impossible: other
    /// guards share the hold, or its connection carries it (ephemeral); it is released then.
    pub fn forget(self) -> Option<Kept> {
        let share = Arc::into_inner(self.share)?;
        let hold = &share.0;
        if hold.request.ephemeral {
            return None;
        }
        hold.leave();
        let (resource, token) = (hold.request.resource.clone(), hold.request.token.clone());
        Some(Kept { resource, token, fence: hold.fence, valid_until: hold.state().valid_until })
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

/// Several holds that are one: see [`Client::lock_all`](crate::Client::lock_all).
#[derive(Debug)]
#[must_use = "dropped guards release their locks"]
pub struct Guards(pub(crate) Vec<Guard>);

impl Guards {
    /// The holds, in the sorted order of their resources.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// What is left until the first of them ends.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Returns when the first of them is lost.
    pub async fn lost(&self) -> Lost {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// Ends all of them; the first error, if any.
    pub async fn release(self) -> Result<(), ReleaseError> {
        join_all(self.0.into_iter().map(Guard::release)).await.into_iter().collect()
    }
}
