//! What is held, behind all guards of it: until when, whether it is lost, how it is extended and ended.

use dlock_protocol::Mode;
use futures_util::{FutureExt, StreamExt};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, Notify};
use tokio_util::sync::CancellationToken;

use crate::acquire::round::Acquired;
use crate::clock::now;
use crate::error::{ExtendError, Lost, NodeState, ReleaseError, Report};
use crate::guard::extend::{Rest, extend};
use crate::guard::release::Releases;
use crate::lease::{Instant, Lease};
use crate::quorum::{Extension, Fence};
use crate::request::{self, LockRequest};
use crate::service::{Channels, Service};

/// A hold.
#[derive(Debug)]
pub(crate) struct Hold {
    service: Arc<Service>,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) fence: Option<Fence>,
    channels: Channels,
    state: Mutex<State>,
    /// One extension at a time: answers to two would contradict each other.
    turn: Turn<()>,
    /// OnPosition when the state changes otherwise than by the renewal.
    pub(crate) changed: Notify,
    pub(crate) lost: CancellationToken,
    /// Cancelled when it has been given back, or left to itself.
    pub(crate) ended: CancellationToken,
    given_back: AtomicBool,
    /// What is under way to masters whose answer was not waited for.
    rest: Mutex<Rest>,
    rest_grew: Notify,
}

#[derive(Debug, Clone)]
pub(crate) struct State {
    /// The lease that renewals ask for.
    pub(crate) lease: Lease,
    pub(crate) valid_until: Instant,
    pub(crate) loss: Option<Lost>,
}

impl Hold {
    pub(crate) fn new(service: Arc<Service>, lease: Lease, acquired: Acquired) -> Arc<Hold> {
        let Acquired { won, request, channels, calls } = acquired;
        let rest = calls.into_iter().map(|call| call.map(drop).boxed()).collect();
        let state = State { lease, valid_until: won.valid_until, loss: None };
        Arc::new(Hold {
            service,
            request,
            fence: won.fence,
            channels,
            state: Mutex::new(state),
            turn: Turn::new(()),
            changed: Notify::new(),
            lost: CancellationToken::new(),
            ended: CancellationToken::new(),
            given_back: AtomicBool::new(false),
            rest: Mutex::new(rest),
            rest_grew: Notify::new(),
        })
    }

    pub(crate) fn state(&self) -> State {
        self.lock().clone()
    }

    /// The connection that an ephemeral hold lives on has closed. Never returns for any other hold.
    pub(crate) async fn disconnected(&self) {
        match self.channels[0].connection().filter(|_| self.request.ephemeral) {
            Some(connection) => connection.end().cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Hears those whose answer was not waited for, and never returns.
    pub(crate) async fn hear_the_rest(&self) {
        loop {
            // Under the lock at each step, so that nothing leaves any more once it has been cleared.
            while poll_fn(|cx| self.rest().poll_next_unpin(cx)).await.is_some() {}
            self.rest_grew.notified().await;
        }
    }

    /// Declares it lost; the first reason stays.
    pub(crate) fn lose(&self, why: Lost) {
        self.lock().loss.get_or_insert(why);
        self.lost.cancel();
    }

    /// Asks every master for a lease of `ttl` from now. Where that is shorter than what was left, the validity is shorter
    /// as soon as it is asked for: masters that do not answer may have done it.
    ///
    /// No answer is waited for longer than `limit`.
    pub(crate) async fn extend(&self, ttl: Duration, limit: Duration) -> Result<Instant, ExtendError> {
        let (lease, counted) = self.service.lease_for(ttl).map_err(ExtendError::Option)?;
        let _turn = self.turn.lock().await;
        if self.lost.is_cancelled() {
            return Err(ExtendError::Lost(self.unheard()));
        }
        let begun = {
            let mut state = self.lock();
            let begun = Extension::new(self.service.quorum, lease, state.valid_until, now());
            if begun.0.held_until() < state.valid_until {
                (state.lease, state.valid_until) = (lease, begun.0.held_until());
                self.changed.notify_one();
            }
            begun
        };
        // What has not left yet never does: behind this it would set the lease back.
        self.rest().clear();
        let command = request::extend(&self.request.resource, &self.request.token, counted);
        let (extended, rest) = extend(&self.service, &self.channels, command, lease, limit, begun).await;
        *self.rest() = rest;
        self.rest_grew.notify_one();
        let valid_until = extended?;
        let mut state = self.lock();
        if state.loss.is_some() {
            // Its holder has been told, and may have stopped.
            return Err(ExtendError::Lost(self.unheard()));
        }
        (state.lease, state.valid_until) = (lease, valid_until);
        Ok(valid_until)
    }

    /// A report in which nobody says anything.
    pub(crate) fn unheard(&self) -> Report {
        self.service.report_of(self.channels.iter().map(|_| NodeState::Unasked))
    }

    /// Whether one more may enter; or why not.
    pub(crate) fn check_entry(&self, mode: Mode, fenced: bool) -> Result<(), String> {
        // Who is alone is alone for sharers too.
        let covered =
            mode == self.request.mode || (mode, self.request.mode) == (Mode::Shared, Mode::Exclusive);
        if !covered {
            return Err("it is held in another mode already, which re-entry cannot change".into());
        }
        if fenced && self.fence.is_none() {
            return Err("it is held without a fence already, which re-entry cannot change".into());
        }
        Ok(())
    }

    /// Ends it; None if that was done before. Dropped, the releases go on in the background.
    pub(crate) fn give_back(&self) -> Option<Releases> {
        if self.given_back.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.ended.cancel();
        self.rest().clear();
        Some(Releases::new(&self.service, &self.channels, self.request.release()))
    }

    pub(crate) async fn release(&self) -> Result<(), ReleaseError> {
        match self.give_back() {
            Some(releases) => releases.majority().await,
            None => Ok(()),
        }
    }

    /// Leaves it to its lease.
    pub(crate) fn leave(&self) {
        self.given_back.store(true, Ordering::Release);
        self.ended.cancel();
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
