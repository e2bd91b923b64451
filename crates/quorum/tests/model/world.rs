//! A world of the model: its clients, and how often each fault may happen. The checker searches each
//! [`State`] that the world can reach.

use super::client::Client;
use super::master::{Master, Token};
use dlock_quorum::{Instant, Lease, Plan, Quorum};
use smallvec::SmallVec;
use std::time::Duration;

pub const MASTERS: usize = 3;
/// The unit of time in a world with a clock.
pub const TICK: Duration = Duration::from_secs(1);

/// The clients, and the faults that may happen.
#[derive(Debug, Clone)]
pub struct World {
    pub clients: Vec<Behaviour>,
    /// See [`super::symmetry::client_permutations`].
    pub client_permutations: Vec<Vec<usize>>,
    /// Whether states that differ only in the numbering of clients and masters count as different ones.
    pub without_symmetry: bool,
    /// The greatest fence that each master has issued for other resources before the search begins.
    pub fences_before: [u8; MASTERS],
    pub time: Time,
    /// See [`Plan::fenced`].
    pub fenced: bool,
    /// Whether each grant of a master has a greater fence than the one before. If false, every grant has
    /// fence 1. This reduces the number of states of a quorum without `fenced`, which ignores fences.
    pub rising_fences: bool,
    /// How many messages may be delivered twice.
    pub duplicates: u8,
    /// How many times a master may crash and restart empty. All masters may crash at the same time.
    pub crashes: u8,
    /// The grace period after a crash, in ticks.
    pub grace: u8,
    /// Whether the first client starts with a hold on all masters, and asks masters that lose the hold to
    /// restore it.
    pub first_client_holds: bool,
    /// How often an operator may end all holds at once.
    pub breaks: u8,
    /// How often a master may refuse a CONFIRM with FENCEAHEAD. The model has no clocks of masters, so any
    /// fence may be refused.
    pub ahead_refusals: u8,
    /// How often a client that waits in a queue may get a message of a grant that did not happen: a forged
    /// one, or that of a hold that has ended.
    pub false_messages: u8,
    /// The rule that clients or masters break, if any.
    pub mutation: Option<Mutation>,
}

/// The behaviour of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behaviour {
    pub acquisitions: u8,
    /// Whether the client waits in the queue of the first master, or of the next if that one is silent.
    pub waits: bool,
    /// Whether the client checks the queue of the first master. If this master refuses, the grants of the
    /// others count only if no client waits in its queue.
    pub respects_queue: bool,
    /// Whether the client asks the first master before the others.
    pub in_order: bool,
    pub extensions: u8,
    pub retries: u8,
    /// Whether the client may stop waiting for an answer before it arrives.
    pub timeouts: bool,
    /// Whether the client may give an acquisition up, and end a hold before its validity ends.
    pub releases: bool,
    /// How many ticks the hold and the delay after its RELEASE (option DELAY) last together.
    pub at_least: u8,
}

impl Behaviour {
    /// Whether the client asks all masters at once, and may ask them again after a pause.
    pub fn asks_all_again(&self) -> bool {
        self.retries > 0 && !self.waits && !self.in_order
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// No clock. Messages take any time. A hold may expire at any moment, which happens at most `expiries`
    /// times. A proof in such a world applies to all clocks.
    None { expiries: u8 },
    /// Every hold of a master ends exactly `ttl` ticks after it was last granted, confirmed or extended. Time
    /// has no end.
    Ticks { ttl: u8 },
}

/// A rule that clients or masters break. The checker must find the violation of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// An acquisition ends without a confirm phase. Its fence is the greatest that a master granted.
    NoConfirmPhase,
    /// A master accepts a CONFIRM for a token without a hold there, and raises its greatest fence.
    RaiseWithoutHold,
    /// A master accepts a CONFIRM with a lower fence than that of the hold.
    FenceUnchecked,
    /// Like `FenceUnchecked`. In addition, the client sends CONFIRM to masters that have not granted, too,
    /// and counts their answers.
    UngrantedCounted,
    /// All acquisitions of a client use one token.
    TokenUsedAgain,
    /// Validity counts from the last retry instead of the first request.
    ValidFromRetry,
    /// A client counts the grant of a queue as a vote, without asking the master again. Validity counts from
    /// the receipt of this grant.
    ValidFromReceipt,
    /// A client with `respects_queue` does not check for waiters at the first master.
    NoCheckForWaiters,
    /// A client that should ask all masters at once asks the first one before the others. A round in this
    /// order keeps its grants when a master refuses, and asks that master again.
    KeepsPartialHold,
    /// One vote extends a hold, instead of a majority.
    OneVoteExtends,
    /// A client asks a master that lost the hold to restore it at once, before a majority has extended the
    /// hold. The grant counts as a vote for the extension.
    RestoredAtOnce,
    /// Like `RestoredAtOnce`. In addition, validity counts from that grant.
    ValidFromRestoration,
    /// A master forgets its greatest fence in a crash.
    FenceForgotten,
    /// A DELAY counts as effective once one RELEASE has ended a hold, instead of those of a majority.
    OneDelay,
    /// A DELAY counts as effective where RELEASE found no hold.
    UnheldDelayCounted,
}

/// A state of a world. The fields `.._left` have the numbers of events that may still happen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub masters: [Master; MASTERS],
    pub clients: SmallVec<[Client; 3]>,
    pub expiries_left: u8,
    pub duplicates_left: u8,
    pub crashes_left: u8,
    pub breaks_left: u8,
    pub ahead_refusals_left: u8,
    pub false_messages_left: u8,
    pub history: History,
}

