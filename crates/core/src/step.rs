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

/// An event on the keyspace channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A hold began.
    Acquired,
    /// The lease of a hold was changed.
    Extended,
    /// A hold ended. Its age is in ms, at most 2^32 - 1.
    Ended(End, u32),
    /// Many holds ended at once: see [`EndedHolds`]. One event stands for all of them.
    AllEnded(End),
    /// An exclusive hold became a shared one.
    Downgraded,
    /// The lock has no holder and no lock-delay (the pause before the next grant).
    Freed,
}

/// The part of a lock to store and replicate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// The whole lock.
    Whole,
    /// The holds of these tokens. If the hold of a token has ended, a server that applies the change removes
    /// that hold. A token can occur twice.
    Part(Vec<Token>),
}

impl Change {
    pub fn is_none(&self) -> bool {
        matches!(self, Change::None)
    }
}

/// All effects of an operation. The Redis module carries them out in this order: store, replicate, notify,
/// wake.
#[derive(Debug, Default)]
pub struct Step {
    pub change: Change,
    /// In the order of publication.
    pub events: SmallVec<[Event; 4]>,
    /// A lease was granted or changed. If another command had set a TTL on the key, the Redis module clears
    /// it.
    pub renewed: bool,
    /// Set by the caller: a released hold of this age in ms or more is an incident for LOG.
    pub long_hold: Option<u32>,
    /// Boxed, so that the step of an operation without them is small.
    pub rare_effects: Option<Box<RareEffects>>,
}

/// Effects that few operations have, such as answers to waiters and incidents for LOG.
#[derive(Debug, Default)]
pub struct RareEffects {
    pub outcomes: Vec<(Waiter, Outcome)>,
    /// Holds to record in LOG, with the cause of their end: holds that did not end by a release, and released
    /// ones of at least the age [`Step::long_hold`].
    pub incidents: Vec<(End, Hold)>,
    /// Holds to record in LOG because they began with another number of permits than the hold before.
    pub limit_changes: Vec<Hold>,
    /// In the order of the changes: a step can unbind a token from a connection, and bind it to another.
    pub bindings: Vec<Binding>,
    /// Ended holds that the background job has to count and unbind.
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

/// Many holds of one lock that ended in one step. They have left the lock; the background job counts them,
/// unbinds them from their connections and frees their memory, one slice in a turn.
#[derive(Debug)]
pub struct EndedHolds {
    /// `None` if the key was deleted.
    pub(crate) why: Option<End>,
    /// Time of the end.
    pub(crate) at: Instant,
    pub(crate) holds: Holders,
    /// The unconfirmed grants of the lock: grants to waiters that may not have received the reply yet.
    pub(crate) unconfirmed: UnconfirmedGrants,
}

impl EndedHolds {
    /// Maximum number of holds that one operation ends one by one. If all holds of a lock end together, and
    /// are more than this, the operation ends them in one step, and returns them as `EndedHolds`. (A change
    /// of mode does so for any number of expired holds.) The background job counts and frees at most this
    /// many in one turn.
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
            (ended.map(|why| (why, age_millis(&hold, at))), hold.into_token(), client)
        })
    }
}

impl Lock {
    /// Called when the key of the lock is deleted. If the lock has too many holds to free within one
    /// event-loop turn, removes and returns them. Otherwise returns `None`.
    pub fn take_vanished(&mut self, at: Instant, unconfirmed: UnconfirmedGrants) -> Option<EndedHolds> {
        if self.stored_len() <= EndedHolds::SLICE {
            return None;
        }
        self.take_crowd().map(|holds| EndedHolds { why: None, at, holds, unconfirmed })
    }
}

fn age_millis(hold: &Hold, at: Instant) -> u32 {
    u32::try_from(hold.held_millis(at)).unwrap_or(u32::MAX)
}

impl Step {
    pub(crate) fn rare_effects(&mut self) -> &mut RareEffects {
        self.rare_effects.get_or_insert_default()
    }

    /// Records a change of the lock-delay, or the end of all holds.
    pub(crate) fn changed(&mut self, lock: &Lock) {
        self.record_change(lock, None);
    }

    /// Records that the hold of this token is new or has changed.
    pub(crate) fn put(&mut self, lock: &Lock, token: TokenRef<'_>) {
        self.record_change(lock, Some(token));
    }

    /// Records the end of a hold that has been removed from the lock.
    pub(crate) fn ended(&mut self, lock: &Lock, hold: &Hold, why: End, now: Instant) {
        let age = age_millis(hold, now);
        self.events.push(Event::Ended(why, age));
        if why != End::Released || self.long_hold.is_some_and(|long| age >= long) {
            self.record_incident(hold, why);
        }
        if let Ephemeral::Bound(client) = hold.ephemeral() {
            self.record_binding(Binding::Ends(client, hold.token().clone()));
        }
        self.record_change(lock, Some(hold.token().borrowed()));
    }

    #[cold]
    fn record_incident(&mut self, hold: &Hold, why: End) {
        self.rare_effects().incidents.push((why, hold.clone()));
    }

    /// Records that the hold of this token began with another number of permits than the hold before.
    #[cold]
    pub(crate) fn record_limit_change(&mut self, lock: &Lock, token: TokenRef<'_>) {
        self.rare_effects().limit_changes.extend(lock.stored_of(token.as_bytes()).cloned());
    }

    #[cold]
    pub(crate) fn record_binding(&mut self, binding: Binding) {
        self.rare_effects().bindings.push(binding);
    }

    /// A part may have this many tokens, or as many as the lock has holds if these are more. A longer part is
    /// replaced by the whole lock.
    const MAX_PART_LEN: usize = 64;

    /// Records a change of the hold of `token`. `None` means that the lock-delay has changed, or that all
    /// holds have ended. Only a change of a shared lock or of a semaphore is written in parts.
    #[inline]
    fn record_change(&mut self, lock: &Lock, token: Option<TokenRef<'_>>) {
        if matches!(lock.holding(), Holding::Crowd(_)) || matches!(self.change, Change::Part(_)) {
            self.record_change_of_crowd(lock, token);
        } else {
            self.change = Change::Whole;
        }
    }

    #[inline(never)]
    fn record_change_of_crowd(&mut self, lock: &Lock, token: Option<TokenRef<'_>>) {
        if !matches!(lock.holding(), Holding::Crowd(_)) {
            self.change = Change::Whole;
        } else if self.change.is_none() {
            self.change = Change::Part(Vec::new());
        }
        if let Change::Part(part) = &mut self.change {
            part.extend(token.map(TokenRef::to_owned));
            if part.len() > Self::MAX_PART_LEN.max(lock.stored_len()) {
                self.change = Change::Whole;
            }
        }
    }
}
