//! A client: passes messages to and from `Round` and `Extension` of `dlock-quorum`, the code under test. In a
//! world with a [`Mutation`], clients or masters break a rule.

use super::master::{Answer, Kind, Message, Token, as_fence};
use super::world::{Behaviour, MASTERS, Mutation, State, World};
use dlock_quorum::{
    Extension, Fence, Member, Outgoing, Progress, Refusal, Request, Round, Start, Verdict, Vote,
};
use smallvec::SmallVec;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// The number of the current acquisition.
    pub acquisition: u8,
    /// The greatest fence of the acquisitions that were complete when this one began.
    greatest_fence_before: u8,
    /// The waiters at the first master when this acquisition began.
    pub waiters_before: SmallVec<[Token; 2]>,
    pub phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Idle,
    /// Waits in a queue before the acquisition begins. Only under [`Mutation::ValidFromReceipt`].
    Queueing,
    Acquiring {
        round: Box<Round>,
        /// For each master, the request whose answer the client waits for, if the answer can time out.
        asked: [Option<Kind>; MASTERS],
        /// Whether the round waits for `ask_again`.
        paused: bool,
    },
    Holding(Holding),
    Done,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    /// Remaining validity of the hold.
    pub validity_left: Duration,
    pub extension: Option<Box<Extension>>,
    pub extensions_begun: u8,
    /// The rest of [`Behaviour::at_least`].
    pub at_least_left: u8,
    /// Whether a majority has extended the hold at least once.
    pub was_extended: bool,
    /// The number of extensions that began before an operator broke the hold. `None` if the hold was not
    /// broken.
    pub extensions_before_break: Option<u8>,
}

impl Client {
    pub fn new() -> Self {
        Self { acquisition: 0, greatest_fence_before: 0, waiters_before: SmallVec::new(), phase: Phase::Idle }
    }

    /// Whether the message can still affect the client: a request of its current acquisition, or an answer
    /// that it waits for. The model removes other messages.
    pub fn is_affected_by(&self, message: &Message) -> bool {
        let is_read = match self.phase {
            Phase::Idle | Phase::Done => false,
            Phase::Holding(_) => matches!(message.kind, Kind::Extend(_) | Kind::Restore),
            Phase::Queueing | Phase::Acquiring { .. } => true,
        };
        message.acquisition == self.acquisition && (is_read || (message.answer.is_none() && self.is_busy()))
    }

    fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Done)
    }

    pub fn holds(&self) -> bool {
        matches!(self.phase, Phase::Holding(_))
    }

    /// Advances time by `by`. The client drops a hold when the validity ends, without a RELEASE.
    pub fn age(&mut self, behaviour: Behaviour, by: Duration) {
        match &mut self.phase {
            Phase::Acquiring { round, .. } => round.age(by),
            Phase::Holding(holding) => {
                holding.validity_left = holding.validity_left.saturating_sub(by);
                holding.at_least_left = holding.at_least_left.saturating_sub(1);
                holding.extension.iter_mut().for_each(|extension| extension.age(by));
                if holding.validity_left.is_zero() {
                    self.next_acquisition(behaviour);
                }
            }
            Phase::Idle | Phase::Queueing | Phase::Done => {}
        }
    }

    pub fn has_vote(&self, vote: &Vote) -> bool {
        matches!(&self.phase, Phase::Acquiring { round, .. } if round.votes().flatten().any(|v| v == vote))
    }

    /// Whether the client is in the pause before it asks again, and keeps grants of some masters although
    /// another master has refused it.
    pub fn keeps_partial_hold(&self) -> bool {
        let Phase::Acquiring { round, paused: true, .. } = &self.phase else { return false };
        round.votes().any(|vote| fence_of(vote).is_some()) && self.has_vote(&Vote::Refused(Refusal::Taken))
    }

    /// Whether the grant of a member no longer counts, because another member refused its fence as too far
    /// ahead.
    pub fn has_dropped_member(&self) -> bool {
        matches!(&self.phase, Phase::Acquiring { round, .. } if round.members_ahead().next().is_some())
    }

    pub fn next_acquisition(&mut self, behaviour: Behaviour) {
        self.acquisition += 1;
        self.greatest_fence_before = 0;
        self.waiters_before.clear();
        self.phase = if self.acquisition < behaviour.acquisitions { Phase::Idle } else { Phase::Done };
    }
}

