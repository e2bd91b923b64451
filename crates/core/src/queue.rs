//! The wait queues: one per lock, first come first served, in memory only.
//!
//! This module keeps the order and finds waiters. It grants nothing: [`crate::decide`] serves the queues.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::{mem, ops};

use dlock_protocol::{ClientId, Deadline, Instant, LockRequest, LockRequestRef, OwnerId, OwnerIdRef, Token};
use smallvec::SmallVec;

use crate::deliveries::{Deliveries, shrink_if_sparse};
use crate::schedule::Schedule;

pub(crate) mod waiter;

pub use waiter::{
    Granted, Kept, Limits, Name, NewPosition, NewWaiter, Outcome, Party, Queued, Rank, WaitKind, Waiter,
    WaiterId,
};
pub(crate) use waiter::{Position, swap_db};

/// All waiters of this server.
#[derive(Clone, Default)]
pub struct Waiting {
    /// In the order in which they began to wait. Boxed, so that a join or an end moves pointers only.
    waiters: BTreeMap<WaiterId, Box<Waiter>>,
    queues: HashMap<Name<'static>, Queue>,
    /// The queues in the order in which they began: by [`Queue::began`].
    begun: BTreeMap<WaiterId, Name<'static>>,
    by_token: HashMap<Token, Waits>,
    by_owner: BTreeSet<(OwnerId, WaiterId)>,
    by_client: HashMap<ClientId, WaiterId>,
    /// Waits with a timeout, by the time of the next check. A wait that was extended is still checked at its
    /// former end, and rescheduled then.
    timeouts: Schedule<WaiterId>,
    /// Number of waiters by QUEUE, which have no connection.
    queued: usize,
    bound: BoundPositions,
    last_id: u64,
    /// The grants that their waiters may not know of yet, and the replies that announce these grants.
    pub deliveries: Deliveries,
}

/// The queue of one lock.
#[derive(Clone, Default)]
struct Queue {
    /// The waiter that began the queue. It may have left since.
    began: Option<WaiterId>,
    positions: BTreeSet<Position>,
    /// The positions of waiters with a token or an owner that waits more than once, here or elsewhere. The
    /// search for deadlocks reads only these, so that a long queue of other waiters costs it nothing.
    marked: BTreeSet<Position>,
}

impl Waiting {
    /// Number of waiters, with and without a connection.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Number of connections that wait.
    pub fn clients(&self) -> usize {
        self.by_client.len()
    }

    /// Number of waiters by QUEUE, which have no connection.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Length of one queue.
    #[inline]
    pub fn len_of(&self, name: &Name<'_>) -> usize {
        if self.is_empty() { 0 } else { self.positions_of(name) }
    }

    #[inline(never)]
    fn positions_of(&self, name: &Name<'_>) -> usize {
        self.queues.get(name).map_or(0, |queue| queue.positions.len())
    }

    /// Adds a waiter. [`crate::joining`] has checked the limits and searched for a deadlock. `None` if no
    /// more timeouts can be scheduled.
    pub fn join(&mut self, newcomer: NewWaiter<'_>) -> Option<WaiterId> {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let NewWaiter { name, rank, request, kind, since, until } = newcomer;
        let timeout = match until {
            Some(until) => Some(self.timeouts.insert(until, id)?),
            None => None,
        };
        let (name, request) = (name.to_owned(), request.to_owned());
        let waiter = Box::new(Waiter { id, rank, name, request, kind, since, until, timeout });
        if let WaitKind::Beside(_, queued_id) = waiter.kind {
            let kind = self.waiters.get_mut(&queued_id).map(|queued| &mut queued.kind);
            if let Some(WaitKind::Queued(queued)) = kind {
                queued.beside.push(id);
            }
        } else {
            self.join_queue(&waiter);
        }
        if let Some(client) = waiter.client() {
            self.by_client.insert(client, id);
        }
        self.bound.bind(id, waiter.bound_to());
        self.waiters.insert(id, waiter);
        Some(id)
    }

