//! Finds waiters by their token and by their owner.
//!
//! The search for deadlocks also needs to find, in a queue, the waiters whose party waits elsewhere too:
//! [`Queue::often`](super::Queue) lists them, so that a long queue of other waiters costs the search nothing.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

use dlock_protocol::{OwnerId, OwnerIdRef, Token};
use smallvec::SmallVec;

use super::{Name, Position, Rank, Waiter, WaiterId, Waiting, give_back};

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

/// The queue positions of a token. Nearly every token waits once.
#[derive(Clone)]
pub(super) enum Waits {
    Once(Position),
    Often(BTreeSet<(Name<'static>, Position)>),
}

/// Less than every position.
const FIRST: Position = (Rank::Upgrade, WaiterId(0));

impl Waiting {
    /// The waiters of a token, in all queues.
    pub fn of_token<'a>(&'a self, token: &[u8]) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let (once, often) = match self.by_token.get(token) {
            Some(Waits::Once(position)) => (Some(position), None),
            Some(Waits::Often(positions)) => (None, Some(positions)),
            None => (None, None),
        };
        let often = often.into_iter().flatten().map(|(_, position)| position);
        once.into_iter().chain(often).filter_map(|(_, id)| self.get(*id))
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
        let (once, often) = match waits {
            Some(Waits::Once(at)) => {
                (Some(*at).filter(|(_, id)| self.get(*id).is_some_and(|w| w.name == *name)), None)
            }
            Some(Waits::Often(positions)) => {
                let name = name.to_owned();
                let from = positions.range((name.clone(), FIRST)..);
                (None, Some(from.take_while(move |(at, _)| *at == name).map(|(_, position)| *position)))
            }
            None => (None, None),
        };
        once.into_iter().chain(often.into_iter().flatten())
    }

    /// The waiters of a party, in all queues.
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

    /// Enters a waiter that has joined its queue.
    pub(super) fn index(&mut self, waiter: &Waiter) {
        self.index_token(waiter);
        if waiter.request.owner.is_some() {
            self.index_owner(waiter);
        }
    }

    fn index_token(&mut self, waiter: &Waiter) {
        let mut waits = match self.by_token.entry(waiter.request.token.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Waits::Once(waiter.position()));
                return;
            }
            Entry::Occupied(waits) => waits,
        };
        let mut first = None;
        if let Waits::Once(position) = *waits.get()
            && let Some(other) = self.waiters.get(&position.1)
        {
            first = Some(position.1);
            waits.insert(Waits::Often([(other.name.clone(), position)].into()));
        }
        if let Waits::Often(positions) = waits.get_mut() {
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

    fn mark(&mut self, name: Name<'static>, position: Position) {
        self.queues.entry(name).or_default().often.insert(position);
    }

    /// Removes a waiter that has left its queue.
    pub(super) fn unindex(&mut self, waiter: &Waiter) {
        self.unindex_token(waiter);
        if waiter.request.owner.is_some() {
            self.unindex_owner(waiter);
        }
    }

    fn unindex_token(&mut self, waiter: &Waiter) {
        let Some(waits) = self.by_token.get_mut(&waiter.request.token) else { return };
        let Waits::Often(positions) = waits else {
            self.by_token.remove(&waiter.request.token);
            return give_back(&mut self.by_token);
        };
        positions.remove(&(waiter.name.clone(), waiter.position()));
        if positions.len() == 1
            && let Some((_, last)) = positions.pop_first()
        {
            *waits = Waits::Once(last);
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

    /// Removes the mark of a waiter whose token and owner wait nowhere else.
    fn unmark_single(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let request = &waiter.request;
        let often = matches!(self.by_token.get(&request.token), Some(Waits::Often(_)))
            || request.owner.as_ref().is_some_and(|owner| self.of_owner(owner).nth(1).is_some());
        if !often && let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.often.remove(&waiter.position());
        }
    }

    /// Sets the owner that a queued waiter has from now on.
    pub(super) fn change_owner(&mut self, id: WaiterId, owner: Option<OwnerIdRef<'_>>) {
        let Some(mut waiter) = self.waiters.remove(&id) else { return };
        self.unindex_owner(&waiter);
        waiter.request.owner = owner.map(OwnerIdRef::to_owned);
        self.index_owner(&waiter);
        self.waiters.insert(id, waiter);
        self.unmark_single(id);
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{ClientId, Instant, LockRequestRef, TokenRef, Ttl};
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{Newcomer, Owner, Queued};

    const KEYS: [&[u8]; 2] = [b"k", b"l"];
    const OWNERS: [&str; 4] = ["", "o", "o/p", "r"];

    #[derive(Clone, Debug)]
    enum Do {
        Join(usize, usize, u8),
        Leave(usize),
        Keep(usize, usize),
    }

    fn any_do() -> impl Strategy<Value = Do> {
        prop_oneof![
            4 => (0..2usize, 0..4usize, 0..3u8).prop_map(|(key, owner, token)| Do::Join(key, owner, token)),
            2 => any::<usize>().prop_map(Do::Leave),
            2 => (any::<usize>(), 0..4usize).prop_map(|(which, owner)| Do::Keep(which, owner)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_waiter_is_marked_when_its_token_or_its_owner_waits_twice(moves in prop::collection::vec(any_do(), 1..40)) {
            let (mut waiting, mut ids, now) = (Waiting::default(), Vec::new(), Instant::from_millis(0));
            let queued = || Queued::new(ClientId(1), None, None, false);
            for step in moves {
                match step {
                    Do::Join(key, owner, token) => {
                        let (token, owner) = ([b'a' + token], OwnerId::new(OWNERS[owner].as_bytes()));
                        let request = LockRequestRef {
                            owner: owner.as_ref().map(OwnerId::borrowed),
                            ..LockRequestRef::new(TokenRef::new(&token).unwrap(), Ttl::MAX)
                        };
                        let (name, rank) = (Name::new(0, KEYS[key]), Rank::Newcomer);
                        let owner = Owner::Token(queued());
                        ids.extend(waiting.join(Newcomer { name, rank, request, owner, since: now, until: None }));
                    }
                    Do::Leave(which) if !ids.is_empty() => {
                        waiting.leave(ids.swap_remove(which % ids.len())).unwrap();
                    }
                    Do::Keep(which, owner) if !ids.is_empty() => {
                        let id = ids[which % ids.len()];
                        let owner = OwnerId::new(OWNERS[owner].as_bytes());
                        let asked = waiting.get(id).unwrap().request.clone();
                        let asked = LockRequestRef { owner: owner.as_ref().map(OwnerId::borrowed), ..asked.borrowed() };
                        waiting.keep(id, &asked, queued(), now.after_millis(1));
                    }
                    Do::Leave(_) | Do::Keep(..) => {}
                }
                let all: Vec<&Waiter> = ids.iter().filter_map(|id| waiting.get(*id)).collect();
                for waiter in &all {
                    let (token, owner) = (&waiter.request.token, &waiter.request.owner);
                    let same_token = all.iter().filter(|other| other.request.token == *token).count();
                    let same_owner = all.iter().filter(|other| owner.is_some() && other.request.owner == *owner).count();
                    let marked = waiting.queues[&waiter.name].often.contains(&waiter.position());
                    prop_assert_eq!(marked, same_token > 1 || same_owner > 1, "{:?} of {:?}", waiter, all);
                    let party = waiter.party();
                    let of_party = all.iter().filter(|other| other.party() == party).count();
                    prop_assert_eq!(waiting.of_party(&party).count(), of_party);
                }
            }
        }
    }
}
