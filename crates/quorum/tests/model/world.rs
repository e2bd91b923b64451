//! A world of the model: its clients, and how often each fault may happen. Also the state that the checker
//! explores.

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
    /// The permutations that exchange clients with equal scripts: see [`super::names::client_orders`].
    pub client_orders: Vec<Vec<usize>>,
    /// Whether states that differ only in names are kept apart.
    pub by_name: bool,
    /// The greatest fence that each master has issued before, for other resources.
    pub fences_before: [u8; MASTERS],
    pub time: Time,
    pub fenced: bool,
    /// Whether masters count their fences up. If false, every grant has fence 1, which keeps the states few:
    /// a quorum that is not `fenced` ignores fences.
    pub rising_fences: bool,
    /// How many messages may be delivered twice.
    pub duplicates: u8,
    /// How many times a master may crash and restart empty. All masters may crash at the same time.
    pub crashes: u8,
    /// Ticks without grants after a crash.
    pub grace: u8,
    /// Whether the first client starts with a new hold on all masters. After an extension it asks the masters
    /// that lost the hold to restore it.
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
    /// Whether the client waits in the queue of the first master, or of the next if that one is silent.
    pub waits: bool,
    /// Whether the client asks all masters at once. If the first one refuses, the client acquires only if no
    /// client waits there.
    pub looks: bool,
    /// Whether the client asks the first master before the others.
    pub in_order: bool,
    pub extensions: u8,
    pub retries: u8,
    /// Whether the client may stop waiting for an answer that is still under way.
    pub timeouts: bool,
    /// Whether the client may give up, and release its hold early.
    pub releases: bool,
}

impl Script {
    /// Whether the client asks again without a grant of the first master, which would give it priority.
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

/// Faulty clients and masters, each without one rule. The checker must find the violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The greatest of the majority's fences is the result, but no hold is raised to it by CONFIRM.
    NoConfirmPhase,
    /// A master raises its greatest fence on a CONFIRM for a token that holds nothing there.
    RaiseWithoutHold,
    /// A master accepts a CONFIRM that is lower than the hold's fence.
    FenceUnchecked,
    /// As `FenceUnchecked`. The client also sends CONFIRM to masters whose answers it has not counted, and
    /// counts a confirmation as a grant.
    UncountedAnswers,
    /// All acquisitions of a client use one token.
    TokenUsedAgain,
    /// Validity counts from the retry.
    ValidFromRetry,
    /// A client that was granted after a wait counts this as a vote, without asking the master again.
    /// Validity counts from the receipt of the grant.
    ValidFromReceipt,
    /// A client with `looks` does not check for waiters at the first master.
    NoLook,
    /// A client that asks all masters at once keeps a partial hold until it asks again.
    KeepsPartialHold,
    /// One answer is enough for an extension.
    ExtendedByOne,
    /// In an extension, a master that lost the hold is asked at once to restore it, and its grant is a vote.
    RestoredAtOnce,
    /// As `RestoredAtOnce`, and validity counts from that grant.
    ValidFromRestoration,
    /// A master forgets its greatest fence in a crash.
    FenceForgotten,
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

/// Facts about the past that only the checker sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    /// The fences of the completed acquisitions.
    pub fences: SmallVec<[u8; 8]>,
    /// Two acquisitions had equal fences.
    pub same_fence: bool,
    /// An extension that began after the hold was broken has counted.
    pub revived: bool,
    /// A newcomer acquired the lock while an earlier waiter still waited.
    pub overtaken: bool,
    /// A fence was not greater than that of an acquisition that completed before this one began.
    pub below_one_before_its_begin: bool,
    /// A fence was not greater than that of an acquisition that completed before this one completed.
    pub below_one_before_its_end: bool,
}

impl World {
    pub fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    /// The present, which is a constant: a tick makes everything else older instead, so that time without end
    /// needs finitely many states. It is one lease after the origin, so that instants up to one lease ago can
    /// be represented; older ones do not matter.
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
            masters: self.fences_before.map(Master::new),
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

    /// Returns the index from which on the masters are interchangeable. The first master is not, if clients
    /// ask it first or wait there. None is ([`MASTERS`]) if clients move from one master to the next, or if
    /// the first master's answer counts for all.
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
    /// Removes messages that can have no effect.
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
