//! A hold, which its guards share: its validity, and the events that extend or end it.
//!
//! Invariant: `Hold::state` reads the clock first. Past its validity a hold is lost, even if its renewal has
//! not run.

pub(crate) mod extend;
pub(crate) mod guard;
mod mode;
pub(crate) mod release;
pub(crate) mod renewal;

use dlock_protocol::Mode;
use dlock_quorum::{Acquired, Claimed, Extension, Failure, Fence, Instant, Lease, Vote};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};
use redis::Value;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::clock::now;
use crate::error::{ExtendError, Lost, NodeState, ReleaseError, Report};
use crate::hold::extend::{PendingCalls, Restore, extend};
use crate::hold::release::Releases;
use crate::reading;
use crate::request::{self, LockRequest, Release};
use crate::service::{Channels, Service};
use crate::sync::Mutex;
use crate::topology::LateEffect;
use crate::transport::Reply;
use crate::wait::Backoff;

/// A lock that was just acquired, with all that its hold needs.
pub(crate) struct NewHold {
    pub(crate) acquired: Acquired,
    /// True if the hold may be known by a message only: the first renewal is due at once.
    pub(crate) is_unclaimed: bool,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) channels: Channels,
    /// Receives the answers that were outstanding when the lock was acquired.
    pub(crate) late_answers: Option<BoxFuture<'static, ()>>,
    /// True if masters that have forgotten the hold get an ACQUIRE that restores it. False if the mode for
    /// that ACQUIRE is unknown: another client acquired the hold, and too few masters reported its mode.
    pub(crate) restores: bool,
    /// The release keeps the lock closed until then.
    pub(crate) closed_until: Option<Instant>,
}

/// Pause before each check of a hold on the masters. A push causes a check. A push is a message of CLIENT
/// TRACKING, which a master sends after another client has changed the key. The pushes during one pause cause
/// only one check.
const CHECK_PAUSE: Duration = Duration::from_millis(25);
/// Longest pause until masters that did not answer a check are asked again.
const LONGEST_CHECK_PAUSE: Duration = Duration::from_secs(2);

/// A hold.
pub(crate) struct Hold {
    pub(crate) service: Arc<Service>,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) fence: Option<Fence>,
    /// The release keeps the lock closed until then. `None`: the release does not delay the next grant.
    pub(super) closed_until: Option<Instant>,
    renews: bool,
    /// True if masters that have forgotten the hold get an ACQUIRE that restores it.
    restores: bool,
    pub(crate) channels: Channels,
    state: Mutex<State>,
    /// Locked during an extension, because the answers to two extensions at a time could contradict each
    /// other. Locked on the client's thread only: a task of the user's runtime could keep the lock while that
    /// runtime is blocked, and the renewals would wait.
    pub(super) extending: AsyncMutex<()>,
    /// Locked while an upgrade is under way, or is being undone.
    pub(super) upgrading: Arc<AsyncMutex<()>>,
    /// Notified when the state changes other than by the renewal.
    pub(crate) changed: Notify,
    /// Notified by a push: another client may have changed the hold on a master, so the hold is checked.
    pub(super) check_due: Arc<Notify>,
    pub(crate) lost: CancellationToken,
    /// Cancelled when the hold is released, or is no longer renewed and ends with its lease.
    pub(crate) ended: CancellationToken,
    /// Calls that go on although a majority has decided the request. The renewal task carries them out.
    pending: Mutex<Option<PendingCalls>>,
    pending_added: Notify,
}

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    /// Lease for the next renewals.
    pub(crate) lease: Lease,
    /// The longest lease that any request of this hold may have set at a master, also one without an
    /// answer. A release is owed for this long.
    longest_ttl: Duration,
    pub(crate) valid_until: Instant,
    pub(crate) loss: Option<Lost>,
}

impl Hold {
    pub(crate) fn new(service: Arc<Service>, lease: Lease, renews: bool, new: NewHold) -> Arc<Hold> {
        let NewHold { acquired, request, channels, late_answers, restores, closed_until, .. } = new;
        let state = State {
            mode: request.mode,
            lease,
            longest_ttl: lease.ttl(),
            valid_until: acquired.valid_until,
            loss: None,
        };
        let check_due = Arc::new(Notify::new());
        service.watched.add(&request.resource, &check_due);
        let (lost, ended) = (CancellationToken::new(), CancellationToken::new());
        if let Some(owner) = &request.owner {
            service.watched.add_owned(&request.resource, owner.as_bytes(), [lost.clone(), ended.clone()]);
        }
        Arc::new(Hold {
            service,
            request,
            fence: acquired.fence,
            closed_until,
            renews,
            restores: restores && channels.len() > 1,
            channels,
            state: Mutex::new(state),
            extending: AsyncMutex::new(()),
            upgrading: Arc::default(),
            changed: Notify::new(),
            check_due,
            lost,
            ended,
            pending: Mutex::new(late_answers),
            pending_added: Notify::new(),
        })
    }

