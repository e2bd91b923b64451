//! The requests to members.

use crate::{Member, Quorum};
use dlock_protocol::Fence;
use smallvec::SmallVec;

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
    /// WAITERS: does any client wait? Answered by [`Refusal::Taken`](crate::Refusal::Taken) if one does, by
    /// [`Refusal::NotHeld`](crate::Refusal::NotHeld) if none does.
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
