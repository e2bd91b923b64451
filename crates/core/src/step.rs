//! What an operation asks of the world outside, as data: what to announce, whom to answer, what to store and send.

use smallvec::SmallVec;

use crate::lock::{Ephemeral, Hold, Holding, Lock};
use crate::queue::Waiter;
use crate::units::{ClientId, Fence, Instant, Token, Ttl};

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
    /// Nobody holds the resource any more and no lock-delay runs.
    Freed,
}

/// What a grant did, so that one which could not be delivered can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granted {
    /// It began a hold.
    New,
    /// It made a sharer the exclusive holder.
    Upgrade,
    /// The token held the resource already.
    Renewal,
}

/// The one answer a waiter gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted(Fence, Granted),
    /// Its time is over.
    TimedOut,
    /// RELEASE or CANCEL took it out of the line.
    Cancelled,
    /// What it asked for turned out to be impossible when its turn came.
    Refused(Refusal),
}

/// Why an ACQUIRE is misuse, whatever the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is held as a semaphore of this many permits.
    OtherPermits(u32),
    /// A permit holder asked in another mode, or the reverse.
    OtherMode,
    /// The count is at its greatest.
    CountFull,
    /// No fence is left below 2^53.
    FencesUsedUp,
    /// This has become the longest lease while it waited.
    LeaseTooLong(Ttl),
}

/// What of the lock has to be stored and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// All of it.
    Whole,
    /// These tokens' holds, of many: `put` as they are now, `dropped` gone.
    Part(Box<Part>),
}

/// The tokens of a lock that many hold whose holds are new or other than they were, and those that hold no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub put: Vec<Token>,
    pub dropped: Vec<Token>,
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
    /// A holder was told anew how long it holds: nothing that was put on the key before may end the hold sooner.
    pub renewed: bool,
    /// What few operations ask for, out of the way of the many.
    pub rest: Option<Box<Rest>>,
}

/// What an operation asks for where somebody waits, or holds by a connection.
#[derive(Debug, Default)]
pub struct Rest {
    pub outcomes: Vec<(Waiter, Outcome)>,
    /// In the order in which it happened: a hold may be bound to one connection after the other in one step.
    pub bindings: Vec<Binding>,
}

/// The hold of this token ends with this connection from now on, or does so no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    Begins(ClientId, Token),
    Ends(ClientId, Token),
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
        self.part(lock, |_| ());
    }

    /// The hold of this token is new or other than it was.
    pub(crate) fn put(&mut self, lock: &Lock, token: &[u8]) {
        self.part(lock, |Part { put, dropped }| {
            dropped.retain(|t| *t != *token);
            if !put.iter().any(|t| *t == *token) {
                put.extend(Token::new(token));
            }
        });
    }

    /// A hold ended and is out of the lock.
    pub(crate) fn ended(&mut self, lock: &Lock, hold: &Hold, why: End, now: Instant) {
        self.events.push(Event::Ended(why, u32::try_from(hold.held_millis(now)).unwrap_or(u32::MAX)));
        if let Ephemeral::Bound(client) = hold.ephemeral() {
            self.rest().bindings.push(Binding::Ends(client, hold.token.clone()));
        }
        self.part(lock, |Part { put, dropped }| {
            put.retain(|t| *t != hold.token);
            dropped.push(hold.token.clone());
        });
    }

    /// Past this many a part is no smaller than the whole, and looking tokens up in it no longer cheap.
    const MOST_PARTS: usize = 64;

    /// Notes what changed of a lock that many may hold; of any other the whole is as short as a part.
    fn part(&mut self, lock: &Lock, write: impl FnOnce(&mut Part)) {
        if !matches!(lock.holding, Holding::Shared(_) | Holding::Permits(..)) {
            self.change = Change::Whole;
        } else if self.change.is_none() {
            self.change = Change::Part(Box::default());
        }
        if let Change::Part(part) = &mut self.change {
            write(part);
            if part.put.len() + part.dropped.len() > Self::MOST_PARTS {
                self.change = Change::Whole;
            }
        }
    }
}
