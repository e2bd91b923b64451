//! The protocol of a quorum: votes in, verdict out. No sockets, no clock, no randomness, no waiting.
//!
//! Each operation is a small state machine. It returns what to send to whom, takes each answer and when it
//! came, and returns a verdict in the end. The driver only carries messages: it hands in each answer together
//! with the request that it answers, and may do so late, twice, or not at all.
//!
//! * [`Acquisition`]: the rounds, with the confirm phase that brings a majority to one fence.
//! * [`Extension`]: a new lease for a hold.
//!
//! A release needs no machine: it goes to every master, and no answer changes what the client may believe.

mod acquisition;
mod checking;
mod confirm;
mod extension;
mod member_state;
mod turn;

pub use acquisition::{Acquired, Acquisition, FailureReason, Plan, Progress, Verdict};
pub use extension::{Extended, Extension};

pub use dlock_protocol::Fence;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A master of the quorum: its index in the client's list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

/// The number of masters, and how many of them decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorum {
    members: u8,
}

impl Quorum {
    /// A quorum of `members` independent masters; `None` for zero.
    pub fn new(members: u8) -> Option<Self> {
        (members > 0).then_some(Self { members })
    }

    /// All masters of the quorum.
    pub fn members(self) -> impl Iterator<Item = Member> {
        (0..self.members).map(Member)
    }

    /// The size of a majority: any two majorities have a master in common.
    pub fn majority(self) -> usize {
        usize::from(self.members) / 2 + 1
    }

    /// Whether one holder has a majority; `holders` by master, `None` where they are not known.
    pub fn has_holder<T: PartialEq>(self, holders: &[Option<Vec<T>>]) -> bool {
        let has = |holder: &T| holders.iter().flatten().filter(|there| there.contains(holder)).count();
        holders.iter().flatten().flatten().any(|holder| has(holder) >= self.majority())
    }

    /// Whether some of the holders at `queue` hold a majority, or may do so: if not, nobody releases what
    /// they have there, and its queue does not move.
    pub fn may_move<T: PartialEq>(self, queue: Member, holders: &[Option<Vec<T>>]) -> bool {
        let may_have = |holder: &T| {
            holders.iter().filter(|there| there.as_ref().is_none_or(|there| there.contains(holder))).count()
        };
        match holders.get(usize::from(queue.0)) {
            Some(Some(there)) if !there.is_empty() => {
                there.iter().any(|holder| may_have(holder) >= self.majority())
            }
            _ => true,
        }
    }

    /// Whether a hold is lost that so many masters do not hold.
    pub fn is_lost(self, not_held: usize) -> bool {
        !self.possible_without(not_held)
    }

    /// Whether a majority is possible when `unavailable` masters do not vote.
    fn possible_without(self, unavailable: usize) -> bool {
        usize::from(self.members).saturating_sub(unavailable) >= self.majority()
    }

    /// Whether so many masters call the request invalid that no majority can ever grant it.
    pub(crate) fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.possible_without(votes.filter(|vote| vote.is_misuse()).count())
    }
}

/// The answer of one master to one request. Silence is not "no": it may have granted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote<G = Fence> {
    /// Yes. For ACQUIRE and CONFIRM, with the fence of the hold there.
    Granted(G),
    /// No, and why.
    Refused(Refusal),
    /// It cannot vote, and the request was certainly not carried out.
    Failed(Failure),
    /// No answer in time, or the connection broke after the request: it may have been carried out.
    Unknown,
}

/// Why a working master said no.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Another token holds it; from a wait queue: the wait timed out.
    Taken,
    /// The master may have forgotten holds, and grants nothing for this long.
    Grace(Duration),
    /// The wait queue is full.
    QueueFull,
    /// Waiting would be a deadlock; the server describes the cycle.
    Deadlock(Arc<str>),
    /// The fence is too far ahead of the master's clock.
    FenceAhead,
    /// The token holds nothing there (any longer).
    NotHeld,
}

/// Why a master could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// It could not be reached.
    Down(Arc<str>),
    /// It answered with an error that is not a refusal: no permission, no module, out of memory, still
    /// loading.
    Error(Arc<str>),
    /// It called the request invalid: asked again, it would say the same.
    Misuse(Arc<str>),
}

impl<G> Vote<G> {
    /// The same with another grant.
    pub fn map<T>(self, grant: impl FnOnce(G) -> T) -> Vote<T> {
        match self {
            Vote::Granted(granted) => Vote::Granted(grant(granted)),
            Vote::Refused(why) => Vote::Refused(why),
            Vote::Failed(why) => Vote::Failed(why),
            Vote::Unknown => Vote::Unknown,
        }
    }

    /// Whether the request is invalid there.
    fn is_misuse(&self) -> bool {
        matches!(self, Vote::Failed(Failure::Misuse(_)))
    }

    /// Whether the master currently cannot grant to anybody, as opposed to having granted to somebody else.
    fn is_unavailable(&self) -> bool {
        match self {
            Vote::Failed(_) | Vote::Unknown => true,
            Vote::Refused(Refusal::Grace(_) | Refusal::FenceAhead) => true,
            Vote::Refused(_) | Vote::Granted(_) => false,
        }
    }
}

/// A request to one master. The token, ttl, mode and so on are the same for all masters, and known to the
/// driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE: one try.
    Acquire,
    /// ACQUIRE with QUEUE: wait in the queue. Answered by [`Acquisition::waited`].
    Wait,
    /// CANCEL of an unanswered [`Request::Wait`], so that no waiter stays behind. Never answered. Not a
    /// RELEASE: if the same master granted later, a RELEASE still under way would end that very hold.
    Leave,
    /// WAITERS: does anybody wait? Answered by [`Refusal::Taken`] if so, by [`Refusal::NotHeld`] if not.
    Look,
    /// CONFIRM: raise the fence of the hold to `fence`, and renew its lease.
    Confirm {
        /// The greatest fence that a counted member granted.
        fence: Fence,
        /// The number of the confirm phase. A fence can come back after a greater one was refused, and an
        /// answer to its first phase must not count in its second, whose lease begins later.
        phase: u8,
    },
    /// EXTEND.
    Extend,
    /// ACQUIRE with QUEUE, of a hold that its master has forgotten. Its answer decides nothing.
    Restore,
    /// RELEASE ALL, on the connection that carried the ACQUIRE, with its own time budget. Its answer decides
    /// nothing.
    Release,
}

/// One request to one master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outgoing {
    /// To whom.
    pub to: Member,
    /// What.
    pub what: Request,
}

/// The requests to send now, in parallel.
pub type Sends = SmallVec<[Outgoing; 5]>;

fn to_all(quorum: Quorum, what: Request) -> Sends {
    quorum.members().map(|to| Outgoing { to, what }).collect()
}
