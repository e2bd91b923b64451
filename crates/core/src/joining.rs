//! The beginning of a wait: a request that [`Turn`](crate::Turn) has not granted joins the queue of its lock.
//!
//! It joins if the limits allow it and it closes no deadlock. Otherwise nothing has changed: a position that
//! the request has renewed is as it was before.

use dlock_protocol::{ClientId, Deadline, Instant, LockRequestRef, Token, Wait};

use crate::deadlock::{Found, Search};
use crate::lock::Lock;
use crate::queue::{Kept, Limits, Name, NewPosition, NewWaiter, Rank, WaitKind, WaiterId, Waiting};

/// A wait that is about to begin: at a queue position of its token (QUEUE), of a connection (BLOCK), or of
/// both.
pub struct NewWait<'a> {
    pub name: Name<'a>,
    pub request: LockRequestRef<'a>,
    pub client: ClientId,
    pub position: Option<NewPosition>,
    pub block: Option<Wait>,
    pub since: Instant,
}

impl NewWait<'_> {
    fn has_room(&self, waiting: &Waiting, limits: Limits) -> bool {
        waiting.len_of(&self.name) < limits.on_a_key
            && (self.position.is_none() || waiting.queued() < limits.queued)
            && (self.block.is_none() || waiting.clients() < limits.on_the_server)
    }
}

/// The reason why a request cannot wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CannotJoin {
    QueueFull,
    /// The parties of the cycle that the wait would close, as messages show them. The newcomer is the first
    /// and the last one.
    Deadlock(Vec<Token>),
}

/// A wait that has begun.
pub struct Joined {
    /// The waiter to block: the connection of the request.
    pub connection: Option<WaiterId>,
    position: Option<Place>,
}

enum Place {
    New(WaiterId),
    Kept(Kept),
}

/// A request on its way into the queue. The search for a deadlock reads locks, which only the caller can
/// open: while [`Joining::asks_for`] names one, the caller calls [`Joining::learn`]. Then it calls
/// [`Joining::join`].
pub struct Joining<'a> {
    wait: NewWait<'a>,
    rank: Rank,
    search: Search,
    cycle: Option<Vec<Token>>,
}

impl<'a> Joining<'a> {
    pub fn new(
        wait: NewWait<'a>,
        rank: Rank,
        waiting: &Waiting,
        limits: Limits,
    ) -> Result<Joining<'a>, CannotJoin> {
        if !wait.has_room(waiting, limits) {
            return Err(CannotJoin::QueueFull);
        }
        let search = Search::new(&wait.request, &wait.name, rank, wait.since, waiting);
        Ok(Joining { wait, rank, search, cycle: None })
    }

    /// A lock whose holders the search needs. `None` if the search has ended.
    pub fn asks_for(&mut self, waiting: &Waiting) -> Option<Name<'static>> {
        match self.search.run(waiting) {
            Found::Ask(name) => return Some(name),
            Found::Cycle(cycle) => self.cycle = Some(cycle),
            Found::Nothing => {}
        }
        None
    }

    /// Stores the holders of `name`; `lock` is `None` if its key does not exist.
    pub fn learn(&mut self, name: &Name<'_>, lock: Option<&Lock>, waiting: &Waiting) {
        self.search.learn(name, lock, waiting);
    }

    /// Joins the queue, unless the search has found a cycle.
    pub fn join(self, waiting: &mut Waiting) -> Result<Joined, CannotJoin> {
        if let Some(cycle) = self.cycle {
            return Err(CannotJoin::Deadlock(cycle));
        }
        let NewWait { name, request, client, position, block, since } = self.wait;
        let rank = self.rank;
        let blocked_until = block.and_then(|block| block.until(since));
        let (kind, until) = match position {
            Some(NewPosition { queued, ms }) => (WaitKind::Queued(queued), Some(since + ms)),
            None => (WaitKind::Blocked(client), blocked_until),
        };
        let is_position = matches!(kind, WaitKind::Queued(_));
        let newcomer = NewWaiter { name, rank, request, kind, since, until };
        let id = waiting.join(newcomer).ok_or(CannotJoin::QueueFull)?;
        if !is_position {
            return Ok(Joined { connection: Some(id), position: None });
        }
        waiting.join_beside(Place::New(id), client, block, since)
    }
}

impl Waiting {
    /// Continues a wait at a position that the token keeps. With BLOCK, the connection joins it.
    pub fn keep(&mut self, kept: Kept, wait: &NewWait<'_>, limits: Limits) -> Result<Joined, CannotJoin> {
        let beside = self.get(kept.position()).map_or(0, |waiter| waiter.beside().len());
        let has_room = self.clients() < limits.on_the_server && beside < limits.on_a_key;
        if wait.block.is_some() && !has_room {
            self.restore(kept);
            return Err(CannotJoin::QueueFull);
        }
        self.join_beside(Place::Kept(kept), wait.client, wait.block, wait.since)
    }

    /// Adds the connection of a request to the position of its token. It waits no longer than the position.
    fn join_beside(
        &mut self,
        place: Place,
        client: ClientId,
        block: Option<Wait>,
        since: Instant,
    ) -> Result<Joined, CannotJoin> {
        let Some(block) = block else { return Ok(Joined { connection: None, position: Some(place) }) };
        let id = match &place {
            Place::New(id) => *id,
            Place::Kept(kept) => kept.position(),
        };
        let connection = self.get(id).cloned().and_then(|position| {
            let (name, rank, request) = (position.name.clone(), position.rank, position.request.borrowed());
            let until: Option<Deadline> = block.until(since).into_iter().chain(position.until).min();
            let kind = WaitKind::Beside(client, id);
            self.join(NewWaiter { name, rank, request, kind, since, until })
        });
        let joined = Joined { connection, position: Some(place) };
        if connection.is_none() {
            self.take_back(joined);
            return Err(CannotJoin::QueueFull);
        }
        Ok(joined)
    }

    /// Takes back a wait that has just begun, because the server does not let the connection wait.
    pub fn take_back(&mut self, joined: Joined) {
        if let Some(connection) = joined.connection {
            self.leave(connection);
        }
        match joined.position {
            Some(Place::New(id)) => drop(self.leave(id)),
            Some(Place::Kept(kept)) => self.restore(kept),
            None => {}
        }
    }
}
