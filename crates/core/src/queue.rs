//! Who waits: a queue for each resource, first come first served, and the ways to find a waiter in it.
//!
//! It keeps the order and decides no grant: that is [`crate::decide`], which serves a queue from its head.
//! Nothing here is stored or sent: the queues live in memory alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops;

use dlock_protocol::{ClientId, Deadline, Instant, OwnerId, Token};
use smallvec::SmallVec;

use crate::deliveries::Deliveries;
use crate::schedule::Schedule;
use crate::step::Departed;

mod bound;
mod parties;
mod queued;
mod waiter;

use bound::Bound;
pub use parties::Party;
use parties::Waits;
pub use waiter::{Limits, Name, Newcomer, Owner, Queued, Rank, Waiter, WaiterId};
pub(crate) use waiter::{Position, swap};

/// Everybody who waits on this server.
#[derive(Clone, Default)]
pub struct Waiting {
    /// Boxed, so that a table of many is not copied over as a whole when it grows.
    waiters: HashMap<WaiterId, Box<Waiter>>,
    queues: HashMap<Name<'static>, Queue>,
    /// The queues by the waiter with whom each began: an order that does not change.
    begun: BTreeMap<WaiterId, Name<'static>>,
    by_token: HashMap<Token, Waits>,
    by_owner: BTreeSet<(OwnerId, WaiterId)>,
    by_client: HashMap<ClientId, WaiterId>,
    /// Each by when it has to be looked at: a wait that was made longer is put off then.
    timeouts: Schedule<WaiterId>,
    /// How many positions belong to their tokens, and those of them that end with a connection.
    queued: usize,
    bound: Bound,
    last_id: u64,
    /// What those who waited were granted and may not know of.
    pub deliveries: Deliveries,
}

/// The queue of a resource.
#[derive(Clone, Default)]
struct Queue {
    began: Option<WaiterId>,
    positions: BTreeSet<Position>,
    /// The positions of waiters whose token or owner waits more than once: see [`parties`].
    often: BTreeSet<Position>,
}

/// Gives the memory of a crowd back once most of it has left.
pub fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    const NO_CROWD: usize = 1_000;
    if map.capacity() > NO_CROWD && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

impl Waiting {
    /// How many wait, connections and positions.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many connections wait.
    pub fn clients(&self) -> usize {
        self.by_client.len()
    }

    /// How many positions belong to their tokens.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// How many positions the queue of a resource has.
    #[inline]
    pub fn len_of(&self, name: &Name<'_>) -> usize {
        if self.is_empty() { 0 } else { self.positions_of(name) }
    }

    #[inline(never)]
    fn positions_of(&self, name: &Name<'_>) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.positions.len())
    }

    /// Whether there is room for one more of this owner.
    pub fn has_room(&self, name: &Name<'_>, owner: &Owner, limits: Limits) -> bool {
        let on_the_key = || self.len_of(name) < limits.on_a_key;
        match owner {
            Owner::Client(_) => self.clients() < limits.on_the_server && on_the_key(),
            Owner::Token(_) => self.queued < limits.queued && on_the_key(),
            Owner::Beside(_, position) => {
                let beside = self.get(*position).map_or(0, |waiter| waiter.beside().len());
                self.clients() < limits.on_the_server && beside < limits.on_a_key
            }
        }
    }

    /// Joins the queue. The caller has looked whether there is room and whether waiting would close a cycle.
    pub fn join(&mut self, newcomer: Newcomer<'_>) -> Option<WaiterId> {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let Newcomer { name, rank, request, owner, since, until } = newcomer;
        let timeout = match until {
            Some(until) => Some(self.timeouts.insert(until, id)?),
            None => None,
        };
        let (name, request) = (name.to_owned(), request.to_owned());
        let waiter = Box::new(Waiter { id, rank, name, request, owner, since, until, timeout });
        if let Owner::Beside(_, position) = waiter.owner {
            let position = self.waiters.get_mut(&position).map(|position| &mut position.owner);
            if let Some(Owner::Token(queued)) = position {
                queued.beside.push(id);
            }
        } else {
            self.line_up(&waiter);
        }
        if let Some(client) = waiter.client() {
            self.by_client.insert(client, id);
        }
        self.bound.begin(id, waiter.bound_to());
        self.waiters.insert(id, waiter);
        Some(id)
    }

    fn line_up(&mut self, waiter: &Waiter) {
        if let Owner::Token(_) = waiter.owner {
            self.queued += 1;
        }
        let queue = self.queues.entry(waiter.name.clone()).or_default();
        queue.positions.insert(waiter.position());
        if queue.began.is_none() {
            queue.began = Some(waiter.id);
            self.begun.insert(waiter.id, waiter.name.clone());
        }
        self.index(waiter);
    }