    fn join_queue(&mut self, waiter: &Waiter) {
        if let WaitKind::Queued(_) = waiter.kind {
            self.queued += 1;
        }
        let queue = self.queues.entry(waiter.name.clone()).or_default();
        queue.positions.insert(waiter.position());
        if queue.began.is_none() {
            queue.began = Some(waiter.id);
            self.begun.insert(waiter.id, waiter.name.clone());
        }
        self.index_token(waiter);
        self.index_owner(waiter);
    }

    /// Removes a waiter and the connections that wait beside it ([`WaitKind::Beside`]). The waiter is the
    /// first of the result.
    pub fn leave_all(&mut self, id: WaiterId) -> SmallVec<[Waiter; 1]> {
        let waiter = self.leave(id);
        let beside = waiter.as_ref().map_or(&[][..], Waiter::beside).to_vec();
        waiter.into_iter().chain(beside.into_iter().filter_map(|id| self.leave(id))).collect()
    }

    /// Removes a waiter, but not the connections that wait beside it: see [`Waiting::leave_all`].
    pub fn leave(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = *self.waiters.remove(&id)?;
        if let WaitKind::Beside(_, queued_id) = waiter.kind {
            let kind = self.waiters.get_mut(&queued_id).map(|queued| &mut queued.kind);
            if let Some(WaitKind::Queued(queued)) = kind {
                queued.beside.retain(|beside| *beside != id);
            }
        } else {
            self.leave_queue(&waiter);
        }
        if let Some(client) = waiter.client()
            && self.by_client.get(&client) == Some(&id)
        {
            self.by_client.remove(&client);
            shrink_if_sparse(&mut self.by_client);
        }
        self.bound.unbind(id, waiter.bound_to());
        if let Some(timeout) = waiter.timeout {
            self.timeouts.remove(timeout);
        }
        Some(waiter)
    }

    fn leave_queue(&mut self, waiter: &Waiter) {
        self.queued -= usize::from(matches!(waiter.kind, WaitKind::Queued(_)));
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.positions.remove(&waiter.position());
            queue.marked.remove(&waiter.position());
            if queue.positions.is_empty() {
                queue.began.iter().for_each(|first| drop(self.begun.remove(first)));
                self.queues.remove(&waiter.name);
                shrink_if_sparse(&mut self.queues);
            }
        }
        self.unindex_token(waiter);
        self.unindex_owner(waiter);
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

