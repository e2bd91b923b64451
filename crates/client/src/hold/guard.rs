//! The guards of holds, and [`Cancellation`], by which tasks without a guard watch for the loss of a hold.

use std::fmt;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_protocol::{Fence, Token};
use dlock_quorum::Instant;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::clock::now;
use crate::error::{AcquireError, ExtendError, Lost, ReleaseError};
use crate::hold::{Hold, first_lost};
use crate::reading::printable;
use crate::wait::Wait;

/// Guards a hold. The hold is renewed in the background, and released when its last guard is dropped.
#[must_use = "a dropped guard releases its lock"]
pub struct Guard {
    share: Arc<Share>,
}

/// Shared by the guards of one hold. The last of them releases it.
pub(crate) struct Share(pub(crate) Arc<Hold>);

impl Drop for Share {
    fn drop(&mut self) {
        // The releases continue in the background.
        drop(self.0.begin_release(self.0.closed_until));
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
    /// End of its validity, on the clock of [`crate::now`].
    pub valid_until: Instant,
}

impl Guard {
    /// Returns the fencing token of the hold (its fence): greater than that of every earlier hold of the
    /// resource. Store it with the data that the lock protects, and reject lower ones. `None` in a quorum
    /// unless requested by [`fenced`](crate::Acquire::fenced).
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence
    }

    /// Returns the locked resource.
    pub fn resource(&self) -> &[u8] {
        &self.hold().request.resource
    }

    /// Returns the token that owns the hold on the servers.
    pub fn token(&self) -> &Token {
        &self.hold().request.token
    }

    /// Returns the end of the hold's validity, on the clock of [`crate::now`].
    pub fn valid_until(&self) -> Instant {
        self.hold().state().valid_until
    }

