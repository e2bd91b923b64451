//! Who waits: a queue for each resource, first come first served, and the ways to find a waiter in it.
//!
//! It keeps the order and decides no grant: that is [`crate::decide`], which serves a queue from its head.
//! Nothing here is stored or sent; the queues live as long as the connections that wait in them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;

use dlock_protocol::{ClientId, Deadline, Instant, LockRequest, LockRequestRef, Token};
use smallvec::SmallVec;

use crate::deliveries::Deliveries;
use crate::schedule::{Schedule, Slot};

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

/// A waiter, for as long as the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// A blocked ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub id: WaiterId,
    pub rank: Rank,
    pub name: Name<'static>,
    pub request: LockRequest,
    /// The connection that waits.
    pub client: ClientId,
    pub since: Instant,
    /// None waits for ever.
    pub until: Option<Deadline>,
    timeout: Option<Slot>,
}

impl Waiter {
    pub(crate) fn position(&self) -> Position {
        (self.rank, self.id)
    }
}

/// A waiter that is to join a queue.
pub struct Newcomer<'a> {
    pub name: Name<'a>,
    pub rank: Rank,
    pub request: LockRequestRef<'a>,
    pub client: ClientId,
    pub since: Instant,
    pub until: Option<Deadline>,
}

/// The most that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub on_the_server: usize,
    pub on_a_key: usize,
}

/// Everybody who waits on this server.
#[derive(Clone, Default)]
pub struct Waiting {
    waiters: HashMap<WaiterId, Waiter>,
    queues: HashMap<Name<'static>, Queue>,
    /// The queues by the waiter with whom each began: an order that does not change.
    begun: BTreeMap<WaiterId, Name<'static>>,
    by_token: HashMap<Token, Waits>,
    by_client: HashMap<ClientId, WaiterId>,
    timeouts: Schedule<WaiterId>,
    last_id: u64,
    /// What those who waited were granted and may not know of.
    pub deliveries: Deliveries,
}

/// The queue of a resource.
#[derive(Clone, Default)]
struct Queue {
    began: Option<WaiterId>,
    positions: BTreeSet<Position>,
    /// Those of tokens that wait more than once: only they can be stuck here for a reason of their own.
    also_elsewhere: BTreeSet<Position>,
}

/// The positions of a token.
type Waits = BTreeMap<Name<'static>, BTreeSet<Position>>;

fn more_than_one(waits: &Waits) -> bool {
    waits.len() > 1 || waits.values().any(|positions| positions.len() > 1)
}

/// Gives the memory of a crowd back once most of it has left.
pub fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    const NO_CROWD: usize = 1_000;
    if map.capacity() > NO_CROWD && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

impl Waiting {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait for one resource.
    pub fn len_of(&self, name: &Name<'_>) -> usize {
        if self.is_empty() { 0 } else { self.queues.get(name).map_or(0, |queue| queue.positions.len()) }
    }

    pub fn has_room(&self, name: &Name<'_>, limits: Limits) -> bool {
        self.len() < limits.on_the_server && self.len_of(name) < limits.on_a_key
    }

    /// Joins the queue. The caller has looked whether there is room and whether waiting would close a cycle.
    pub fn join(&mut self, newcomer: Newcomer<'_>) -> Option<WaiterId> {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let Newcomer { name, rank, request, client, since, until } = newcomer;
        let timeout = match until {
            Some(until) => Some(self.timeouts.insert(until, id)?),
            None => None,
        };
        let waiter = Waiter {
            id,
            rank,
            name: name.to_owned(),
            request: request.to_owned(),
            client,
            since,
            until,
            timeout,
        };
        let queue = self.queues.entry(waiter.name.clone()).or_default();
        queue.positions.insert(waiter.position());
        if queue.began.is_none() {
            queue.began = Some(id);
            self.begun.insert(id, waiter.name.clone());
        }
        let waits = self.by_token.entry(waiter.request.token.clone()).or_default();
        let first = waits.iter().next().filter(|_| !more_than_one(waits));
        let first = first.and_then(|(name, positions)| Some((name.clone(), *positions.first()?)));
        waits.entry(waiter.name.clone()).or_default().insert(waiter.position());
        if more_than_one(waits) {
            for (name, position) in first.into_iter().chain([(waiter.name.clone(), waiter.position())]) {
                self.queues.entry(name).or_default().also_elsewhere.insert(position);
            }
        }
        self.by_client.insert(client, id);
        self.waiters.insert(id, waiter);
        Some(id)
    }

