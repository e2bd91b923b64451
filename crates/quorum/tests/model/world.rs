//! The worlds: the clients, the faults and their number; and the state that the checker explores.

use super::client::Client;
use super::master::Master;
use dlock_quorum::{Instant, Lease};
use dlock_quorum::{Plan, Quorum};
use smallvec::SmallVec;
use std::time::Duration;

pub const MASTERS: usize = 3;
pub const TICK: Duration = Duration::from_secs(1);

/// The clients, and the faults that may happen.
#[derive(Debug, Clone)]
pub struct World {
    pub clients: Vec<Script>,
    /// The orders in which the clients may be named: see [`super::names::client_orders`].
    pub client_orders: Vec<Vec<usize>>,
    /// Whether states that differ only in names are kept apart.
    pub by_name: bool,
    /// The greatest number that each master has used before, for other resources.
    pub numbers_before: [u8; MASTERS],
    pub time: Time,
    pub fenced: bool,
    /// Whether masters number their grants; a plain quorum ignores the numbers.
    pub numbers: bool,
    /// How many messages may be delivered twice.
    pub duplicates: u8,
    /// How many times a master may crash and restart empty, at any time, also all at once.
    pub crashes: u8,
    /// Ticks without grants after a crash.
    pub grace: u8,
    /// Whether the first client already holds on all masters, at the beginning of a lease, and asks those
    /// that forget for its hold again.
    pub held: bool,
    /// How often an operator may end all holds at once.
    pub breaks: u8,
    /// How often a CONFIRM may be refused as too far ahead, with or without reason.
    pub fence_ahead: u8,
    /// A rule that is left out, to see that the checker finds the violation.
    pub broken: Option<Broken>,
}

/// The behaviour of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    pub acquisitions: u8,
    /// Whether it waits in a queue, at the masters in their order.
    pub waits: bool,
    /// Whether it asks all at once, and overtakes no waiter of the first master.
    pub looks: bool,
    /// Whether it asks the first master before the others.
    pub in_order: bool,
    pub extensions: u8,
    pub retries: u8,
    /// Whether it may stop waiting for an answer that is still under way.
    pub timeouts: bool,
    /// Whether it may give up, and release its hold early.
    pub releases: bool,
}

impl Script {
    pub fn retries_without_turn(&self) -> bool {
        self.retries > 0 && !self.waits && !self.in_order
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// No clock: messages take any time, and this many holds may end at any moment, for any reason. A proof
    /// in such a world applies to all clocks.
    None { lapses: u8 },
    /// Time goes on for ever, and every hold ends exactly `ttl` ticks after its last grant.
    Ticks { ttl: u8 },
}

/// The rules, each left out once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The greatest of the majority's numbers is the fence, but no hold is raised to it.
    NoConfirmPhase,
    /// A master raises its number for a token that holds nothing there.
    RaiseWithoutHold,
    /// A master accepts a CONFIRM that is lower than the hold's fence.
    FenceUnchecked,
    /// As above, and the client counts the CONFIRM of a master without a grant.
    UncountedAnswers,
    /// The next acquisition uses the token of the last.
    TokenUsedAgain,
    /// Validity counts from the retry.
    ValidFromRetry,
    /// A grant after a wait is a vote, and validity counts from its receipt; the client does not claim it.
    ValidFromReceipt,
    /// A newcomer does not look for waiters.
    NoLook,
    /// A client that asks all at once asks again as if its turn had come.
    KeepsAPart,
    /// One answer is enough for an extension.
    ExtendedByOne,
    /// A master that does not hold it is asked for it again at once, and its grant is a vote.
    RestoredAtOnce,
    /// As above, and validity counts from the grant.
    ValidFromRestoration,
    /// After a crash a master starts numbering from scratch.
    NumberForgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub masters: [Master; MASTERS],
    pub clients: SmallVec<[Client; 3]>,
    pub lapses: u8,
    pub duplicates: u8,
    pub crashes: u8,
    pub breaks: u8,
    pub fence_ahead: u8,
    pub history: History,
}

