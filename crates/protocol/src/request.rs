//! What may be asked of a lock.

use std::num::NonZeroU32;

use crate::names::{Label, LabelRef, Token, TokenRef};
use crate::owner::{OwnerId, OwnerIdRef};
use crate::units::{Delay, Ttl};

/// What an ACQUIRE asks for, apart from its key and how long it waits. The command carries it, the core
/// grants it, a waiter and a client keep it: owned, or borrowed as [`LockRequestRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest<T = Token, L = Label, O = OwnerId> {
    pub token: T,
    pub ttl: Ttl,
    pub mode: Mode,
    pub reentry: Reentry,
    /// The hold ends with the connection that asks, too.
    pub ephemeral: bool,
    pub delay: Delay,
    pub label: L,
    /// Whose token it is, for the search for deadlocks; None: it is its own.
    pub owner: Option<O>,
}

pub type LockRequestRef<'a> = LockRequest<TokenRef<'a>, LabelRef<'a>, OwnerIdRef<'a>>;

impl<T, L, O> LockRequest<T, L, O> {
    /// An exclusive hold without options.
    pub fn new(token: T, ttl: Ttl) -> Self
    where
        L: Default,
    {
        let (mode, reentry, label) = (Mode::Exclusive, Reentry::Keep, L::default());
        LockRequest { token, ttl, mode, reentry, ephemeral: false, delay: Delay::NONE, label, owner: None }
    }

    /// The same with another token, label and owner.
    pub fn with<U, M, P>(&self, token: U, label: M, owner: Option<P>) -> LockRequest<U, M, P> {
        let LockRequest { ttl, mode, reentry, ephemeral, delay, .. } = *self;
        LockRequest { token, ttl, mode, reentry, ephemeral, delay, label, owner }
    }
}

impl LockRequest {
    pub fn borrowed(&self) -> LockRequestRef<'_> {
        self.with(self.token.borrowed(), self.label.borrowed(), self.owner.as_ref().map(OwnerId::borrowed))
    }
}

impl LockRequestRef<'_> {
    pub fn to_owned(&self) -> LockRequest {
        self.with(self.token.to_owned(), self.label.to_owned(), self.owner.map(OwnerIdRef::to_owned))
    }
}

/// How a token holds, or wants to hold, a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside any number of other sharers.
    Shared,
    /// Beside at most n - 1 others: a semaphore.
    Permits(NonZeroU32),
}

/// What an ACQUIRE asks of the hold count where its token holds the lock already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reentry {
    /// The count stays, so that a retry after a lost reply is harmless.
    Keep,
    /// REENTRANT: one more.
    OneMore,
    /// DEPTH n: n where it was less.
    AtLeast(NonZeroU32),
}

impl Reentry {
    /// The hold count after a hold of this count, if there is one, is asked for again. None where it can rise
    /// no further.
    #[inline]
    pub fn count(self, before: Option<NonZeroU32>) -> Option<NonZeroU32> {
        match (self, before) {
            (Reentry::Keep | Reentry::OneMore, None) => Some(NonZeroU32::MIN),
            (Reentry::Keep, Some(count)) => Some(count),
            (Reentry::OneMore, Some(count)) => count.checked_add(1).filter(|count| count.get() <= MAX_COUNT),
            (Reentry::AtLeast(n), before) => before.max(Some(n)),
        }
    }
}

/// The greatest hold count and the greatest number of permits.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// How much of the hold count RELEASE ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseCount {
    One,
    All,
    /// DEPTH n: what is above n.
    Above(u32),
}