    /// The waiters of a queue, the head first.
    pub fn queue<'a>(&'a self, name: &Name<'a>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.queues
            .get(name)
            .into_iter()
            .flat_map(|queue| &queue.positions)
            .filter_map(|(_, id)| self.get(*id))
    }

    /// The queues that began after this one, in that order.
    pub fn queues_behind(&self, began: WaiterId) -> impl Iterator<Item = (WaiterId, &Name<'static>)> {
        self.begun.range((ops::Bound::Excluded(began), ops::Bound::Unbounded)).map(|(id, name)| (*id, name))
    }

    pub fn of_client(&self, client: ClientId) -> Option<&Waiter> {
        self.get(*self.by_client.get(&client)?)
    }

    /// The sharer that waits for an upgrade, if there is one.
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

    /// The marked waiters in a range of positions: see [`Queue::marked`].
    pub(crate) fn marked_waiters<'a>(
        &'a self,
        name: &Name<'a>,
        positions: ops::Range<Position>,
    ) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let positions = self.queues.get(name).map(|queue| queue.marked.range(positions));
        positions.into_iter().flatten().filter_map(|(_, id)| self.get(*id))
    }

    /// Time of the next check for timeouts.
    pub fn next_timeout(&self) -> Option<Deadline> {
        self.timeouts.first().map(|(due, _)| due)
    }

    /// A waiter that has timed out. Reschedules the checks of extended waits, a limited number per call.
    pub fn timed_out(&mut self, now: Instant) -> Option<WaiterId> {
        for _ in 0..MAX_RESCHEDULED {
            let (_, slot) = self.timeouts.first().filter(|(due, _)| due.passed(now))?;
            let id = *self.timeouts.get(slot)?;
            match self.waiters.get(&id)?.until {
                Some(until) if !until.passed(now) => self.timeouts.reschedule(slot, until),
                _ => return Some(id),
            }
        }
        None
    }

    /// The waiter by QUEUE of a token, in the queue of this lock.
    pub fn queued_waiter_of(&self, token: &[u8], name: &Name<'_>) -> Option<&Waiter> {
        let is_queued = |waiter: &&Waiter| matches!(waiter.kind, WaitKind::Queued(_));
        self.of_token_on(token, name).iter().filter_map(|id| self.get(*id)).find(is_queued)
    }

    /// Renews a queue position with the options of a repeated request.
    pub(crate) fn renew_position(
        &mut self,
        id: WaiterId,
        request: &LockRequestRef<'_>,
        queued: Queued,
        until: Option<Deadline>,
    ) -> Option<Kept> {
        let has_owner = self.get(id)?.request.owner.clone();
        if has_owner.as_ref().map(OwnerId::borrowed) != request.owner {
            self.change_owner(id, request.owner);
        }
        let waiter = self.waiters.get_mut(&id)?;
        let before = waiter.bound_to();
        let earlier = until.filter(|until| waiter.until.is_some_and(|was| *until < was));
        let had_until = mem::replace(&mut waiter.until, until);
        let had_request = mem::replace(&mut waiter.request, request.to_owned());
        let had_request = LockRequest { owner: has_owner, ..had_request };
        let WaitKind::Queued(attributes) = &mut waiter.kind else { return None };
        let beside = mem::take(&mut attributes.beside);
        let had_queued = mem::replace(attributes, Queued { beside, ..queued });
        if let Some((slot, until)) = waiter.timeout.zip(earlier) {
            self.timeouts.reschedule(slot, until);
        }
        let after = waiter.bound_to();
        if before != after {
            self.bound.unbind(id, before);
            self.bound.bind(id, after);
        }
        Some(Kept(id, Box::new((had_request, had_queued, had_until))))
    }

    /// Undoes the renewal of a position.
    pub(crate) fn restore(&mut self, kept: Kept) {
        let Kept(id, before) = kept;
        let (request, queued, until) = *before;
        self.renew_position(id, &request.borrowed(), queued, until);
    }

    /// A connection has closed. Returns whether a position was bound to it.
    pub fn client_gone(&mut self, client: ClientId) -> bool {
        self.bound.close(client)
    }

    /// The outcome of a wait that has ended by itself, and is not answered yet: it has timed out, or the
    /// connection to which it was bound (EPHEMERAL) has closed. `None` if the wait continues.
    pub fn outcome_if_over(&self, waiter: &Waiter, now: Instant) -> Option<Outcome> {
        if waiter.bound_to().is_some_and(|client| self.bound.is_closed(client)) {
            return Some(Outcome::Cancelled);
        }
        waiter.until.is_some_and(|until| until.passed(now)).then_some(Outcome::TimedOut)
    }

    /// A wait that has ended by itself, with its outcome: see [`Waiting::outcome_if_over`].
    pub fn next_over(&mut self, now: Instant) -> Option<(&Waiter, Outcome)> {
        let id = self.bound.first_over().or_else(|| self.timed_out(now))?;
        let waiter = self.get(id)?;
        Some((waiter, self.outcome_if_over(waiter, now)?))
    }

    /// Time at which the next wait may end by itself. May be too early for a wait that was extended.
    pub fn next_due(&self) -> Option<Deadline> {
        self.bound.first_over().map(|_| Deadline::at_millis(0)).or_else(|| self.next_timeout())
    }

    /// The waiter that has waited longest, in all queues.
    pub fn longest(&self) -> Option<&Waiter> {
        self.waiters.values().next().map(|waiter| &**waiter)
    }

    /// The head of the oldest queue.
    pub fn any_head(&self) -> Option<&Waiter> {
        self.begun.values().next().and_then(|name| self.head(name))
    }
}

