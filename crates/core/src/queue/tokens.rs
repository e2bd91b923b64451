//! What a token waits for, here and on other resources.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

use smallvec::SmallVec;

use super::{Name, Position, Rank, Waiter, WaiterId, Waiting, give_back};

/// The positions of a token. Nearly every one waits once: it is found at once, however many wait.
#[derive(Clone)]
pub(super) enum Waits {
    Once(Position),
    Often(BTreeSet<(Name<'static>, Position)>),
}

/// Less than every position.
const FIRST: Position = (Rank::Upgrade, WaiterId(0));

impl Waiting {
    /// Everything this token waits for, here and on other resources.
    pub fn of_token<'a>(&'a self, token: &[u8]) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let (once, often) = match self.by_token.get(token) {
            Some(Waits::Once(position)) => (Some(position), None),
            Some(Waits::Often(positions)) => (None, Some(positions)),
            None => (None, None),
        };
        let often = often.into_iter().flatten().map(|(_, position)| position);
        once.into_iter().chain(often).filter_map(|(_, id)| self.get(*id))
    }

    /// The waiters of a token on one resource, in the order in which they came.
    pub fn of_token_on(&self, token: &[u8], name: &Name<'_>) -> SmallVec<[WaiterId; 2]> {
        let mut ids: SmallVec<_> = self.positions(token, name).map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// The positions of a token in a queue.
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

    /// It joins its queue.
    pub(super) fn token_joins(&mut self, waiter: &Waiter) {
        let new = (waiter.name.clone(), waiter.position());
        let mut waits = match self.by_token.entry(waiter.request.token.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Waits::Once(new.1));
                return;
            }
            Entry::Occupied(waits) => waits,
        };
        // The second makes the first one of those who wait elsewhere too.
        if let Waits::Once(first) = *waits.get()
            && let Some(other) = self.waiters.get(&first.1)
        {
            if other.request.owner.is_none() {
                self.queues.entry(other.name.clone()).or_default().also_elsewhere.insert(first);
            }
            waits.insert(Waits::Often([(other.name.clone(), first)].into()));
        }
        if let Waits::Often(positions) = waits.get_mut() {
            if waiter.request.owner.is_none() {
                self.queues.entry(new.0.clone()).or_default().also_elsewhere.insert(new.1);
            }
            positions.insert(new);
        }
    }

    /// It is out of its queue.
    pub(super) fn token_leaves(&mut self, waiter: &Waiter) {
        let Some(waits) = self.by_token.get_mut(&waiter.request.token) else { return };
        let Waits::Often(positions) = waits else {
            self.by_token.remove(&waiter.request.token);
            return give_back(&mut self.by_token);
        };
        positions.remove(&(waiter.name.clone(), waiter.position()));
        if let (Some((name, last)), true) = (positions.first(), positions.len() == 1) {
            let last = *last;
            if self.waiters.get(&last.1).is_some_and(|waiter| waiter.request.owner.is_none()) {
                self.queues.get_mut(name).map(|queue| queue.also_elsewhere.remove(&last));
            }
            *waits = Waits::Once(last);
        }
    }
}