    /// Takes a waiter out of its queue, wherever it stands.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.positions.remove(&waiter.position());
            queue.also_elsewhere.remove(&waiter.position());
            if queue.positions.is_empty() {
                queue.began.iter().for_each(|first| drop(self.begun.remove(first)));
                self.queues.remove(&waiter.name);
                give_back(&mut self.queues);
            }
        }
        self.waits_once_less(&waiter);
        if self.by_client.get(&waiter.client) == Some(&id) {
            self.by_client.remove(&waiter.client);
        }
        if let Some(timeout) = waiter.timeout {
            self.timeouts.remove(timeout);
        }
        give_back(&mut self.waiters);
        give_back(&mut self.by_client);
        Some(waiter)
    }

    fn waits_once_less(&mut self, waiter: &Waiter) {
        let Some(waits) = self.by_token.get_mut(&waiter.request.token) else { return };
        let several = more_than_one(waits);
        if let Some(positions) = waits.get_mut(&waiter.name) {
            positions.remove(&waiter.position());
            if positions.is_empty() {
                waits.remove(&waiter.name);
            }
        }
        if several && !more_than_one(waits) {
            for (name, positions) in waits {
                if let (Some(queue), Some(last)) = (self.queues.get_mut(name), positions.first()) {
                    queue.also_elsewhere.remove(last);
                }
            }
        } else if waits.is_empty() {
            self.by_token.remove(&waiter.request.token);
            give_back(&mut self.by_token);
        }
    }

    pub fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id)
    }

    /// The head of the queue.
    pub fn head(&self, name: &Name<'_>) -> Option<&Waiter> {
        if self.is_empty() {
            return None;
        }
        self.queues.get(name)?.positions.first().and_then(|(_, id)| self.waiters.get(id))
    }

    /// Everybody in the queue, its head first.
    pub fn queue<'a>(&'a self, name: &Name<'a>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.queues
            .get(name)
            .into_iter()
            .flat_map(|queue| &queue.positions)
            .filter_map(|(_, id)| self.waiters.get(id))
    }

    /// Every resource somebody waits for.
    pub fn names(&self) -> impl Iterator<Item = &Name<'static>> {
        self.queues.keys()
    }

    /// The resources somebody waits for whose queues began behind this one, in that order.
    pub fn queues_behind(&self, began: WaiterId) -> impl Iterator<Item = (WaiterId, &Name<'static>)> {
        self.begun.range((Bound::Excluded(began), Bound::Unbounded)).map(|(id, name)| (*id, name))
    }

    /// Everything this token waits for, here and on other resources.
    pub fn of_token(&self, token: &[u8]) -> impl Iterator<Item = &Waiter> {
        let waits = self.by_token.get(token).into_iter().flat_map(BTreeMap::values).flatten();
        waits.filter_map(|(_, id)| self.waiters.get(id))
    }

    /// The waiters of a token on one resource, in the order in which they came.
    pub fn of_token_on(&self, token: &[u8], name: &Name<'_>) -> SmallVec<[WaiterId; 2]> {
        if self.is_empty() {
            return SmallVec::new();
        }
        let positions = self.by_token.get(token).and_then(|waits| waits.get(name));
        let mut ids: SmallVec<_> = positions.into_iter().flatten().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    pub fn of_client(&self, client: ClientId) -> Option<&Waiter> {
        self.waiters.get(self.by_client.get(&client)?)
    }

    /// Whether a sharer waits to be the exclusive holder.
    pub fn upgrader(&self, name: &Name<'_>) -> Option<&Waiter> {
        self.head(name).filter(|waiter| waiter.rank == Rank::Upgrade)
    }

    /// The positions of a token in a queue.
    pub(crate) fn positions<'a>(
        &'a self,
        token: &Token,
        name: &Name<'a>,
    ) -> impl Iterator<Item = Position> + use<'a> {
        let positions = self.by_token.get(token).and_then(|waits| waits.get(name));
        positions.into_iter().flatten().copied()
    }

    /// Those in a queue whose tokens wait elsewhere too, or twice here.
    pub(crate) fn also_elsewhere<'a>(
        &'a self,
        name: &Name<'a>,
    ) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let positions = self.queues.get(name).into_iter().flat_map(|queue| &queue.also_elsewhere);
        positions.filter_map(|(_, id)| self.waiters.get(id))
    }

    /// The waiter behind this position; the head where it is None.
    pub(crate) fn next_in_queue(&self, name: &Name<'_>, position: Option<Position>) -> Option<&Waiter> {
        let behind = (position.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.queues.get(name)?.positions.range(behind).next().and_then(|(_, id)| self.waiters.get(id))
    }

    /// When the first wait times out.
    pub fn next_timeout(&self) -> Option<Deadline> {
        self.timeouts.first().map(|(due, _)| due)
    }

    /// A waiter that has timed out.
    pub fn timed_out(&self, now: Instant) -> Option<WaiterId> {
        let (due, slot) = self.timeouts.first()?;
        if due.passed(now) { self.timeouts.get(slot).copied() } else { None }
    }
}