    /// Returns the time left until the validity ends. Zero once the hold is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.hold().state();
        match state.loss {
            None => state.valid_until.saturating_since(now()),
            Some(_) => Duration::ZERO,
        }
    }

    /// Waits until the hold is lost and returns the reason. Returns before the hold's validity ends, unless
    /// the process was paused.
    pub async fn lost(&self) -> Lost {
        self.hold().lost().await
    }

    /// Returns the reason why the hold was lost. `None` means that it is held.
    pub fn loss(&self) -> Option<Lost> {
        self.hold().state().loss
    }

    /// Returns a watch on the loss of the hold, for tasks that do not have the guard.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of([self])
    }

    /// Sets the lease to `ttl` from now, longer or shorter, for the following renewals too. Returns the end
    /// of the hold's validity.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        self.hold().extend(ttl).await
    }

    /// Turns an exclusive hold into a shared one, which lets waiting sharers in. A shared hold stays as it
    /// is. The fence and the validity stay. Requires that no other guard shares the hold
    /// ([`reentrant`](crate::Acquire::reentrant)).
    ///
    /// The hold counts as shared from the call on, whatever the outcome. On [`ExtendError::Unconfirmed`], or
    /// if the future was dropped, masters may still keep sharers out. Call `downgrade` again to let them in.
    pub async fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.hold().downgrade(|| self.check_only_guard()).await
    }

    /// Turns a shared hold into an exclusive one once no other hold is left. An exclusive hold stays as it
    /// is. The fence and the validity stay. The upgrade waits ahead of all others in the queue, and keeps the
    /// shared hold meanwhile. If another sharer waits for an upgrade already, the error is
    /// [`AcquireError::Deadlock`]. On an error, or if the future is dropped, the hold stays shared.
    ///
    /// Requires a single server, and that no other guard shares the hold. Over a quorum, release the shared
    /// hold and acquire again. A master that missed an upgrade would still admit sharers, and the
    /// client would not notice, because EXTEND does not report the mode. That master and one that forgot the
    /// hold could together give a sharer a majority.
    ///
    /// An upgrade also fails if the connection broke before the answer to an earlier downgrade: the server
    /// may still carry out the downgrade.
    pub async fn upgrade(&mut self, wait: Wait) -> Result<(), AcquireError> {
        self.check_only_guard().map_err(AcquireError::Option)?;
        self.hold().upgrade(wait).await
    }

    /// Releases the lock. Returns once a majority has confirmed it; the other masters are asked in the
    /// background.
    ///
    /// If other guards share the hold ([`reentrant`](crate::Acquire::reentrant)), this only drops the guard.
    pub async fn release(self) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.share) {
            Some(share) => share.0.release(share.0.closed_until).await,
            None => Ok(()),
        }
    }

    /// [`release`](Self::release), and keeps the lock closed: no client is granted the lock for `delay` more,
    /// 0 to the servers' `dlock.max-ttl`, or until [`at_least`](crate::Acquire::at_least) has passed. Use
    /// [`release_delay`](crate::Acquire::release_delay) with the acquisition: it checks that the servers know
    /// such a delay.
    pub async fn release_with_delay(self, delay: Duration) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.share) {
            Some(share) => share.0.release(share.0.closed_until.max(Some(now() + delay))).await,
            None => Ok(()),
        }
    }

    /// Releases a lock for which the caller did nothing: without a delay.
    pub(crate) async fn discard(self) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.share) {
            Some(share) => share.0.release(None).await,
            None => Ok(()),
        }
    }

    /// Drops the guard without releasing the lock. The hold lasts until its lease ends, unless
    /// [`Client::extend`](crate::Client::extend) renews it or [`Client::release`](crate::Client::release)
    /// ends it. A request of the acquisition that is not sent yet is cancelled, so first await
    /// [`Client::flush`](crate::Client::flush) if more than a majority of the masters should have the hold.
    ///
    /// Returns `None` if the hold cannot outlast its guard: an ephemeral hold is released, and a hold with
    /// other guards stays with them.
    pub fn forget(self) -> Option<ForgottenHold> {
        let share = Arc::into_inner(self.share)?;
        let hold = &share.0;
        if hold.request.ephemeral {
            return None;
        }
        hold.end_without_release();
        let (resource, token) = (hold.request.resource.clone(), hold.request.token.clone());
        Some(ForgottenHold { resource, token, fence: hold.fence, valid_until: hold.state().valid_until })
    }

    /// Returns the runtime of the client's thread.
    pub(crate) fn runtime(&self) -> Handle {
        self.hold().service.background.runtime.clone()
    }

    /// Returns another guard of the hold.
    pub(crate) fn share(&self) -> Guard {
        Guard::new(self.share.clone())
    }

    pub(crate) fn new(share: Arc<Share>) -> Guard {
        Guard { share }
    }

    /// Returns what [`Guard::new`] can make another guard of, as long as there is a guard.
    pub(crate) fn weak(&self) -> Weak<Share> {
        Arc::downgrade(&self.share)
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.share.0
    }

    fn check_only_guard(&self) -> Result<(), String> {
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
        let resource = printable(self.resource());
        let (fence, remaining) = (self.fence(), self.remaining());
        let mut debug = f.debug_struct("Guard");
        debug.field("resource", &resource).field("token", self.token()).field("fence", &fence);
        debug.field("remaining", &remaining).finish()
    }
}

/// Guards several holds: see [`Client::lock_all`](crate::Client::lock_all) and
/// [`Client::lock_path`](crate::Client::lock_path).
#[derive(Debug)]
#[must_use = "dropped guards release their locks"]
pub struct Guards {
    pub(crate) guards: Vec<Guard>,
    /// How many of the first guards are those of the ancestors of a path.
    pub(crate) ancestors: usize,
}

