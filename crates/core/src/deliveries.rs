//! Grants that nobody is known to know of, to be taken back where nobody can be told; and the answers that
//! tell of them, on their way to those who waited or handed to a connection in this turn of the event loop.
//!
//! A turn ends with writing to the sockets. So a connection that is gone before the next one begins has not
//! been told, whatever was said to it: the server throws away what it has for one that it had condemned
//! already (a deleted user, an output buffer that is too long, a peer that has hung up).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use dlock_protocol::{ClientId, Deadline, Delay, Fence, Token};
use smallvec::SmallVec;

use crate::outcome::Granted;
use crate::queue::{Name, WaiterId, swap};

#[derive(Clone, Debug, Default)]
pub struct Deliveries {
    /// By database and key; none is empty.
    in_doubt: HashMap<i32, HashMap<Box<[u8]>, Doubts>>,
    on_their_way: HashMap<WaiterId, Delivery>,
    this_turn: HashMap<ClientId, (WaiterId, Delivery)>,
}

/// What is in doubt of one resource.
pub type Doubts = BTreeMap<Token, Doubt>;

/// A grant that may yet turn out to have reached nobody.
#[derive(Clone, Debug)]
pub struct Doubt {
    /// The hold's: it may be another one by the time somebody asks.
    fence: Fence,
    granted: Granted,
    /// Whose answers are on their way.
    told: SmallVec<[WaiterId; 1]>,
    unclaimed: Option<Unclaimed>,
}

/// What a queued waiter was granted and has not asked for again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unclaimed {
    pub id: WaiterId,
    /// Until when the position would have lasted.
    pub until: Deadline,
    /// The lock-delay that the hold has once it is claimed.
    pub delay: Delay,
}

/// What comes of an answer that reached nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Nobody knows of this: it is to be taken back.
    Grant(Granted),
    /// The token may still claim it.
    Unclaimed(Deadline),
}

/// A grant to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub name: Name<'static>,
    pub token: Token,
    pub client: ClientId,
}

/// Maps keep the room for this many entries.
const CROWD: usize = 1_000;

impl Deliveries {
    /// A waiter is to be told of a grant, or to claim it. Whoever is while another grant to its token is in
    /// doubt is one more who may turn out to be gone.
    pub(crate) fn granted(
        &mut self,
        name: &Name<'static>,
        token: &Token,
        fence: Fence,
        granted: Granted,
        waiter: WaiterId,
        unclaimed: Option<Unclaimed>,
    ) {
        if granted != Granted::Renewal {
            let grants = self.in_doubt.entry(name.db).or_default().entry((*name.key).into()).or_default();
            grants.insert(token.clone(), Doubt { fence, granted, told: SmallVec::new(), unclaimed: None });
        }
        let Some(doubt) = self.of(name).and_then(|grants| grants.get_mut(token)) else { return };
        match unclaimed {
            Some(_) => doubt.unclaimed = unclaimed,
            None => doubt.told.push(waiter),
        }
    }

    /// The answer to a waiter is on its way.
    pub(crate) fn sent(&mut self, waiter: WaiterId, delivery: Delivery) {
        self.on_their_way.insert(waiter, delivery);
    }

    /// The token has been heard of, or holds no more: whatever it was granted is in doubt no longer. What it
    /// had not claimed yet.
    #[inline]
    pub(crate) fn heard_of(&mut self, name: &Name<'_>, token: &[u8]) -> Option<Unclaimed> {
        if self.in_doubt.is_empty() { None } else { self.settle(name, token) }
    }

    fn settle(&mut self, name: &Name<'_>, token: &[u8]) -> Option<Unclaimed> {
        let grants = self.of(name)?;
        let doubt = grants.remove(token)?;
        if grants.is_empty() {
            self.forget(name);
        }
        doubt.unclaimed
    }

    fn of(&mut self, name: &Name<'_>) -> Option<&mut Doubts> {
        self.in_doubt.get_mut(&name.db)?.get_mut(&*name.key)
    }

