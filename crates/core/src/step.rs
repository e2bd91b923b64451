//! What an operation asks of the world outside, as data: what to announce, whom to answer, what to store and
//! send.

use dlock_protocol::{ClientId, Instant, Token, TokenRef};
use smallvec::SmallVec;

use crate::deliveries::Doubts;
use crate::lock::{Ephemeral, Hold, Holders, Holding, Lock};
use crate::outcome::Outcome;
use crate::queue::Waiter;

/// Why a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Released,
    Expired,
    Disconnected,
    Broken,
}

/// What listeners are told, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A hold began.
    Acquired,
    /// A lease was set anew.
    Extended,
    /// A hold ended, after so many ms; as many as 32 bits hold.
    Ended(End, u32),
    /// So many holds ended at once that they are told of as one, and counted later: see [`Departed`].
    AllEnded(End),
    /// An exclusive hold became a shared one.
    Downgraded,
    /// Nobody holds the resource any more and no lock-delay runs.
    Freed,
}

/// What of the lock has to be stored and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// All of it.
    Whole,
    /// Of many holds those of these tokens, as they are now or gone; one may be named more than once.
    Part(Vec<Token>),
}

impl Change {
    pub fn is_none(&self) -> bool {
        matches!(self, Change::None)
    }
}

/// Everything an operation asks for. The shell carries it out in this order: store, replicate, notify, wake.
#[derive(Debug, Default)]
pub struct Step {
    pub change: Change,
    pub events: SmallVec<[Event; 4]>,
    /// A holder was told anew how long it holds: nothing that was put on the key before may end the hold
    /// sooner.
    pub renewed: bool,
    /// Holds that were released after so many ms are lost too, as far as [`Rest::lost`] goes.
    pub long_hold: Option<u32>,
    /// What few operations ask for, out of the way of the many.
    pub rest: Option<Box<Rest>>,
}

/// What an operation asks for where somebody waits, or holds by a connection.
#[derive(Debug, Default)]
pub struct Rest {
    pub outcomes: Vec<(Waiter, Outcome)>,
    /// Holds that ended other than they should, each with its end.
    pub lost: Vec<(End, Hold)>,
    /// In the order in which it happened: a hold may be bound to one connection after the other in one step.
    pub bindings: Vec<Binding>,
    /// Of these the caller has to keep the books: see [`Departed`].
    pub departed: Vec<Departed>,
    /// More of the queue could be answered: another turn has to.
    pub unserved: bool,
}

/// The hold of this token ends with this connection from now on, or does so no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    Begins(ClientId, Token),
    Ends(ClientId, Token),
}

/// Holds of a crowd that have all ended in one step. They are out of the lock; to count them, to unbind them
/// and to free their memory is left to many short turns.
#[derive(Debug)]
pub struct Departed {
    /// None where the key was taken away.
    why: Option<End>,
    at: Instant,
    holds: Holders,
    /// Which of them nobody was known to know of.
    doubts: Doubts,
}

impl Departed {
    /// So many holds of one lock end in a turn, or are looked after in one. Where more end and all go, they
    /// depart.
    pub const SLICE: usize = 256;

    pub(crate) fn new(why: Option<End>, at: Instant, holds: Holders, doubts: Doubts) -> Departed {
        Departed { why, at, holds, doubts }
    }

    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// The next slice of them: why each ended and after how many ms, as [`Event::Ended`] tells; its token,
    /// and the connection it was bound to.
    pub fn next_slice(&mut self) -> impl Iterator<Item = (Option<(End, u32)>, Token, Option<ClientId>)> {
        let (why, at, doubts) = (self.why, self.at, &mut self.doubts);
        self.holds.take_some(Self::SLICE).into_iter().map(move |hold| {
            doubts.remove(hold.token());
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
    pub fn take_vanished(&mut self, now: Instant, doubts: Doubts) -> Option<Departed> {
        if self.stored_len() <= Departed::SLICE {
            return None;
        }
        self.take_crowd().map(|holds| Departed::new(None, now, holds, doubts))
    }
}

fn held(hold: &Hold, at: Instant) -> u32 {
    u32::try_from(hold.held_millis(at)).unwrap_or(u32::MAX)
}

impl Step {
    pub(crate) fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    pub(crate) fn whole(&mut self) {
        self.change = Change::Whole;
    }

    /// Something besides the holds is other than it was.
    pub(crate) fn changed(&mut self, lock: &Lock) {
        self.part(lock, None);
    }

    /// The hold of this token is new or other than it was.
    pub(crate) fn put(&mut self, lock: &Lock, token: TokenRef<'_>) {
        self.part(lock, Some(token));
    }

    /// A hold ended and is out of the lock.
    pub(crate) fn ended(&mut self, lock: &Lock, hold: &Hold, why: End, now: Instant) {
        let held = held(hold, now);
        self.events.push(Event::Ended(why, held));
        if why != End::Released || self.long_hold.is_some_and(|long| held >= long) {
            self.lost(hold, why);
        }
        if let Ephemeral::Bound(client) = hold.ephemeral() {
            self.bound(Binding::Ends(client, hold.token().clone()));
        }
        self.part(lock, Some(hold.token().borrowed()));
    }

    #[cold]
    fn lost(&mut self, hold: &Hold, why: End) {
        self.rest().lost.push((why, hold.clone()));
    }

    #[cold]
    pub(crate) fn bound(&mut self, binding: Binding) {
        self.rest().bindings.push(binding);
    }

    /// A part of a few holds is never larger than the whole by much.
    const FEW_PARTS: usize = 64;

    /// Notes what changed of a lock that many may hold; of any other the whole is as short as a part.
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