/// Finding waiters by their token and by their owner.
impl Waiting {
    /// The waiters of a token, in all queues.
    pub fn of_token<'a>(&'a self, token: &[u8]) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let (single, several) = match self.by_token.get(token) {
            Some(Waits::One(position)) => (Some(position), None),
            Some(Waits::Several(positions)) => (None, Some(&**positions)),
            None => (None, None),
        };
        let several = several.into_iter().flatten().map(|(_, position)| position);
        single.into_iter().chain(several).filter_map(|(_, id)| self.get(*id))
    }

    /// The waiters of a token in one queue, in the order of their arrival.
    pub fn of_token_on(&self, token: &[u8], name: &Name<'_>) -> SmallVec<[WaiterId; 2]> {
        let mut ids: SmallVec<_> = self.positions(token, name).map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// The positions of a token in one queue, the first one first.
    pub(crate) fn positions<'a>(
        &'a self,
        token: &[u8],
        name: &Name<'_>,
    ) -> impl Iterator<Item = Position> + use<'a> {
        let waits = if self.is_empty() { None } else { self.by_token.get(token) };
        let (single, several) = match waits {
            Some(Waits::One(at)) => {
                (Some(*at).filter(|(_, id)| self.get(*id).is_some_and(|w| w.name == *name)), None)
            }
            Some(Waits::Several(positions)) => {
                let name = name.to_owned();
                let here = positions.range((name.clone(), FIRST)..);
                (None, Some(here.take_while(move |(at, _)| *at == name).map(|(_, position)| *position)))
            }
            None => (None, None),
        };
        single.into_iter().chain(several.into_iter().flatten())
    }

    /// The waiters of a party of the wait-for graph, in all queues.
    pub(crate) fn of_party<'a>(&'a self, party: &Party) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let (token, owner) = match party {
            Party::Token(token) => (Some(token), None),
            Party::Owner(owner) => (None, Some(owner)),
        };
        let by_token = token.map(|token| self.of_token(token.as_bytes()));
        let by_token = by_token.into_iter().flatten().filter(|waiter| waiter.request.owner.is_none());
        let by_owner = owner.map(|owner| self.of_owner(owner));
        by_token.chain(by_owner.into_iter().flatten().filter_map(|id| self.get(id)))
    }

    fn of_owner<'a>(&'a self, owner: &OwnerId) -> impl Iterator<Item = WaiterId> + use<'a> {
        let [first, last] = [0, u64::MAX].map(|id| (owner.clone(), WaiterId(id)));
        self.by_owner.range(first..=last).map(|(_, id)| *id)
    }

    /// Adds the queue position of a waiter to the positions of its token.
    fn index_token(&mut self, waiter: &Waiter) {
        let mut waits = match self.by_token.entry(waiter.request.token.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Waits::One(waiter.position()));
                return;
            }
            Entry::Occupied(waits) => waits,
        };
        let mut first = None;
        if let Waits::One(position) = *waits.get()
            && let Some(other) = self.waiters.get(&position.1)
        {
            first = Some(position.1);
            waits.insert(Waits::Several(Box::new([(other.name.clone(), position)].into())));
        }
        if let Waits::Several(positions) = waits.get_mut() {
            positions.insert((waiter.name.clone(), waiter.position()));
        }
        self.mark(waiter.name.clone(), waiter.position());
        if let Some(first) = first.and_then(|id| self.get(id)) {
            self.mark(first.name.clone(), first.position());
        }
    }

    fn index_owner(&mut self, waiter: &Waiter) {
        let Some(owner) = &waiter.request.owner else { return };
        let first = self.of_owner(owner).next();
        self.by_owner.insert((owner.clone(), waiter.id));
        if let Some(first) = first.and_then(|id| self.get(id)) {
            self.mark(first.name.clone(), first.position());
            self.mark(waiter.name.clone(), waiter.position());
        }
    }

    /// Marks a position: see [`Queue::marked`].
    fn mark(&mut self, name: Name<'static>, position: Position) {
        self.queues.entry(name).or_default().marked.insert(position);
    }

    fn unindex_token(&mut self, waiter: &Waiter) {
        let Some(waits) = self.by_token.get_mut(&waiter.request.token) else { return };
        let Waits::Several(positions) = waits else {
            self.by_token.remove(&waiter.request.token);
            return shrink_if_sparse(&mut self.by_token);
        };
        positions.remove(&(waiter.name.clone(), waiter.position()));
        if positions.len() == 1
            && let Some((_, last)) = positions.pop_first()
        {
            *waits = Waits::One(last);
            self.unmark_single(last.1);
        }
    }

    fn unindex_owner(&mut self, waiter: &Waiter) {
        let Some(owner) = &waiter.request.owner else { return };
        self.by_owner.remove(&(owner.clone(), waiter.id));
        let last = self.of_owner(owner).next();
        if let Some(last) = last {
            self.unmark_single(last);
        }
    }

    /// Removes the mark of a waiter if this is the only wait of its token and of its owner.
    fn unmark_single(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let request = &waiter.request;
        let waits_again = matches!(self.by_token.get(&request.token), Some(Waits::Several(_)))
            || request.owner.as_ref().is_some_and(|owner| self.of_owner(owner).nth(1).is_some());
        if !waits_again && let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.marked.remove(&waiter.position());
        }
    }

    /// Sets the owner that a queued waiter has from now on.
    fn change_owner(&mut self, id: WaiterId, owner: Option<OwnerIdRef<'_>>) {
        let Some(mut waiter) = self.waiters.remove(&id) else { return };
        self.unindex_owner(&waiter);
        waiter.request.owner = owner.map(OwnerIdRef::to_owned);
        self.index_owner(&waiter);
        self.waiters.insert(id, waiter);
        self.unmark_single(id);
    }
}