    /// Nobody holds this any more, or somebody else does. Answers what is in doubt no longer: it may be much.
    pub fn forget(&mut self, name: &Name<'_>) -> Doubts {
        let Some(grants) = self.in_doubt.get_mut(&name.db) else { return Doubts::new() };
        let forgotten = grants.remove(&*name.key).unwrap_or_default();
        give_back(grants);
        if grants.is_empty() {
            self.in_doubt.remove(&name.db);
        }
        forgotten
    }

    /// A database is emptied, or all are. Answers what is in doubt no longer, as [`Deliveries::forget`].
    pub fn flushed(&mut self, db: Option<i32>) -> impl Send + use<> {
        match db {
            Some(db) => self.in_doubt.remove_entry(&db).into_iter().collect(),
            None => std::mem::take(&mut self.in_doubt),
        }
    }

    /// The answer to this waiter has reached nobody: what comes of that, unless somebody else is being told.
    /// `delay`: of the hold, until it is claimed.
    pub(crate) fn lost(
        &mut self,
        name: &Name<'_>,
        token: &[u8],
        fence: Fence,
        waiter: WaiterId,
        delay: Delay,
    ) -> Option<Lost> {
        let doubt = self.of(name)?.get_mut(token)?;
        if doubt.fence != fence {
            return None;
        }
        doubt.told.retain(|told| *told != waiter);
        doubt.unclaimed = doubt.unclaimed.filter(|unclaimed| unclaimed.id != waiter);
        if !doubt.told.is_empty() {
            return None;
        }
        if let Some(unclaimed) = &mut doubt.unclaimed
            && doubt.granted == Granted::New
        {
            unclaimed.delay = unclaimed.delay.max(delay);
            return Some(Lost::Unclaimed(unclaimed.until));
        }
        let granted = doubt.unclaimed.is_none().then_some(doubt.granted)?;
        self.settle(name, token);
        Some(Lost::Grant(granted))
    }

    /// Its connection has taken the answer, to be written before the turn ends.
    pub fn handed_over(&mut self, waiter: WaiterId) {
        if let Some(delivery) = self.on_their_way.remove(&waiter) {
            self.this_turn.insert(delivery.client, (waiter, delivery));
        }
    }

    /// There was nobody to take it.
    pub fn came_back(&mut self, waiter: WaiterId) -> Option<Delivery> {
        self.on_their_way.remove(&waiter)
    }

    /// The connection is gone: what it was to be told in this turn.
    pub fn gone(&mut self, client: ClientId) -> Option<(WaiterId, Delivery)> {
        if self.this_turn.is_empty() { None } else { self.this_turn.remove(&client) }
    }

    /// The answer has been written.
    pub fn delivered(&mut self, waiter: WaiterId, Delivery { name, token, .. }: &Delivery) {
        let doubt = self.of(name).and_then(|grants| grants.get(token));
        if doubt.is_some_and(|doubt| doubt.told.contains(&waiter)) {
            self.settle(name, token.as_bytes());
        }
    }

    /// What was handed over has been written.
    pub fn next_turn(&mut self) {
        for (waiter, delivery) in std::mem::take(&mut self.this_turn).into_values() {
            self.delivered(waiter, &delivery);
        }
        if self.on_their_way.is_empty() && self.on_their_way.capacity() > CROWD {
            self.on_their_way = HashMap::new();
        }
    }

    /// Whether no answer is under way.
    pub fn is_empty(&self) -> bool {
        self.on_their_way.is_empty() && self.this_turn.is_empty()
    }

    /// Two databases change places, and the holds in them.
    pub fn swapped(&mut self, first: i32, second: i32) {
        let handed_over = self.this_turn.values_mut().map(|(_, delivery)| delivery);
        for Delivery { name, .. } in self.on_their_way.values_mut().chain(handed_over) {
            swap(&mut name.db, first, second);
        }
        let one = self.in_doubt.remove(&first);
        let other = self.in_doubt.remove(&second);
        self.in_doubt.extend(one.map(|grants| (second, grants)));
        self.in_doubt.extend(other.map(|grants| (first, grants)));
    }
}

/// Shrinks a map from which most of a crowd has left.
pub fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > CROWD && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests;
