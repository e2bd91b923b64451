//! A hold, as long as its guard lives.

use std::time::Duration;

use dlock_core::{Fence, Token};
use tokio_util::sync::CancellationToken;

use crate::error::{ExtendError, Lost, ReleaseError};
use crate::lease::Instant;

/// A hold.
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock"]
pub struct Guard {}

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
        todo!()
    }

    /// What is held.
    pub fn resource(&self) -> &[u8] {
        todo!()
    }

    /// Whose hold it is on the servers.
    pub fn token(&self) -> &Token {
        todo!()
    }

    /// Until when the hold is valid, on the clock of [`crate::now`].
    pub fn valid_until(&self) -> Instant {
        todo!()
    }

    /// What is left until then; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        todo!()
    }

    /// Returns when the hold is lost, with the reason; always before its validity ends.
    pub async fn lost(&self) -> Lost {
        todo!()
    }

    /// Why the hold was lost; None while it is not.
    pub fn loss(&self) -> Option<Lost> {
        todo!()
    }

    /// Cancelled when the hold is lost, for work that takes such a token.
    pub fn cancellation(&self) -> CancellationToken {
        todo!()
    }

    /// Sets the lease to `ttl` from now, longer or shorter; renewals go on with it. Answers until when the hold is valid.
    pub async fn extend(&self, _ttl: Duration) -> Result<Instant, ExtendError> {
        todo!()
    }

    /// Ends the hold. Returns when a majority has confirmed it; the others are told in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        todo!()
    }

    /// Lets the hold go on without this guard, until its lease ends: nobody renews or releases it but by
    /// [`Client::extend`](crate::Client::extend) and [`Client::release`](crate::Client::release). None where that is impossible: other
    /// guards share the hold, or its connection carries it (ephemeral); it is released then.
    pub fn forget(self) -> Option<Kept> {
        todo!()
    }
}

/// Several holds that are one: see [`Client::lock_all`](crate::Client::lock_all).
#[derive(Debug)]
#[must_use = "dropped guards release their locks"]
pub struct Guards {}

impl Guards {
    /// The holds, in the sorted order of their resources.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        std::iter::empty()
    }

    /// What is left until the first of them ends.
    pub fn remaining(&self) -> Duration {
        todo!()
    }

    /// Returns when the first of them is lost.
    pub async fn lost(&self) -> Lost {
        todo!()
    }

    /// Ends all of them; the first error, if any.
    pub async fn release(self) -> Result<(), ReleaseError> {
        todo!()
    }
}