impl Guards {
    /// Returns the guards, sorted by resource.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter()
    }

    /// Returns the number of guards.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// Returns true if there are no guards, because no resource was given.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// Returns the shortest time left until the validity of one of the holds ends.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Waits until one of the holds is lost, and returns the reason.
    pub async fn lost(&self) -> Lost {
        first_lost(self.iter().map(Guard::hold)).await.1
    }

    /// Returns the reason why one of the holds was lost. `None` means that all are held.
    pub fn loss(&self) -> Option<Lost> {
        self.iter().find_map(Guard::loss)
    }

    /// Returns a watch on the first loss of one of the holds, for tasks that do not have the guards.
    pub fn cancellation(&self) -> Cancellation {
        Cancellation::of(self.iter())
    }

    /// Sets the lease of each hold to `ttl` from now, like [`Guard::extend`]. Returns the time until which
    /// all holds are valid. After an error, some of them may have the new lease.
    pub async fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        let extended = join_all(self.iter().map(|guard| guard.extend(ttl))).await;
        let first = Instant::since_boot(Duration::MAX);
        extended.into_iter().try_fold(first, |first, end| Ok(first.min(end?)))
    }

    /// Releases all locks, like [`Guard::release_with_delay`]. The delay of a path does not close its
    /// ancestors. Returns the first error, if any.
    pub async fn release_with_delay(self, delay: Duration) -> Result<(), ReleaseError> {
        let ancestors = self.ancestors;
        let delay_of = |index| if index < ancestors { Duration::ZERO } else { delay };
        let guards = self.guards.into_iter().enumerate();
        let released = guards.map(|(index, guard)| guard.release_with_delay(delay_of(index)));
        join_all(released).await.into_iter().collect()
    }

    /// Releases all locks. Returns the first error, if any.
    pub async fn release(self) -> Result<(), ReleaseError> {
        join_all(self.guards.into_iter().map(Guard::release)).await.into_iter().collect()
    }
}

/// Guards that an acquisition has so far. If it fails or its future is dropped, the locks are released
/// without a delay: the caller did nothing for them.
#[derive(Default)]
pub(crate) struct Unused(pub(crate) Vec<Guard>);

impl Drop for Unused {
    fn drop(&mut self) {
        for share in self.0.drain(..).filter_map(|guard| Arc::into_inner(guard.share)) {
            // The release continues in the background.
            drop(share.0.begin_release(None));
        }
    }
}

impl Unused {
    /// Returns the guards for the caller.
    pub(crate) fn into_guards(mut self) -> Vec<Guard> {
        mem::take(&mut self.0)
    }

    /// Releases the locks. A release that fails continues in the background, until the lease ends the hold.
    pub(crate) async fn discard(self) {
        join_all(self.into_guards().into_iter().map(Guard::discard)).await;
    }

    /// Waits until a guard is lost, and returns it with the reason.
    pub(crate) async fn first_lost(&self) -> (&Guard, Lost) {
        let (index, why) = first_lost(self.0.iter().map(Guard::hold)).await;
        (&self.0[index], why)
    }
}

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    /// Returns the guards one by one, sorted by resource.
    fn into_iter(self) -> Self::IntoIter {
        self.guards.into_iter()
    }
}

/// Watches the loss of a hold, or of the first of several, for tasks that do not have the guard: see
/// [`Guard::cancellation`]. A watch holds no lock, and reports no loss after the guard has released the lock.
#[derive(Debug, Clone)]
pub struct Cancellation(Arc<[Arc<Hold>]>);

impl Cancellation {
    pub(crate) fn of<'a>(guards: impl IntoIterator<Item = &'a Guard>) -> Cancellation {
        Cancellation(guards.into_iter().map(|guard| guard.hold().clone()).collect())
    }

    /// Returns true if the hold is lost. Reads the clock, so that a hold past its validity counts as lost,
    /// even just after a pause of the process.
    pub fn is_cancelled(&self) -> bool {
        self.0.iter().any(|hold| hold.state().loss.is_some())
    }

    /// Waits until the hold is lost and returns the reason. Returns before the hold's validity ends, unless
    /// the process was paused.
    pub async fn cancelled(&self) -> Lost {
        first_lost(self.0.iter()).await.1
    }
}
