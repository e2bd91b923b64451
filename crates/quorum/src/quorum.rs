//! The members of a quorum, the requests to them, and their answers.

use dlock_protocol::Fence;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Returns the size of a majority of this number of members. Any two majorities have a member in common.
pub fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// A server of the quorum: its index in the client's list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

/// The number of members. A majority of them decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorum {
    members: u8,
}

impl Quorum {
    /// A quorum of `members` independent servers; `None` for zero.
    pub fn new(members: u8) -> Option<Self> {
        (members > 0).then_some(Self { members })
    }

    /// Iterates over all members.
    pub fn members(self) -> impl Iterator<Item = Member> {
        (0..self.members).map(Member)
    }

    /// Returns the size of a majority.
    pub fn majority(self) -> usize {
        majority(self.members.into())
    }

    /// Returns whether a majority is possible when `unavailable` members do not vote for it.
    pub fn possible_without(self, unavailable: usize) -> bool {
        usize::from(self.members).saturating_sub(unavailable) >= self.majority()
    }

    /// Returns whether too many members reject the request as invalid for a majority ever to grant it.
    pub fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.possible_without(votes.filter(|vote| vote.is_misuse()).count())
    }
}

/// A request to one member. The driver adds the token, ttl and mode, which are the same for all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE without waiting.
    Acquire,
    /// ACQUIRE with QUEUE: wait in the queue. Its end is passed to
    /// [`Round::waited`](crate::Round::waited).
    Wait,
    /// CANCEL of an unanswered [`Request::Wait`], so that no waiter stays in the queue. Its answer decides
    /// nothing. Not a RELEASE: if the same member granted later, a RELEASE still in flight would end that
    /// hold.
    Leave,
    /// WAITERS: does any client wait? Answered by [`Refusal::Taken`] if one does, by [`Refusal::NotHeld`] if
    /// none does.
    Look,
    /// CONFIRM: raise the fence of the hold to `fence`, and renew its lease.
    Confirm {
        /// The greatest fence that a counted member granted.
        fence: Fence,
        /// The number of the confirm phase. A fence can come back after a greater one was refused, and an
        /// answer to its first phase must not count in its second, which begins a later lease.
        phase: u8,
    },
    /// EXTEND.
    Extend,
    /// ACQUIRE with QUEUE, of a hold that its member has forgotten. Its answer decides nothing.
    Restore,
    /// RELEASE ALL, on the connection that carried the ACQUIRE, with its own time budget. Its answer decides
    /// nothing.
    Release,
}

/// One request to one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outgoing {
    /// The receiver.
    pub to: Member,
    /// The request.
    pub what: Request,
}

/// The requests to send now, in parallel.
pub type Sends = SmallVec<[Outgoing; 5]>;

pub(crate) fn to_all(quorum: Quorum, what: Request) -> Sends {
    quorum.members().map(|to| Outgoing { to, what }).collect()
}

/// The answer of one member to one request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote<G = Fence> {
    /// The member agreed. For ACQUIRE and CONFIRM, with the fence of its hold.
    Granted(G),
    /// The member refused.
    Refused(Refusal),
    /// The member cannot vote. The request was certainly not executed.
    Failed(Failure),
    /// No answer within the time limit, or the connection broke after the request was sent. The request may
    /// have been executed, or may still be.
    Unknown,
}

/// The reason of a working member to refuse.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Another token holds the lock; after a wait in the queue: the wait timed out.
    Taken,
    /// The member may have forgotten holds, and grants no new ones for this long.
    Grace(Duration),
    /// The wait queue is full.
    QueueFull,
    /// Waiting would be a deadlock; the server describes the cycle.
    Deadlock(Arc<str>),
    /// The fence is too far ahead of the member's clock.
    FenceAhead,
    /// The token does not hold the lock (any longer).
    NotHeld,
}

/// The reason why a member could not vote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The member could not be reached.
    Down(Arc<str>),
    /// The member answered with an error that is not a refusal: no permission, no module, out of memory,
    /// still loading.
    Error(Arc<str>),
    /// The member rejected the request as invalid. It would reject it again.
    Misuse(Arc<str>),
}

impl<G> Vote<G> {
    /// Returns the grant. The error is an answer without one, as a vote with any kind of grant.
    pub fn into_grant<T>(self) -> Result<G, Vote<T>> {
        match self {
            Vote::Granted(granted) => Ok(granted),
            Vote::Refused(why) => Err(Vote::Refused(why)),
            Vote::Failed(why) => Err(Vote::Failed(why)),
            Vote::Unknown => Err(Vote::Unknown),
        }
    }

    /// Replaces the grant.
    pub fn map<T>(self, grant: impl FnOnce(G) -> T) -> Vote<T> {
        self.into_grant().map_or_else(|other| other, |granted| Vote::Granted(grant(granted)))
    }

    /// Returns whether the member rejected the request as invalid.
    pub(crate) fn is_misuse(&self) -> bool {
        matches!(self, Vote::Failed(Failure::Misuse(_)))
    }

    /// Returns whether the member currently cannot grant to any client. False if another client holds the
    /// lock.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            Vote::Failed(_) | Vote::Unknown => true,
            Vote::Refused(Refusal::Grace(_) | Refusal::FenceAhead) => true,
            Vote::Refused(_) | Vote::Granted(_) => false,
        }
    }
}