    /// Returns the state. Reads the clock first: past its validity the hold is lost, even if the renewal has
    /// not noticed, as in a process that was stopped. A hold that was released within its validity is not
    /// lost.
    pub(crate) fn state(&self) -> State {
        let state = self.state.lock().clone();
        if state.loss.is_some() || self.ended.is_cancelled() || now() < state.valid_until {
            return state;
        }
        self.lose(if self.renews { Lost::NotRenewed(self.service.empty_report()) } else { Lost::Ended });
        self.state.lock().clone()
    }

    /// Waits until the hold is lost, and returns the reason.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            if let Some(why) = self.state().loss {
                return why;
            }
            self.lost.cancelled().await;
        }
    }

    /// Carries out the pending calls. Never returns.
    pub(crate) async fn drive_pending(&self) {
        let step = |cx: &mut Context<'_>| {
            // Each step locks `pending`, so that no request is sent after another task has cleared the calls.
            let mut pending = self.pending.lock();
            if pending.as_mut().is_some_and(|calls| calls.poll_unpin(cx).is_ready()) {
                *pending = None;
            }
            Poll::Pending
        };
        loop {
            tokio::select! {
                () = poll_fn(step) => {}
                () = self.pending_added.notified() => {}
            }
        }
    }

    /// Asks all masters about an exclusive hold once, and again after each push. Returns when the masters
    /// that may still have the hold are fewer than a majority.
    pub(crate) async fn taken_away(&self) -> Report {
        let question = &request::holds(&self.request.resource, &self.request.token);
        let new_backoff = || Backoff::new(CHECK_PAUSE, LONGEST_CHECK_PAUSE);
        let mut backoff = new_backoff();
        loop {
            // The masters are not asked about a hold that ends within this pause.
            sleep(CHECK_PAUSE).await;
            if is_watched(self.state.lock().mode) {
                let calls = self.channels.iter().map(|channel| async move {
                    // The question makes the master track the key for this connection.
                    let answer = channel.ask(question, None, self.service.limit).await;
                    match answer.read(reading::number) {
                        Ok(0) => NodeState::NotHeld,
                        Ok(_) => NodeState::Agreed,
                        Err(state) => state,
                    }
                });
                let states = join_all(calls).await;
                let not_held = states.iter().filter(|state| **state == NodeState::NotHeld).count();
                if !self.service.quorum.has_majority_without(not_held) {
                    return self.service.report_of(&self.channels, states);
                }
                let unanswered = states.iter().filter(|state| is_unanswered(state)).count();
                if !self.service.quorum.has_majority_without(not_held + unanswered) {
                    // A server does not repeat a push, so the masters without an answer are asked again.
                    sleep(backoff.next()).await;
                    continue;
                }
            }
            backoff = new_backoff();
            self.check_due.notified().await;
        }
    }

    /// Waits until the connection of an ephemeral hold closes. Never returns for any other hold.
    pub(crate) async fn disconnected(&self) {
        match self.channels[0].connection().filter(|_| self.request.ephemeral) {
            Some(connection) => connection.closed().cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Declares the hold lost. The first reason counts.
    pub(crate) fn lose(&self, why: Lost) {
        self.state.lock().loss.get_or_insert(why);
        self.lost.cancel();
    }

    /// Asks every master for a lease of `ttl` from now. If this lease ends before the current one, shortens
    /// the validity before the first request is sent: a master may set the lease even if its answer is lost.
    pub(crate) async fn extend(self: &Arc<Self>, ttl: Duration) -> Result<Instant, ExtendError> {
        let hold = self.clone();
        let extended = self.service.background.run_on_thread(async move {
            let _extending = hold.extending.lock().await;
            let extended = hold.set_lease(ttl, Duration::MAX).await;
            // On the client's thread, because the caller's runtime may be blocked by now.
            hold.changed.notify_one();
            extended
        });
        extended.await.unwrap_or_else(|| Err(ExtendError::Unconfirmed(self.service.empty_report())))
    }

    /// Asks every master for the current lease, from now, and waits for each answer at most `limit`. The
    /// length of the lease is read after earlier extensions have ended, because they may have changed it.
    pub(crate) async fn renew(&self, limit: Duration) -> Result<Instant, ExtendError> {
        let _extending = self.extending.lock().await;
        let ttl = self.state.lock().lease.ttl();
        self.set_lease(ttl, limit).await
    }

    /// Releases the token of a hold that was lost before it was claimed: a claim without an answer, or with
    /// another fence, may have made another hold. The releases continue in the background.
    pub(crate) fn release_unclaimed(&self) {
        let (release, longest) = (self.request.release(), self.state.lock().longest_ttl);
        drop(Releases::new(&self.service, &self.channels, release, longest));
    }

    pub(crate) async fn renew_or_claim(
        &self,
        is_unclaimed: bool,
        limit: Duration,
    ) -> Result<Instant, ExtendError> {
        if is_unclaimed { self.claim(limit).await } else { self.renew(limit).await }
    }

    /// Claims a hold of a single server that is known by a message only: an ACQUIRE of its token sets the
    /// whole lease, and its answer shows whether the token still has this hold. Waits for the answer at most
    /// `limit`.
    pub(crate) async fn claim(&self, limit: Duration) -> Result<Instant, ExtendError> {
        let _extending = self.extending.lock().await;
        let state = self.state();
        if state.loss.is_some() {
            return Err(ExtendError::Lost(self.service.empty_report()));
        }
        let (channel, mut request) = (&self.channels[0], self.request.in_mode(state.mode));
        let (lease, ttl) = self.service.lease_for(state.lease.ttl()).map_err(ExtendError::Option)?;
        request.options.ttl = ttl;
        let mut commands = redis::pipe();
        commands.add_command(request.acquire());
        if is_watched(state.mode) {
            // The write ends the tracking of the key, so the key is read again.
            commands.add_command(request::holds(&request.resource, &request.token));
        }
        let (sent, limit) = (now(), limit.min(self.service.limit));
        let vote = match channel.ask(&commands, Some(LateEffect::Hold), limit).await {
            Reply::Answer(Value::Array(answers)) => {
                answers.into_iter().next().map_or(Reply::NoAnswer, Reply::Answer).acquired()
            }
            reply => reply.acquired(),
        };
        let hold = Acquired { fence: self.fence, valid_until: self.state.lock().valid_until };
        match Claimed::read(hold, lease, sent, &vote, now()) {
            Claimed::Until(valid_until) => {
                channel.note(&vote);
                let mut state = self.state.lock();
                if state.loss.is_some() {
                    return Err(ExtendError::Lost(self.service.empty_report()));
                }
                state.valid_until = valid_until;
                Ok(valid_until)
            }
            Claimed::Lost => {
                let report = self.service.report_of(&self.channels, [NodeState::from(&vote)]);
                self.lose(Lost::TakenAway(report.clone()));
                Err(ExtendError::Lost(report))
            }
            // Out of memory, a server refuses ACQUIRE, but not EXTEND.
            Claimed::Open if matches!(vote, Vote::Failed(Failure::NotNow(_))) => {
                self.set_lease(state.lease.ttl(), limit).await
            }
            Claimed::Open => Err(ExtendError::Unconfirmed(
                self.service.report_of(&self.channels, [NodeState::from(&vote)]),
            )),
        }
    }

    async fn set_lease(&self, ttl: Duration, limit: Duration) -> Result<Instant, ExtendError> {
        let (lease, wire_ttl) = self.service.lease_for(ttl).map_err(ExtendError::Option)?;
        if self.state().loss.is_some() {
            return Err(ExtendError::Lost(self.service.empty_report()));
        }
        let (extension, sends) = {
            let mut state = self.state.lock();
            let (extension, sends) = Extension::new(self.service.quorum, lease, state.valid_until, now());
            state.longest_ttl = state.longest_ttl.max(lease.ttl());
            if extension.held_until() < state.valid_until {
                (state.lease, state.valid_until) = (lease, extension.held_until());
                self.changed.notify_one();
            }
            (extension, sends)
        };
        // Cancels earlier requests that were not sent yet. If sent after this extension, they could shorten
        // the lease.
        *self.pending.lock() = None;
        let mode = self.state.lock().mode;
        let extend_request = if is_watched(mode) { request::extend_and_track } else { request::extend };
        let command = extend_request(&self.request.resource, &self.request.token, wire_ttl);
        let restore = self.restores.then(|| Restore { request: self.request.clone(), mode, ttl: wire_ttl });
        let (extended, pending) =
            extend(&self.service, &self.channels, command, restore, lease, limit, (extension, sends)).await;
        self.add_pending(pending);
        if let Err(ExtendError::Lost(report)) = &extended {
            let is_over = now() >= self.state.lock().valid_until;
            let why = if is_over { Lost::NotRenewed } else { Lost::TakenAway };
            self.lose(why(report.clone()));
        }
        let valid_until = extended?;
        let mut state = self.state.lock();
        if state.loss.is_some() {
            // The holder has been informed, and may have stopped.
            return Err(ExtendError::Lost(self.service.empty_report()));
        }
        (state.lease, state.valid_until) = (lease, valid_until);
        Ok(valid_until)
    }

    /// Adds calls unless the hold has been released: an ACQUIRE that restores the hold on a master must not
    /// follow the RELEASE.
    fn add_pending(&self, calls: PendingCalls) {
        let mut pending = self.pending.lock();
        if !self.ended.is_cancelled() {
            *pending = Some(calls);
            self.pending_added.notify_one();
        }
    }

    /// Sets the mode if `allowed`, which may count the guards of the hold, returns no error. Both happen
    /// under one lock. A caller that enters the hold adds to that number first, and then checks the mode
    /// under this lock. So either `allowed` counts the caller, or the caller finds the new mode.
    pub(super) fn set_mode(
        &self,
        mode: Mode,
        allowed: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let mut state = self.state.lock();
        allowed()?;
        state.mode = mode;
        drop(state);
        // `watched` has one hold of each resource. While this hold was shared, another shared hold of this
        // client may have replaced it there.
        self.service.watched.add(&self.request.resource, &self.check_due);
        self.check_due.notify_one();
        Ok(())
    }

    /// Sleeps until `then`, or until the clock has jumped.
    pub(crate) async fn sleep_until(&self, then: Instant) {
        let jumped = self.service.background.clock_jumped.notified();
        tokio::select! {
            () = sleep(then.saturating_since(now())) => {}
            () = jumped => {}
        }
    }

    /// Returns an error if the hold cannot be entered again in this mode.
    pub(crate) fn check_entry(&self, mode: Mode, fenced: bool) -> Result<(), String> {
        let held_as = self.state.lock().mode;
        // An exclusive hold covers a shared one.
        if mode != held_as && (mode, held_as) != (Mode::Shared, Mode::Exclusive) {
            return Err("the lock is held in another mode: entering it again cannot change that".into());
        }
        if fenced && self.fence.is_none() {
            return Err("the lock is held without a fence: entering it again cannot change that".into());
        }
        Ok(())
    }

    /// Begins the release, which keeps the lock closed until `closed_until`, unless the hold is lost. Returns
    /// `None` if the hold has ended already. The requests continue in the background if the caller drops the
    /// returned value.
    pub(crate) fn begin_release(&self, closed_until: Option<Instant>) -> Option<Releases> {
        if self.ended.is_cancelled() {
            return None;
        }
        self.ended.cancel();
        *self.pending.lock() = None;
        let State { longest_ttl: lease, valid_until, .. } = self.state.lock().clone();
        let [closed_until, valid_until] =
            [closed_until, Some(valid_until)].map(|end| end.filter(|_| !self.lost.is_cancelled()));
        let release = Release { closed_until, valid_until, ..self.request.release() };
        Some(Releases::new(&self.service, &self.channels, release, lease))
    }

    /// Releases the hold, and keeps the lock closed until `closed_until`.
    pub(crate) async fn release(&self, closed_until: Option<Instant>) -> Result<(), ReleaseError> {
        match self.begin_release(closed_until) {
            Some(releases) => releases.wait_for_majority().await,
            None => Ok(()),
        }
    }

    /// Ends the renewal without a release: the masters keep the hold until its lease ends.
    pub(crate) fn end_without_release(&self) {
        self.ended.cancel();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hold { request, fence, channels, state, .. } = self;
        let mut debug = f.debug_struct("Hold");
        debug
            .field("request", request)
            .field("fence", fence)
            .field("channels", channels)
            .field("state", state);
        debug.finish_non_exhaustive()
    }
}

/// Returns whether the client asks about the hold after a push. It does not ask about a shared hold, because
/// each of many sharers would ask whenever another one renews.
pub(super) fn is_watched(mode: Mode) -> bool {
    mode == Mode::Exclusive
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.service.watched.remove(&self.request.resource, &self.check_due);
    }
}

/// Waits until the first of the holds is lost, and returns its index with the reason. Never returns for an
/// empty list.
pub(crate) async fn first_lost(holds: impl Iterator<Item = &Arc<Hold>>) -> (usize, Lost) {
    let losses: Vec<_> = holds.map(|hold| Box::pin(hold.lost())).collect();
    if losses.is_empty() {
        return std::future::pending().await;
    }
    let (why, index, _) = select_all(losses).await;
    (index, why)
}

/// Returns true if the master has not answered: it may answer when it is asked again.
fn is_unanswered(state: &NodeState) -> bool {
    matches!(state, NodeState::Down(_) | NodeState::Slow | NodeState::Unheard | NodeState::Unasked)
}
