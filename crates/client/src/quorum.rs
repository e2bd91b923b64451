//! The protocol of a quorum: votes in, verdict out. No sockets, no clock, no randomness, no waiting.
//!
//! Each operation is a small state machine. It says what to send to whom, is told what came back and when, and says
//! in the end how it went. Whoever drives it carries messages and nothing else: it must give each answer together
//! with the request that it answers, and may give it late, twice, or not at all.
//!
//! * [`Acquisition`]: the rounds of asking, with the second phase that gives a majority one fence.
//! * [`Extension`]: a new lease for a hold.
//!
//! A release needs no machine: it goes to every master, and no answer changes what the client may believe.

mod acquisition;
mod checking;
mod extension;
mod seat;
mod second_phase;

pub use acquisition::{Acquisition, Loss, Plan, Progress, Verdict, Won};
pub use extension::{Extended, Extension};

pub use dlock_protocol::Fence;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A master of the quorum, by its place in the client's list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

/// How many masters there are, and how many of them decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorum {
    members: u8,
}

impl Quorum {
    /// A quorum of `members` independent masters; None for no member at all.
    pub fn new(members: u8) -> Option<Self> {
        (members > 0).then_some(Self { members })
    }

    /// Every master of the quorum.
    pub fn members(self) -> impl Iterator<Item = Member> {
        (0..self.members).map(Member)
    }

    /// How many masters make a majority: any two majorities have a master in common.
    pub fn majority(self) -> usize {
        usize::from(self.members) / 2 + 1
    }

    /// Whether a majority can be had at all when `unavailable` masters do not vote.
    fn possible_without(self, unavailable: usize) -> bool {
        usize::from(self.members).saturating_sub(unavailable) >= self.majority()
    }

    /// Whether so many masters found fault with what is asked that no majority can ever grant it.
    pub(crate) fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.possible_without(votes.filter(|vote| vote.is_misuse()).count())
    }
}

/// What one master said to one request. Silence is not "no": it may have granted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vote<G = Fence> {
    /// Yes; for ACQUIRE and CONFIRM with the fence of the hold there.
    Granted(G),
    /// No, and why.
    Refused(Refusal),
    /// It cannot vote, and it is certain that the request was not carried out.
    Failed(Failure),
    /// No answer in time, or the connection broke behind the request: it may have been carried out.
    Unknown,
}

/// Why a master that works said no.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Another token holds it; from a line: the wait was over.
    Taken,
    /// The master may have forgotten holds and grants nothing for so long.
    Grace(Duration),
    /// Too many clients wait there.
    QueueFull,
    /// Waiting would close a cycle of tokens; the server's account of it.
    Deadlock(Arc<str>),
    /// The fence is further ahead of the master's clock than it accepts.
    FenceAhead,
    /// The token holds nothing there (any more).
    NotHeld,
}

/// Why a master could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// It could not be reached.
    Down(Arc<str>),
    /// It answered with an error that is no refusal: no permission, no module, no memory, still loading.
    Error(Arc<str>),
    /// It answered that what is asked makes no sense there: asked again it would say the same.
    Misuse(Arc<str>),
}

impl<G> Vote<G> {
    /// Whether what was asked makes no sense there.
    fn is_misuse(&self) -> bool {
        matches!(self, Vote::Failed(Failure::Misuse(_)))
    }

    /// Whether the master is of no use to anybody at present, as against busy with somebody else.
    fn is_unavailable(&self) -> bool {
        match self {
            Vote::Failed(_) | Vote::Unknown => true,
            Vote::Refused(Refusal::Grace(_) | Refusal::FenceAhead) => true,
            Vote::Refused(_) | Vote::Granted(_) => false,
        }
    }
}

/// What is asked of one master; the token, ttl, mode and the like are the same for all and known to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE, one try.
    Acquire,
    /// ACQUIRE with BLOCK: wait in line.
    Wait,
    /// Close the connection of a [`Request::Wait`] that was not answered, so that no waiter stays behind. Never answered.
    /// Not a RELEASE: one that is under way when the same master grants later would end that very hold.
    Leave,
    /// CONFIRM: raise the hold's fence to `fence` and set its lease anew.
    Confirm {
        /// The greatest fence that a counted master granted.
        fence: Fence,
        /// Which second phase asks. A fence can come back after a greater one was refused; an answer to its first
        /// time must not be taken for one to its second, whose lease begins later.
        phase: u8,
    },
    /// EXTEND.
    Extend,
    /// RELEASE ALL, on the connection that carried the ACQUIRE, with a time budget of its own. Its answer decides nothing.
    Release,
}

/// One request to one master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outgoing {
    /// Who is asked.
    pub to: Member,
    /// What.
    pub what: Request,
}

/// What is to be sent now, all of it in parallel.
pub type Sends = SmallVec<[Outgoing; 5]>;

fn to_all(quorum: Quorum, what: Request) -> Sends {
    quorum.members().map(|to| Outgoing { to, what }).collect()
}
