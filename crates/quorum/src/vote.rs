//! The answers of members.

use dlock_protocol::Fence;
use std::sync::Arc;
use std::time::Duration;

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
    /// Replaces the grant.
    pub fn map<T>(self, grant: impl FnOnce(G) -> T) -> Vote<T> {
        match self {
            Vote::Granted(granted) => Vote::Granted(grant(granted)),
            Vote::Refused(why) => Vote::Refused(why),
            Vote::Failed(why) => Vote::Failed(why),
            Vote::Unknown => Vote::Unknown,
        }
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
