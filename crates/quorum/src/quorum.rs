//! The members of a quorum, the requests to them, and their answers.

use dlock_protocol::Fence;
use dlock_protocol::error::Denied;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Returns the size of a majority of this number of members. Any two majorities have a member in common.
pub fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// A server of the quorum, by its index in the client's list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

/// The size of a quorum: its number of members. A majority of them decides.
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

    /// Returns whether a majority remains when this number of members is left out.
    pub fn has_majority_without(self, members: usize) -> bool {
        usize::from(self.members).saturating_sub(members) >= self.majority()
    }

    /// Returns whether so many members reject the request as invalid that no majority can ever grant it.
    pub fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.has_majority_without(votes.filter(|vote| vote.is_misuse()).count())
    }
}

/// A request to one member. The driver (the client that sends the requests) adds the token, ttl and mode,
/// which are the same for all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE without waiting.
    Acquire,
    /// ACQUIRE with QUEUE: wait in the member's queue. The driver passes the outcome of the wait to
    /// [`Round::waited`](crate::Round::waited).
    Wait,
    /// CANCEL, after a [`Request::Wait`] without an answer: it removes the waiter from the queue. A RELEASE
    /// would do so, too. But a RELEASE that arrived after a later ACQUIRE of the same round would also end
    /// the hold of that ACQUIRE. The answer decides nothing.
    Leave,
    /// WAITERS: does any client wait in the member's queue? The answer is [`Refusal::Taken`] if one does, and
    /// [`Refusal::NotHeld`] if none does.
    HasWaiters,
    /// CONFIRM: raise the fence of the hold to `fence`, and renew its lease.
    Confirm {
        /// The greatest fence that a member granted. Members with a clock too far ahead are left out.
        fence: Fence,
        /// The number of the confirm phase in its round. Two phases can send the same fence, if the members
        /// refuse a greater one in between. The validity of the hold then counts from the later phase, so an
        /// answer to the earlier phase must not count.
        phase: u8,
    },
    /// EXTEND.
    Extend,
    /// ACQUIRE with QUEUE under the token of a hold that the member has lost, for example by a restart. The
    /// answer decides nothing.
    Restore,
    /// RELEASE ALL, which ends the hold whatever its hold count. The driver sends it on the connection of the
    /// ACQUIRE, so that it arrives after the ACQUIRE. The answer decides nothing.
    Release,
}

/// One request to one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outgoing {
    /// The member that gets the request.
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
    /// The member cannot vote. It has certainly not executed the request.
    Failed(Failure),
    /// No answer within the time limit, or the connection broke after the request was sent. The member may
    /// have executed the request, or may still execute it.
    Unknown,
}

/// The reason why a working member refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Another token holds the lock. As the outcome of a wait: the wait ended without a grant.
    Taken,
    /// The member may have lost holds in a restart, and grants no new ones for this long: its grace period.
    Grace(Duration),
    /// The wait queue is full.
    QueueFull,
    /// Waiting would be a deadlock. The text of the server describes the cycle.
    Deadlock(Arc<str>),
    /// The fence of a CONFIRM, a time in µs, is too far ahead of the member's clock.
    FenceAhead,
    /// The token does not hold the lock, or no longer.
    NotHeld,
}

/// The reason why a member could not vote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The member could not be reached, or its address leads to a server that is no master.
    Down(Arc<str>),
    /// The member answered that it cannot carry out the request now: it loads its data, runs a script, is out
    /// of memory, or has too few replicas. It may carry out a repetition.
    NotNow(Fault),
    /// The member answered with an error that is not a refusal: no permission, no module.
    Error(Fault),
    /// The member rejected the request as invalid, and would reject a repetition, too.
    Misuse(Fault),
}

/// An error of a server: its kind, for programs, and its text, for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// Kind of the error.
    pub kind: FaultKind,
    /// Text of the error.
    pub text: Arc<str>,
}

/// Kind of an error of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The server does not have the module.
    NoModule,
    /// The server is also another member, so it would vote twice.
    SameServer,
    /// The server is a cluster node or a sentinel.
    Unsupported,
    /// The server does not know the user and the password, or there are none in the address.
    Login,
    /// The sentinel knows no master of this name.
    UnknownMaster,
    /// The ACL of the user forbids the command.
    Forbidden(Denied),
    /// The key holds a value of another type.
    WrongType,
    /// Any other error.
    Other,
}

impl FaultKind {
    /// Makes the error of this kind with this text.
    pub fn with(self, text: impl Into<Arc<str>>) -> Fault {
        Fault { kind: self, text: text.into() }
    }
}

/// Makes an error of the kind [`FaultKind::Other`].
impl From<&str> for Fault {
    fn from(text: &str) -> Fault {
        FaultKind::Other.with(text)
    }
}

impl<G> Vote<G> {
    /// Returns the value of a grant. Any other vote is returned as the error. Such a vote contains no value,
    /// so `T` can be any type.
    pub fn into_grant<T>(self) -> Result<G, Vote<T>> {
        match self {
            Vote::Granted(granted) => Ok(granted),
            Vote::Refused(why) => Err(Vote::Refused(why)),
            Vote::Failed(why) => Err(Vote::Failed(why)),
            Vote::Unknown => Err(Vote::Unknown),
        }
    }

    /// Replaces the value of a grant.
    pub fn map<T>(self, grant: impl FnOnce(G) -> T) -> Vote<T> {
        self.into_grant().map_or_else(|other| other, |granted| Vote::Granted(grant(granted)))
    }

    /// Returns whether the member rejected the request as invalid.
    pub(crate) fn is_misuse(&self) -> bool {
        matches!(self, Vote::Failed(Failure::Misuse(_)))
    }

    /// Returns whether the member cannot vote now. True for a member in its grace period, and for one that
    /// refused a fence as too far ahead. False for other refusals.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            Vote::Failed(_) | Vote::Unknown => true,
            Vote::Refused(Refusal::Grace(_) | Refusal::FenceAhead) => true,
            Vote::Refused(_) | Vote::Granted(_) => false,
        }
    }
}