    /// Takes a waiter out of its queue, and with it those who wait beside it, behind it.
    pub fn leave_all(&mut self, id: WaiterId) -> SmallVec<[Waiter; 1]> {
        let waiter = self.leave(id);
        let beside = waiter.as_ref().map_or(&[][..], Waiter::beside).to_vec();
        waiter.into_iter().chain(beside.into_iter().filter_map(|id| self.leave(id))).collect()
    }

    /// Takes a waiter out of its queue, wherever it stands. Those who wait beside it are left to the caller.
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = *self.waiters.remove(&id)?;
        if let Owner::Beside(_, position) = waiter.owner {
            let position = self.waiters.get_mut(&position).map(|position| &mut position.owner);
            if let Some(Owner::Token(queued)) = position {
                queued.beside.retain(|beside| *beside != id);
            }
        } else {
            self.step_out(&waiter);
        }
        if let Some(client) = waiter.client()
            && self.by_client.get(&client) == Some(&id)
        {
            self.by_client.remove(&client);
            give_back(&mut self.by_client);
        }
        self.bound.end(id, waiter.bound_to());
        if let Some(timeout) = waiter.timeout {
            self.timeouts.remove(timeout);
        }
        give_back(&mut self.waiters);
        Some(waiter)
    }

    fn step_out(&mut self, waiter: &Waiter) {
        self.queued -= usize::from(matches!(waiter.owner, Owner::Token(_)));
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.positions.remove(&waiter.position());
            queue.often.remove(&waiter.position());
            if queue.positions.is_empty() {
                queue.began.iter().for_each(|first| drop(self.begun.remove(first)));
                self.queues.remove(&waiter.name);
                give_back(&mut self.queues);
            }
        }
        self.unindex(waiter);
    }

    pub fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id).map(|waiter| &**waiter)
    }

    /// The head of the queue.
    pub fn head(&self, name: &Name<'_>) -> Option<&Waiter> {
        if self.is_empty() {
            return None;
        }
        self.queues.get(name)?.positions.first().and_then(|(_, id)| self.get(*id))
    }

    /// Everybody in the queue, its head first.
    pub fn queue<'a>(&'a self, name: &Name<'a>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.queues
            .get(name)
            .into_iter()
            .flat_map(|queue| &queue.positions)
            .filter_map(|(_, id)| self.get(*id))
    }

    /// The resources somebody waits for whose queues began behind this one, in that order.
    pub fn queues_behind(&self, began: WaiterId) -> impl Iterator<Item = (WaiterId, &Name<'static>)> {
        self.begun.range((ops::Bound::Excluded(began), ops::Bound::Unbounded)).map(|(id, name)| (*id, name))
    }

    pub fn of_client(&self, client: ClientId) -> Option<&Waiter> {
        self.get(*self.by_client.get(&client)?)
    }

    /// Whether a sharer waits to be the exclusive holder.
    pub fn upgrader(&self, name: &Name<'_>) -> Option<&Waiter> {
        self.head(name).filter(|waiter| waiter.rank == Rank::Upgrade)
    }

    /// The waiters ahead of a position, the nearest first.
    pub(crate) fn ahead<'a>(
        &'a self,
        name: &Name<'a>,
        position: Position,
    ) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let positions = self.queues.get(name).map(|queue| queue.positions.range(..position).rev());
        positions.into_iter().flatten().filter_map(|(_, id)| self.get(*id))
    }

    /// The waiters in a range of positions whose token or owner also waits elsewhere, or twice here.
    pub(crate) fn waiting_often<'a>(
        &'a self,
        name: &Name<'a>,
        positions: ops::Range<Position>,
    ) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let positions = self.queues.get(name).map(|queue| queue.often.range(positions));
        positions.into_iter().flatten().filter_map(|(_, id)| self.get(*id))
    }

    /// When a wait has to be looked at that may have timed out.
    pub fn next_timeout(&self) -> Option<Deadline> {
        self.timeouts.first().map(|(due, _)| due)
    }

    /// A waiter that has timed out. Of many that were made longer meanwhile a call puts off some.
    pub fn timed_out(&mut self, now: Instant) -> Option<WaiterId> {
        for _ in 0..Departed::SLICE {
            let (_, slot) = self.timeouts.first().filter(|(due, _)| due.passed(now))?;
            let id = *self.timeouts.get(slot)?;
            match self.waiters.get(&id)?.until {
                Some(until) if !until.passed(now) => self.timeouts.reschedule(slot, until),
                _ => return Some(id),
            }
        }
        None
    }
}
