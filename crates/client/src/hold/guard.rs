//! The guard of a hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::{Fence, Token};
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::clock::now;
use crate::error::{AcquireError, ExtendError, Lost, ReleaseError};
use crate::hold::{Hold, first_lost};
use crate::reading::shown;
use crate::wait::Wait;
use dlock_quorum::Instant;

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

    /// Tells when the hold is lost, to tasks that do not have the guard.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of([self])
    }

    /// Sets the lease to `ttl` from now, longer or shorter, also for the renewals to come. Returns until when
    /// the hold is valid.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        self.hold().extend(ttl).await
    }

    /// Turns an exclusive hold into a shared one, which lets waiting sharers in; a shared one stays as it is.
    /// The fence and the validity stay. Requires that no other guard shares the hold
    /// ([`reentrant`](crate::Acquire::reentrant)).
    ///
    /// The hold counts as shared from the call on, whatever comes of it: on [`ExtendError::Unconfirmed`], or
    /// if the future was dropped, masters may still keep sharers out, and you can call it again.
    pub async fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.hold().downgrade(|| self.only_guard()).await
    }

    /// Turns a shared hold into an exclusive one once it is the only one; an exclusive one stays as it is.
    /// The fence and the validity stay. It waits ahead of all others in the queue, and the shared hold is
    /// kept meanwhile; if another sharer waits like that already, this is a [`AcquireError::Deadlock`]. On an
    /// error, or if the future is dropped, the hold stays shared.
    ///
    /// Requires a single server, and that no other guard shares the hold. Over a quorum, release the shared
    /// hold and acquire again: EXTEND does not tell the mode, so a master that missed the upgrade would go on
    /// extending a hold that counts as exclusive. With that master, and one that forgot the hold, another
    /// client could have a majority of shared votes at the same time.
    ///
    /// It also fails if the connection broke before the answer to a downgrade: that may still be carried out.
    pub async fn upgrade(&mut self, wait: Wait) -> Result<(), AcquireError> {
        self.only_guard().map_err(AcquireError::Option)?;
        self.hold().upgrade(wait).await
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

    /// Of the client's thread.
    pub(crate) fn runtime(&self) -> Handle {
        self.hold().service.background.runtime.clone()
    }

    pub(crate) fn new(share: Arc<Share>) -> Guard {
        Guard { share }
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.share.0
    }

    fn only_guard(&self) -> Result<(), String> {
        match Arc::strong_count(&self.share) {
            1 => Ok(()),
            guards => {
                Err(format!("{guards} guards share the hold: drop the others before changing its mode"))
            }
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = shown(self.resource());
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