/// The history, which only the checker knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    /// The fences of the completed acquisitions.
    pub fences: SmallVec<[u8; 8]>,
    /// Two of them were equal.
    pub same_fence: bool,
    /// An extension that began after the hold was broken has counted.
    pub revived: bool,
    /// A newcomer acquired the lock while an earlier waiter still waited.
    pub overtaken: bool,
    /// One was not greater than another that was complete before it began.
    pub below_one_before_its_begin: bool,
    /// One was not greater than another that was complete before it was complete.
    pub below_one_before_its_end: bool,
}

impl World {
    pub fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    /// The present, which never moves: a tick makes everything else older instead. So time can continue for
    /// ever in finitely many states. The present is one lease after the origin, because nothing older than a
    /// lease matters.
    pub fn now(&self) -> Instant {
        self.after(Duration::ZERO)
    }

    /// The instant `left` after the present.
    pub fn after(&self, left: Duration) -> Instant {
        Instant::since_boot(TICK * u32::from(self.ttl()) + left)
    }

    /// Whether the grant of a restored hold is a vote.
    pub fn counts_restored(&self) -> bool {
        self.is(Broken::RestoredAtOnce) || self.is(Broken::ValidFromRestoration)
    }

    pub fn has_clock(&self) -> bool {
        matches!(self.time, Time::Ticks { .. })
    }

    pub fn lease(&self) -> Lease {
        Lease::new(TICK * u32::from(self.ttl())).unwrap()
    }

    pub fn quorum(&self) -> Quorum {
        Quorum::new(MASTERS as u8).unwrap()
    }

    pub fn plan(&self, client: usize) -> Plan {
        let fenced = self.fenced && !self.is(Broken::NoConfirmPhase);
        Plan { quorum: self.quorum(), lease: self.lease(), fenced, retries: self.clients[client].retries }
    }

    pub fn start(&self) -> State {
        let mut state = State {
            masters: self.numbers_before.map(Master::new),
            clients: self.clients.iter().map(|_| Client::new()).collect(),
            lapses: if let Time::None { lapses } = self.time { lapses } else { 0 },
            duplicates: self.duplicates,
            crashes: self.crashes,
            breaks: self.breaks,
            fence_ahead: self.fence_ahead,
            history: History::default(),
        };
        if self.held {
            state.hold_everywhere(self);
        }
        state
    }

    /// The masters from this index on are interchangeable: all after the one where clients may wait, as a
    /// queue has an order; none if the answer of one master counts for all.
    pub fn first_alike(&self) -> usize {
        let waits = |script: &Script| script.waits || script.looks || script.in_order;
        let moves_on =
            |script: &Script| (script.waits || script.in_order) && (script.timeouts || self.grace > 0);
        if self.by_name || self.is(Broken::ExtendedByOne) || self.clients.iter().any(moves_on) {
            MASTERS
        } else {
            usize::from(self.clients.iter().any(waits))
        }
    }
}

impl State {
    /// Forgets messages that can have no effect any longer.
    pub fn sweep(&mut self) {
        let clients = self.clients.clone();
        for master in &mut self.masters {
            master.sweep(|message| clients[usize::from(message.token.client)].reads(message));
        }
    }
}

impl History {
    pub fn completed(&mut self, fence: u8, greatest_before: u8) {
        self.same_fence |= self.fences.contains(&fence);
        self.below_one_before_its_begin |= fence <= greatest_before;
        self.below_one_before_its_end |= self.fences.iter().any(|&before| fence <= before);
        let index = self.fences.partition_point(|&before| before < fence);
        self.fences.insert(index, fence);
    }

    pub fn greatest(&self) -> u8 {
        self.fences.last().copied().unwrap_or(0)
    }
}
