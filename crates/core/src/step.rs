//! The effects of an operation, as data: changes to store and replicate, events, replies.

use dlock_protocol::{ClientId, Instant, Token, TokenRef};
use smallvec::SmallVec;

use crate::deliveries::UnconfirmedGrants;
use crate::lock::{Ephemeral, Hold, Holders, Holding, Lock};
use crate::queue::{Outcome, Waiter};

/// The cause of the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Released,
    Expired,
    Disconnected,
    Broken,
}

/// An event on the keyspace channels, in the order of publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A hold began.
    Acquired,
    /// The lease of a hold was changed.
    Extended,
    /// A hold ended. Its age is in ms, at most 2^32 - 1.
    Ended(End, u32),
    /// Many holds ended at once. One event announces them all, and they are counted later: see
    /// [`EndedHolds`].
    AllEnded(End),
    /// An exclusive hold became a shared one.
    Downgraded,
    /// The lock has no holder and no lock-delay.
    Freed,
}

/// The part of a lock to store and replicate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// The whole lock.
    Whole,
    /// The holds of these tokens, each as it is now or removed. A token can occur twice.
    Part(Vec<Token>),
}

impl Change {
    pub fn is_none(&self) -> bool {
        matches!(self, Change::None)
    }
}

/// All effects of an operation. The shell carries them out in this order: store, replicate, notify, wake.
#[derive(Debug, Default)]
pub struct Step {
    pub change: Change,
    pub events: SmallVec<[Event; 4]>,
    /// A lease was granted or changed, so a TTL that another command set on the key must not end the hold.
    pub renewed: bool,
    /// Age in ms from which a released hold counts as incident in [`RareEffects::incidents`].
    pub long_hold: Option<u32>,
    /// Boxed, to keep the steps of other operations small.
    pub rare: Option<Box<RareEffects>>,
}

/// Effects that few operations have: on waiters, connections and incidents.
#[derive(Debug, Default)]
pub struct RareEffects {
    pub outcomes: Vec<(Waiter, Outcome)>,
    /// Holds to log as incidents, with the cause of their end: holds that did not end by a release, and
    /// released ones that lasted long.
    pub incidents: Vec<(End, Hold)>,
    /// In the order of the changes: within one step, a hold can be bound to one connection after another.
    pub bindings: Vec<Binding>,
    /// Ended holds that the caller has to account for.
    pub ended_holds: Vec<EndedHolds>,
    /// More waiters could be answered. The caller schedules another turn.
    pub unserved: bool,
}

/// A hold was bound to a connection, or unbound from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    Begins(ClientId, Token),
    Ends(ClientId, Token),
}

/// Holds of one lock that ended in one step, and are removed from it. Counting them, unbinding them and
/// freeing their memory takes many short turns.
#[derive(Debug)]
pub struct EndedHolds {
    /// `None` if the key was deleted.
    pub(crate) why: Option<End>,
    pub(crate) at: Instant,
    pub(crate) holds: Holders,
    /// The unconfirmed grants among them.
    pub(crate) unconfirmed: UnconfirmedGrants,
}

impl EndedHolds {
    /// Maximum number of holds of one lock that end, or are accounted for, in one turn.
    pub const SLICE: usize = 256;

    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// The next slice. For each hold: the cause of its end and its age in ms, as in [`Event::Ended`]; its
    /// token; and the connection that it was bound to.
    pub fn next_slice(&mut self) -> impl Iterator<Item = (Option<(End, u32)>, Token, Option<ClientId>)> {
        let (why, at, unconfirmed) = (self.why, self.at, &mut self.unconfirmed);
        self.holds.take_some(Self::SLICE).into_iter().map(move |hold| {
            unconfirmed.remove(hold.token());
            let expired = hold.deadline().passed(at);
            let ended = why.map(|why| if expired { End::Expired } else { why });
            let client = match hold.ephemeral() {
                Ephemeral::Bound(client) => Some(client),
                _ => None,
            };
            (ended.map(|why| (why, held(&hold, at))), hold.into_token(), client)
        })
    }
}

impl Lock {
    /// Removes the holds of a lock that are too many to free within one event-loop turn. Called when its key
    /// is deleted. `None` if they are few.
    pub fn take_vanished(&mut self, at: Instant, unconfirmed: UnconfirmedGrants) -> Option<EndedHolds> {
        if self.stored_len() <= EndedHolds::SLICE {
            return None;
        }
        self.take_crowd().map(|holds| EndedHolds { why: None, at, holds, unconfirmed })
    }
}

fn held(hold: &Hold, at: Instant) -> u32 {
    u32::try_from(hold.held_millis(at)).unwrap_or(u32::MAX)
}

impl Step {
    pub(crate) fn rare(&mut self) -> &mut RareEffects {
        self.rare.get_or_insert_default()
    }

    /// Records a change of the lock-delay.
    pub(crate) fn changed(&mut self, lock: &Lock) {
        self.part(lock, None);
    }

    /// Records that the hold of this token is new or has changed.
    pub(crate) fn put(&mut self, lock: &Lock, token: TokenRef<'_>) {
        self.part(lock, Some(token));
    }

    /// Records the end of a hold that has been removed from the lock.
    pub(crate) fn ended(&mut self, lock: &Lock, hold: &Hold, why: End, now: Instant) {
        let held = held(hold, now);
        self.events.push(Event::Ended(why, held));
        if why != End::Released || self.long_hold.is_some_and(|long| held >= long) {
            self.incident(hold, why);
        }
        if let Ephemeral::Bound(client) = hold.ephemeral() {
            self.bound(Binding::Ends(client, hold.token().clone()));
        }
        self.part(lock, Some(hold.token().borrowed()));
    }

    #[cold]
    fn incident(&mut self, hold: &Hold, why: End) {
        self.rare().incidents.push((why, hold.clone()));
    }

    #[cold]
    pub(crate) fn bound(&mut self, binding: Binding) {
        self.rare().bindings.push(binding);
    }

    /// A part of up to this many holds is never much larger than the whole lock.
    const FEW_PARTS: usize = 64;

    /// Records a change of one hold. Only a shared lock or a semaphore is stored in parts.
    #[inline]
    fn part(&mut self, lock: &Lock, token: Option<TokenRef<'_>>) {
        if matches!(lock.holding(), Holding::Crowd(_)) || matches!(self.change, Change::Part(_)) {
            self.part_of_many(lock, token);
        } else {
            self.change = Change::Whole;
        }
    }

    #[inline(never)]
    fn part_of_many(&mut self, lock: &Lock, token: Option<TokenRef<'_>>) {
        if !matches!(lock.holding(), Holding::Crowd(_)) {
            self.change = Change::Whole;
        } else if self.change.is_none() {
            self.change = Change::Part(Vec::new());
        }
        if let Change::Part(part) = &mut self.change {
            part.extend(token.map(TokenRef::to_owned));
            if part.len() > Self::FEW_PARTS.max(lock.stored_len()) {
                self.change = Change::Whole;
            }
        }
    }
}