/// Facts about the past, for the properties. Clients and masters do not read them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    /// The fences of the completed acquisitions, in ascending order.
    pub fences: SmallVec<[u8; 8]>,
    /// Two acquisitions had equal fences.
    pub has_equal_fences: bool,
    /// An extension that began after a BREAK of the hold got a majority.
    pub extended_after_break: bool,
    /// A client that respects the queue acquired the lock before a client that already waited there.
    pub waiter_overtaken: bool,
    /// An acquisition began after another had completed, but its fence was not greater.
    pub violates_order: bool,
    /// An acquisition completed after another had completed, but its fence was not greater.
    pub violates_strict_order: bool,
    pub at_least: Option<AtLeast>,
    /// A client acquired the lock within the `at_least` of another client's hold, although a majority of
    /// RELEASEs had ended that hold.
    pub violates_at_least: bool,
}

/// The hold of a client with [`Behaviour::at_least`], and the delay after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AtLeast {
    pub token: Token,
    /// The rest of `at_least`.
    pub left: u8,
    /// The masters on which a RELEASE has ended the hold.
    pub ended: u8,
}

impl World {
    pub fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The present, a constant. A tick does not advance the present, but moves all other instants into the
    /// past. So there is a finite number of states, although time has no end. Instants count from an origin.
    /// The checker needs no instant that is older than one lease, so the present is one lease after the
    /// origin.
    pub fn now(&self) -> Instant {
        self.after(Duration::ZERO)
    }

    /// The instant `left` after the present.
    pub fn after(&self, left: Duration) -> Instant {
        Instant::since_boot(TICK * u32::from(self.ttl()) + left)
    }

    /// Whether the grant of a restored hold is a vote.
    pub fn counts_restored(&self) -> bool {
        self.has(Mutation::RestoredAtOnce) || self.has(Mutation::ValidFromRestoration)
    }

    pub fn has_clock(&self) -> bool {
        matches!(self.time, Time::Ticks { .. })
    }

    pub fn has_at_least(&self) -> bool {
        self.clients.iter().any(|client| client.at_least > 0)
    }

    pub fn lease(&self) -> Lease {
        Lease::new(TICK * u32::from(self.ttl())).unwrap()
    }

    pub fn quorum(&self) -> Quorum {
        Quorum::new(MASTERS as u8).unwrap()
    }

    pub fn plan(&self, client: usize) -> Plan {
        let fenced = self.fenced && !self.has(Mutation::NoConfirmPhase);
        Plan { quorum: self.quorum(), lease: self.lease(), fenced, retries: self.clients[client].retries }
    }

    pub fn start(&self) -> State {
        let mut state = State {
            masters: self.fences_before.map(Master::new),
            clients: self.clients.iter().map(|_| Client::new()).collect(),
            expiries_left: if let Time::None { expiries } = self.time { expiries } else { 0 },
            duplicates_left: self.duplicates,
            crashes_left: self.crashes,
            breaks_left: self.breaks,
            ahead_refusals_left: self.ahead_refusals,
            false_messages_left: self.false_messages,
            history: History::default(),
        };
        if self.first_client_holds {
            state.hold_everywhere(self);
        }
        state
    }

    /// Returns the index from which on the masters are interchangeable:
    /// * [`MASTERS`] (none of them) if `without_symmetry` is set, or if clients move from one master to the
    ///   next, or under [`Mutation::OneVoteExtends`], which counts each answer as that of the first master.
    /// * 1 if clients ask the first master before the others, or wait there.
    /// * 0 otherwise.
    pub fn first_interchangeable_master(&self) -> usize {
        let uses_queue = |client: &Behaviour| client.waits || client.respects_queue || client.in_order;
        let moves_on =
            |client: &Behaviour| (client.waits || client.in_order) && (client.timeouts || self.grace > 0);
        if self.without_symmetry || self.has(Mutation::OneVoteExtends) || self.clients.iter().any(moves_on) {
            MASTERS
        } else {
            usize::from(self.clients.iter().any(uses_queue))
        }
    }
}

impl State {
    /// Removes messages without effect: see [`Master::remove_messages_without_effect`].
    pub fn remove_messages_without_effect(&mut self) {
        let clients = self.clients.clone();
        for master in &mut self.masters {
            master.remove_messages_without_effect(|message| {
                clients[usize::from(message.token.client)].is_affected_by(message)
            });
        }
    }
}

impl History {
    pub fn record(&mut self, fence: u8, greatest_before: u8) {
        self.has_equal_fences |= self.fences.contains(&fence);
        self.violates_order |= fence <= greatest_before;
        self.violates_strict_order |= self.fences.iter().any(|&before| fence <= before);
        let index = self.fences.partition_point(|&before| before < fence);
        self.fences.insert(index, fence);
    }

    /// Notes an acquisition, for [`History::violates_at_least`].
    pub fn acquired(&mut self, world: &World, token: Token) {
        let needed = if world.has(Mutation::OneDelay) { 1 } else { world.quorum().majority() as u8 };
        self.violates_at_least |= self.at_least.as_ref().is_some_and(|before| before.ended >= needed);
        let left = world.clients[usize::from(token.client)].at_least;
        self.at_least = (left > 0).then_some(AtLeast { token, left, ended: 0 });
    }

    pub fn released(&mut self, world: &World, token: Token, has_ended: bool) {
        if let Some(at_least) = self.at_least.as_mut().filter(|at_least| at_least.token == token) {
            at_least.ended += u8::from(has_ended || world.has(Mutation::UnheldDelayCounted));
        }
    }

    pub fn tick(&mut self) {
        self.at_least.iter_mut().for_each(|at_least| at_least.left -= 1);
        self.at_least = self.at_least.take().filter(|at_least| at_least.left > 0);
    }

    pub fn greatest(&self) -> u8 {
        self.fences.last().copied().unwrap_or(0)
    }
}
