//! Who waits, for what, and whose the wait is.

use std::borrow::Cow;

use dlock_protocol::{
    Bytes, ClientId, Deadline, Instant, LockRequest, LockRequestRef, Notify, OwnerId, Token,
};
use smallvec::SmallVec;

use crate::schedule::Slot;

/// A resource as the server names it: a key of a database.
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

/// Where something of a database is once two of them have changed places.
pub(crate) fn swap(db: &mut i32, first: i32, second: i32) {
    *db = match *db {
        db if db == first => second,
        db if db == second => first,
        db => db,
    };
}

/// A waiter, for as long as the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// Where in the queue a waiter joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// A sharer that asks to be the exclusive holder: everybody behind it waits for it anyway.
    Upgrade,
    Newcomer,
}

/// A position in a queue: waiters of a rank stand in the order in which they came.
pub(crate) type Position = (Rank, WaiterId);

/// Who waits: an entry of a queue, or a connection beside one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub id: WaiterId,
    pub rank: Rank,
    pub name: Name<'static>,
    pub request: LockRequest,
    pub owner: Owner,
    pub since: Instant,
    /// None waits for ever.
    pub until: Option<Deadline>,
    pub(super) timeout: Option<Slot>,
}

/// Whose wait it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A connection's whose ACQUIRE is blocked: its position goes with it.
    Client(ClientId),
    /// The token's own, which needs no connection.
    Token(Queued),
    /// A connection's that waits beside the position of its token, and has none itself.
    Beside(ClientId, WaiterId),
}

/// A position that belongs to its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Where it was asked for last: an EPHEMERAL position ends with this connection.
    pub client: ClientId,
    /// In whose name it is granted. None where no user asked.
    pub user: Option<Bytes>,
    pub notify: Option<Notify>,
    /// Whether the notification belongs on the key's own shard.
    pub sharded: bool,
    /// The connections that wait too.
    pub(super) beside: SmallVec<[WaiterId; 1]>,
}

impl Queued {
    pub fn new(client: ClientId, user: Option<Bytes>, notify: Option<Notify>, sharded: bool) -> Queued {
        Queued { client, user, notify, sharded, beside: SmallVec::new() }
    }
}

impl Waiter {
    pub(crate) fn position(&self) -> Position {
        (self.rank, self.id)
    }

    /// The node of the wait-for graph that waits here.
    pub fn party(&self) -> Party {
        Party::new(&self.request.token, self.request.owner.as_ref())
    }

    /// The connection that waits; None for a position of its token's own.
    pub fn client(&self) -> Option<ClientId> {
        match self.owner {
            Owner::Client(client) | Owner::Beside(client, _) => Some(client),
            Owner::Token(_) => None,
        }
    }

    /// The connection that asked.
    pub(crate) fn asked_by(&self) -> ClientId {
        match &self.owner {
            Owner::Client(client) | Owner::Beside(client, _) => *client,
            Owner::Token(queued) => queued.client,
        }
    }

    /// The connections that wait beside it.
    pub fn beside(&self) -> &[WaiterId] {
        if let Owner::Token(queued) = &self.owner { &queued.beside } else { &[] }
    }

    /// The connection that an EPHEMERAL position ends with.
    pub(super) fn bound_to(&self) -> Option<ClientId> {
        match &self.owner {
            Owner::Token(queued) if self.request.ephemeral => Some(queued.client),
            _ => None,
        }
    }
}

/// Releases nothing while it waits: a node of the wait-for graph.
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

    /// The token, or the owner in its place, as messages show it.
    pub fn shown(&self) -> &Token {
        match self {
            Party::Token(token) => token,
            Party::Owner(owner) => owner.as_token(),
        }
    }
}

/// A waiter that is to join a queue, or a connection that is to wait beside a position.
pub struct Newcomer<'a> {
    pub name: Name<'a>,
    pub rank: Rank,
    pub request: LockRequestRef<'a>,
    pub owner: Owner,
    pub since: Instant,
    pub until: Option<Deadline>,
}

/// The most that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub on_the_server: usize,
    pub on_a_key: usize,
    /// Positions that belong to their tokens.
    pub queued: usize,
}