impl State {
    pub fn token(&self, world: &World, client: usize) -> Token {
        let acquisition =
            if world.has(Mutation::TokenUsedAgain) { 0 } else { self.clients[client].acquisition };
        Token { client: client as u8, acquisition }
    }

    pub fn begin(&mut self, world: &World, client: usize) {
        self.clients[client].greatest_fence_before = self.history.greatest();
        let all = || world.quorum().members().collect();
        let (start, order): (Start, Vec<Member>) = match world.clients[client].waits {
            false if world.clients[client].respects_queue => {
                self.clients[client].waiters_before = self.masters[0].queue.clone();
                (Start::AtOnce, vec![Member(0)])
            }
            false if world.clients[client].in_order || world.has(Mutation::KeepsPartialHold) => {
                (Start::InOrder, all())
            }
            false => (Start::AtOnce, Vec::new()),
            true if world.has(Mutation::ValidFromReceipt) => {
                self.clients[client].phase = Phase::Queueing;
                return self.post(world, client, 0, [Outgoing { to: Member(0), what: Request::Wait }]);
            }
            true => (Start::Queued, all()),
        };
        let (round, sends) = Round::begin(world.plan(client), start, &order, world.now());
        self.clients[client].phase =
            Phase::Acquiring { round: Box::new(round), asked: [None; MASTERS], paused: false };
        self.send(world, client, sends);
    }

    /// Sends requests, and records those that may time out.
    fn send(&mut self, world: &World, client: usize, sends: impl IntoIterator<Item = Outgoing> + Clone) {
        if let Phase::Acquiring { asked, .. } = &mut self.clients[client].phase
            && world.clients[client].timeouts
        {
            for Outgoing { to, what } in sends.clone() {
                let is_answered = !matches!(what, Request::Leave | Request::Release);
                asked[usize::from(to.0)] = is_answered.then_some(Kind::new(what, 0));
            }
        }
        self.post(world, client, 0, sends);
    }

    /// Puts requests on the wire. `number` is that of the extension, for EXTEND, or the DELAY of RELEASE.
    pub fn post(
        &mut self,
        world: &World,
        client: usize,
        number: u8,
        sends: impl IntoIterator<Item = Outgoing>,
    ) {
        let (token, acquisition) = (self.token(world, client), self.clients[client].acquisition);
        let mut sends: Vec<Outgoing> = sends.into_iter().collect();
        // The round sends CONFIRM only to members with a grant. The mutation sends CONFIRM to all members.
        if let Some(&Outgoing { what: confirm @ Request::Confirm { .. }, .. }) = sends.first()
            && world.has(Mutation::UngrantedCounted)
        {
            sends = world.quorum().members().map(|to| Outgoing { to, what: confirm }).collect();
        }
        for Outgoing { to, what } in sends {
            if what != Request::Release || world.clients[client].releases {
                let message = Message { token, acquisition, kind: Kind::new(what, number), answer: None };
                self.masters[usize::from(to.0)].post(message);
            }
        }
    }

    /// Passes an answer to the client that sent the request. `Vote::Unknown` means that the client no longer
    /// waits for the answer.
    pub fn receive(&mut self, world: &World, master: usize, message: Message, mut vote: Vote) {
        if message.kind == Kind::HasWaiters && world.has(Mutation::NoCheckForWaiters) {
            vote = Vote::Refused(Refusal::NotHeld);
        }
        let client = usize::from(message.token.client);
        let member = Member(master as u8);
        match &mut self.clients[client].phase {
            Phase::Queueing => self.acquire_after_queueing(world, client, vote),
            Phase::Acquiring { round, asked, .. } => {
                if asked[master] == Some(message.kind) {
                    asked[master] = None;
                }
                let confirmed = matches!((message.kind, &vote), (Kind::Confirm { .. }, Vote::Granted(_)));
                if confirmed && world.has(Mutation::UngrantedCounted) {
                    // The round counts the CONFIRM of a member only if the member has granted, so the
                    // mutation makes up a grant.
                    round.answered(member, Request::Acquire, Vote::Granted(as_fence(1)), world.now());
                }
                let progress = match message.kind {
                    Kind::Wait => round.waited(member, vote.map(|_| ()), world.now()),
                    kind => round.answered(member, kind.into(), vote, world.now()),
                };
                self.carry_out(world, client, progress);
            }
            Phase::Holding(_) => self.extension_answered(world, member, message, vote),
            Phase::Idle | Phase::Done => {}
        }
    }

