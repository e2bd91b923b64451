//! A lock request, and arguments of RELEASE, CANCEL and LIST.

use std::num::NonZeroU32;

use crate::names::{Label, LabelRef, OwnerId, OwnerIdRef, Token, TokenRef};
use crate::units::{Delay, Ttl};

/// An ACQUIRE without its key and its wait. Commands, the core, waiters and clients share this type, owned or
/// borrowed ([`LockRequestRef`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest<T = Token, L = Label, O = OwnerId> {
    pub token: T,
    pub ttl: Ttl,
    pub mode: Mode,
    pub reentry: Reentry,
    /// Whether the hold also ends when its connection closes.
    pub ephemeral: bool,
    /// The pause before the next grant if the hold expires or loses its connection.
    pub delay: Delay,
    pub label: L,
    /// The owner of the token. The search for deadlocks treats all tokens of one owner as one. `None`: the
    /// token is its own owner.
    pub owner: Option<O>,
}

pub type LockRequestRef<'a> = LockRequest<TokenRef<'a>, LabelRef<'a>, OwnerIdRef<'a>>;

impl<T, L, O> LockRequest<T, L, O> {
    /// A request for an exclusive hold, without options.
    pub fn new(token: T, ttl: Ttl) -> Self
    where
        L: Default,
    {
        let (mode, reentry, label) = (Mode::Exclusive, Reentry::Keep, L::default());
        LockRequest { token, ttl, mode, reentry, ephemeral: false, delay: Delay::NONE, label, owner: None }
    }

    /// A copy with another token, label and owner.
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

/// The mode of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// Any number of sharers, and no exclusive holder.
    Shared,
    /// A permit of a semaphore: granted while fewer than n tokens hold one.
    Permits(NonZeroU32),
}

impl Mode {
    /// Returns whether both modes are the same, whatever the numbers of permits are.
    pub fn is_like(self, other: Mode) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// How an ACQUIRE changes the hold count if its token already holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reentry {
    /// Unchanged, so that a retry after a lost reply is harmless.
    Keep,
    /// REENTRANT: raised by one.
    OneMore,
    /// DEPTH n: raised to n if it is lower.
    AtLeast(NonZeroU32),
}

impl Reentry {
    /// Returns the hold count after the request, or `None` if it would exceed [`MAX_COUNT`]. `before` is the
    /// count before the request, or `None` without a hold.
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

/// The maximum hold count and the maximum number of permits.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// The longest MATCH pattern of LIST, in bytes. The work of a match grows with the length of the pattern.
pub const MAX_PATTERN: usize = 1024;

/// The part of the hold count that RELEASE removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseCount {
    One,
    All,
    /// DEPTH n: the part above n.
    Above(u32),
}

/// The waiters that CANCEL removes: those of a token or those of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelTarget<'a> {
    Token(TokenRef<'a>),
    /// A connection, by its id.
    Client(u64),
}
