//! Waiters, how a wait ends, and the names of locks.

use std::borrow::Cow;

use dlock_protocol::error::Refusal;
use dlock_protocol::{
    Bytes, ClientId, Deadline, Fence, Instant, LockRequest, LockRequestRef, Notify, OwnerId, Token, Ttl,
};
use smallvec::SmallVec;

use crate::schedule::Slot;

/// The name of a lock: a key of a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a> {
    pub db: i32,
    pub key: Cow<'a, [u8]>,
}

impl<'a> Name<'a> {
    pub fn new(db: i32, key: &'a [u8]) -> Name<'a> {
        Name { db, key: Cow::Borrowed(key) }
    }

    pub fn to_owned(&self) -> Name<'static> {
        Name { db: self.db, key: Cow::Owned(self.key.to_vec()) }
    }
}

/// Changes the number of a database as SWAPDB does: `first` becomes `second`, `second` becomes `first`.
pub(crate) fn swap_db(db: &mut i32, first: i32, second: i32) {
    *db = match *db {
        db if db == first => second,
        db if db == second => first,
        db => db,
    };
}

/// The id of a waiter, unique until the server restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// The part of a queue that a waiter joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A sharer that waits for an upgrade. It is ahead of all newcomers: an exclusive newcomer ahead of the
    /// sharer would wait for the end of the shared hold, and both would wait for ever.
    Upgrade,
    Newcomer,
}

/// A position in a queue: by rank, then by arrival.
pub(crate) type Position = (Rank, WaiterId);

/// A waiter: an entry of a queue, or a blocked connection beside an entry of the same token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub id: WaiterId,
    pub rank: Rank,
    pub name: Name<'static>,
    pub request: LockRequest,
    pub kind: WaitKind,
    pub since: Instant,
    /// `None` means no timeout.
    pub until: Option<Deadline>,
    /// The slot of the timeout in the schedule.
    pub(super) timeout: Option<Slot>,
}

/// The kind of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// The wait of a blocked connection (BLOCK). Ends when the connection closes.
    Blocked(ClientId),
    /// A queued wait (QUEUE), which needs no connection.
    Queued(Queued),
    /// A blocked connection of a token that also has a queued wait (BLOCK and QUEUE). The id is that of the
    /// queued wait. The connection has no position of its own, and gets the answer of the queued wait.
    Beside(ClientId, WaiterId),
}

/// The attributes of a queued wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The connection of the last request. An EPHEMERAL position ends with the connection.
    pub client: ClientId,
    /// The user that sent the request. `None` for the server itself or another module.
    pub user: Option<Bytes>,
    pub notify: Option<Notify>,
    /// The blocked connections of the same token.
    pub(super) beside: SmallVec<[WaiterId; 1]>,
}

impl Queued {
    pub fn new(client: ClientId, user: Option<Bytes>, notify: Option<Notify>) -> Queued {
        Queued { client, user, notify, beside: SmallVec::new() }
    }
}

/// A queue position (QUEUE) of `ms` that a request asks for.
pub struct NewPosition {
    pub queued: Queued,
    pub ms: Ttl,
}

/// A position that its token keeps, and its terms before the request that has renewed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept(pub(super) WaiterId, pub(super) Box<(LockRequest, Queued, Option<Deadline>)>);

impl Kept {
    pub fn position(&self) -> WaiterId {
        self.0
    }
}

impl Waiter {
    pub(crate) fn position(&self) -> Position {
        (self.rank, self.id)
    }

    /// The node that stands for this waiter in the wait-for graph.
    pub fn party(&self) -> Party {
        Party::new(&self.request.token, self.request.owner.as_ref())
    }

    /// The blocked connection. `None` for a queued wait.
    pub fn client(&self) -> Option<ClientId> {
        match self.kind {
            WaitKind::Blocked(client) | WaitKind::Beside(client, _) => Some(client),
            WaitKind::Queued(_) => None,
        }
    }

    /// The connection that sent the request.
    pub(crate) fn asked_by(&self) -> ClientId {
        match &self.kind {
            WaitKind::Blocked(client) | WaitKind::Beside(client, _) => *client,
            WaitKind::Queued(queued) => queued.client,
        }
    }

    /// The blocked connections beside this queued wait.
    pub fn beside(&self) -> &[WaiterId] {
        if let WaitKind::Queued(queued) = &self.kind { &queued.beside } else { &[] }
    }

    /// The connection that an EPHEMERAL position is bound to.
    pub(super) fn bound_to(&self) -> Option<ClientId> {
        match &self.kind {
            WaitKind::Queued(queued) if self.request.ephemeral => Some(queued.client),
            _ => None,
        }
    }
}

/// What a grant changed, so that a grant that could not be delivered can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granted {
    /// The grant began a hold.
    New,
    /// The grant made a sharer the exclusive holder.
    Upgrade,
    /// The token held the lock already.
    Renewal,
}

/// The one answer that a waiter gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted(Fence, Granted),
    /// The wait timed out.
    TimedOut,
    /// CANCEL removed the waiter, or the connection that its position was bound to has closed.
    Cancelled,
    /// The waiter's own token removed it: by RELEASE, or to wait in another mode.
    Left,
    /// The request had become impossible when the waiter's turn came.
    Refused(Refusal),
}

/// A node of the wait-for graph. The search for deadlocks assumes that a party releases nothing while it
/// waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A token without an owner.
    Token(Token),
    /// An owner, with all its tokens.
    Owner(OwnerId),
}

impl Party {
    pub fn new(token: &Token, owner: Option<&OwnerId>) -> Party {
        owner.map_or_else(|| Party::Token(token.clone()), |owner| Party::Owner(owner.clone()))
    }

    /// The party as messages show it: the token, or the owner in the type of a token.
    pub fn shown(&self) -> &Token {
        match self {
            Party::Token(token) => token,
            Party::Owner(owner) => owner.as_token(),
        }
    }
}

/// A waiter before it has an id: see [`Waiter`].
pub struct NewWaiter<'a> {
    pub name: Name<'a>,
    pub rank: Rank,
    pub request: LockRequestRef<'a>,
    pub kind: WaitKind,
    pub since: Instant,
    pub until: Option<Deadline>,
}

/// Limits of the wait queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of blocked connections on the server.
    pub on_the_server: usize,
    /// Maximum length of one queue.
    pub on_a_key: usize,
    /// Maximum number of queued waits on the server.
    pub queued: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There can be 100,000 positions. The next size that the allocator hands out is 320 bytes.
    #[test]
    fn a_waiter_takes_at_most_256_bytes() {
        assert!(size_of::<Waiter>() <= 256, "{}", size_of::<Waiter>());
    }
}