    fn carry_out(&mut self, world: &World, client: usize, progress: Progress) {
        let Phase::Acquiring { round, paused, .. } = &mut self.clients[client].phase else { return };
        *paused = progress.verdict == Verdict::TryAgain;
        let greatest_grant = round.votes().filter_map(fence_of).max();
        self.send(world, client, progress.sends);
        match progress.verdict {
            Verdict::Open | Verdict::TryAgain => {}
            Verdict::Failed(_) => self.clients[client].next_acquisition(world.clients[client]),
            Verdict::Acquired(acquired) => {
                let still_waits = |token: &Token| self.masters[0].queue.contains(token);
                self.history.waiter_overtaken |= self.clients[client].waiters_before.iter().any(still_waits);
                self.clients[client].waiters_before.clear();
                let fence = if world.has(Mutation::NoConfirmPhase) { greatest_grant } else { acquired.fence };
                if let Some(fence) = fence {
                    let before = self.clients[client].greatest_fence_before;
                    self.history.record(fence.get() as u8, before);
                }
                self.hold(world, client, acquired.valid_until);
            }
        }
    }

    /// Passes a message of a grant to a client that waits in a queue, although nothing was granted.
    pub fn false_message(&mut self, world: &World, client: usize) {
        let Phase::Acquiring { round, .. } = &mut self.clients[client].phase else { return };
        let Some(queue) = round.queue() else { return };
        let progress = round.waited(queue, Vote::Granted(()), world.now());
        self.carry_out(world, client, progress);
    }

    pub fn ask_again(&mut self, world: &World, client: usize) {
        let Phase::Acquiring { round, paused, .. } = &mut self.clients[client].phase else { return };
        *paused = false;
        let sends = round.ask_again();
        if world.has(Mutation::ValidFromRetry) {
            **round = Round::begin(world.plan(client), Start::AtOnce, &[], world.now()).0;
        }
        self.send(world, client, sends);
    }

    /// Gives up the acquisition, or releases the hold: both send RELEASE to all masters.
    pub fn release(&mut self, world: &World, client: usize) {
        let mut delay = 0;
        let sends = match &mut self.clients[client].phase {
            Phase::Acquiring { round, .. } => round.give_up(),
            phase => {
                if let Phase::Holding(holding) = phase {
                    delay = holding.at_least_left;
                }
                world.quorum().members().map(|to| Outgoing { to, what: Request::Release }).collect()
            }
        };
        self.post(world, client, delay, sends);
        self.clients[client].next_acquisition(world.clients[client]);
    }

    /// Begins the acquisition after a wait, and counts the grant of the queue as a vote. Only under
    /// [`Mutation::ValidFromReceipt`].
    fn acquire_after_queueing(&mut self, world: &World, client: usize, vote: Vote) {
        let (mut round, sends) = Round::begin(world.plan(client), Start::AtOnce, &[], world.now());
        let progress = round.answered(Member(0), Request::Acquire, vote, world.now());
        self.clients[client].phase =
            Phase::Acquiring { round: Box::new(round), asked: [None; MASTERS], paused: false };
        // Leaves out the ACQUIRE to the first master, which has granted the lock in its queue.
        self.send(world, client, sends.into_iter().skip(1).collect::<Vec<_>>());
        self.carry_out(world, client, progress);
    }
}

fn fence_of(vote: Option<&Vote>) -> Option<Fence> {
    match vote {
        Some(Vote::Granted(fence)) => Some(*fence),
        _ => None,
    }
}

impl From<Answer> for Vote {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Fence(fence) => Vote::Granted(as_fence(fence)),
            // An extension ignores the fence.
            Answer::Done => Vote::Granted(as_fence(1)),
            Answer::Taken => Vote::Refused(Refusal::Taken),
            Answer::Grace => Vote::Refused(Refusal::Grace(Duration::ZERO)),
            Answer::NotHeld => Vote::Refused(Refusal::NotHeld),
            Answer::FenceAhead => Vote::Refused(Refusal::FenceAhead),
        }
    }
}