/// The queue positions of a token. Nearly every token waits once.
#[derive(Clone)]
enum Waits {
    One(Position),
    /// Boxed, so that the usual form takes 16 bytes: there can be 100,000 of them.
    #[expect(clippy::box_collection, reason = "a set takes 24 bytes")]
    Several(Box<BTreeSet<(Name<'static>, Position)>>),
}

/// Less than every position.
const FIRST: Position = (Rank::Upgrade, WaiterId(0));

/// Maximum number of checks that one call of [`Waiting::timed_out`] reschedules.
const MAX_RESCHEDULED: usize = 256;

/// The EPHEMERAL positions, each of which ends with a connection.
#[derive(Clone, Default)]
struct BoundPositions {
    positions: HashMap<ClientId, BTreeSet<WaiterId>>,
    /// The closed connections with positions that the module's background job has not removed yet.
    closed: BTreeSet<ClientId>,
}

impl BoundPositions {
    fn bind(&mut self, id: WaiterId, client: Option<ClientId>) {
        if let Some(client) = client {
            self.positions.entry(client).or_default().insert(id);
        }
    }

    fn unbind(&mut self, id: WaiterId, client: Option<ClientId>) {
        let Some(client) = client else { return };
        let Some(positions) = self.positions.get_mut(&client) else { return };
        positions.remove(&id);
        if positions.is_empty() {
            self.positions.remove(&client);
            self.closed.remove(&client);
        }
    }

    /// Returns whether a position was bound to this connection.
    fn close(&mut self, client: ClientId) -> bool {
        self.positions.contains_key(&client) && self.closed.insert(client)
    }

    fn is_closed(&self, client: ClientId) -> bool {
        self.closed.contains(&client)
    }

    /// A position that is bound to a closed connection.
    fn first_over(&self) -> Option<WaiterId> {
        self.positions.get(self.closed.first()?)?.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{TokenRef, Ttl};
    use proptest::prelude::*;

    use super::*;

    /// An extended wait is rescheduled only when its old deadline is due, a shortened one at once.
    #[test]
    fn a_renewed_position_times_out_at_its_last_deadline() {
        let at = Instant::from_millis;
        let request = LockRequestRef::new(TokenRef::new(b"t").unwrap(), Ttl::MAX);
        let queued = || Queued::new(ClientId(1), None, None);
        let mut waiting = Waiting::default();
        let (name, kind, until) =
            (Name::new(0, b"k"), WaitKind::Queued(queued()), Some(at(0).after_millis(100)));
        let newcomer = NewWaiter { name, rank: Rank::Newcomer, request, kind, since: at(0), until };
        let id = waiting.join(newcomer).unwrap();
        waiting.renew_position(id, &request, queued(), Some(at(0).after_millis(500)));
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(100)), "the old deadline is still scheduled");
        assert_eq!(waiting.next_over(at(499)), None);
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(500)), "the wait is scheduled again");
        waiting.renew_position(id, &request, queued(), Some(at(0).after_millis(50)));
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(50)));
        assert_eq!(waiting.next_over(at(49)), None);
        let over = waiting.next_over(at(50)).map(|(waiter, outcome)| (waiter.id, outcome));
        assert_eq!(over, Some((id, Outcome::TimedOut)));
    }

    const KEYS: [&[u8]; 2] = [b"k", b"l"];
    const OWNERS: [&str; 4] = ["", "o", "o/p", "r"];

    #[derive(Clone, Debug)]
    enum Op {
        /// Joins the queue of a key (an index into [`KEYS`]), with an owner (an index into [`OWNERS`]) and a
        /// token.
        Join(usize, usize, u8),
        /// Removes the waiter of this index, modulo the number of waiters.
        Leave(usize),
        /// Gives the waiter of this index, modulo the number of waiters, another owner.
        Renew(usize, usize),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..2usize, 0..4usize, 0..3u8).prop_map(|(key, owner, token)| Op::Join(key, owner, token)),
            2 => any::<usize>().prop_map(Op::Leave),
            2 => (any::<usize>(), 0..4usize).prop_map(|(which, owner)| Op::Renew(which, owner)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_waiter_is_marked_when_its_token_or_its_owner_waits_twice(moves in prop::collection::vec(any_op(), 1..40)) {
            let (mut waiting, mut ids, now) = (Waiting::default(), Vec::new(), Instant::from_millis(0));
            let queued = || Queued::new(ClientId(1), None, None);
            for step in moves {
                match step {
                    Op::Join(key, owner, token) => {
                        let (token, owner) = ([b'a' + token], OwnerId::new(OWNERS[owner].as_bytes()));
                        let request = LockRequestRef {
                            owner: owner.as_ref().map(OwnerId::borrowed),
                            ..LockRequestRef::new(TokenRef::new(&token).unwrap(), Ttl::MAX)
                        };
                        let (name, rank) = (Name::new(0, KEYS[key]), Rank::Newcomer);
                        let kind = WaitKind::Queued(queued());
                        ids.extend(waiting.join(NewWaiter { name, rank, request, kind, since: now, until: None }));
                    }
                    Op::Leave(which) if !ids.is_empty() => {
                        waiting.leave(ids.swap_remove(which % ids.len())).unwrap();
                    }
                    Op::Renew(which, owner) if !ids.is_empty() => {
                        let id = ids[which % ids.len()];
                        let owner = OwnerId::new(OWNERS[owner].as_bytes());
                        let asked = waiting.get(id).unwrap().request.clone();
                        let asked = LockRequestRef { owner: owner.as_ref().map(OwnerId::borrowed), ..asked.borrowed() };
                        waiting.renew_position(id, &asked, queued(), Some(now.after_millis(1)));
                    }
                    Op::Leave(_) | Op::Renew(..) => {}
                }
                let all: Vec<&Waiter> = ids.iter().filter_map(|id| waiting.get(*id)).collect();
                for waiter in &all {
                    let (token, owner) = (&waiter.request.token, &waiter.request.owner);
                    let same_token = all.iter().filter(|other| other.request.token == *token).count();
                    let same_owner = all.iter().filter(|other| owner.is_some() && other.request.owner == *owner).count();
                    let marked = waiting.queues[&waiter.name].marked.contains(&waiter.position());
                    prop_assert_eq!(marked, same_token > 1 || same_owner > 1, "{:?} of {:?}", waiter, all);
                    let party = waiter.party();
                    let of_party = all.iter().filter(|other| other.party() == party).count();
                    prop_assert_eq!(waiting.of_party(&party).count(), of_party);
                }
            }
        }
    }
}
