//! A client: passes messages to and from the state machines of `dlock-quorum`, the code under test.

use super::master::{Answer, Ask, Message, Token, as_fence};
use super::world::{Broken, MASTERS, Script, State, World};
use dlock_quorum::{
    Extension, Fence, Member, Outgoing, Progress, Refusal, Request, Round, Start, Verdict, Vote,
};
use smallvec::SmallVec;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    pub round: u8,
    /// The greatest fence of the acquisitions that were complete when this one began.
    greatest_before: u8,
    /// The waiters at the first master when this acquisition began.
    pub ahead: SmallVec<[Token; 2]>,
    pub phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Idle,
    /// Only under [`Broken::ValidFromReceipt`]: waits in a queue before the acquisition begins.
    Queueing,
    Acquiring {
        machine: Box<Round>,
        /// The last request to each master that may still time out.
        asked: [Option<Ask>; MASTERS],
        /// Whether the machine waits for `ask_again`.
        paused: bool,
    },
    Holding {
        /// Remaining validity of the hold.
        left: Duration,
        extension: Option<Box<Extension>>,
        /// The number of extensions begun, and whether one of them counted.
        extensions: u8,
        extended: bool,
        /// The number of extensions begun before an operator broke the hold.
        broken_at: Option<u8>,
    },
    Done,
}

impl Client {
    pub fn new() -> Self {
        Self { round: 0, greatest_before: 0, ahead: SmallVec::new(), phase: Phase::Idle }
    }

    /// Whether the message still matters to the client: a request, or an answer that it waits for.
    pub fn reads(&self, message: &Message) -> bool {
        let is_read = match self.phase {
            Phase::Idle | Phase::Done => false,
            Phase::Holding { .. } => matches!(message.what, Ask::Extend(_) | Ask::Restore),
            Phase::Queueing | Phase::Acquiring { .. } => true,
        };
        message.round == self.round && (is_read || (message.answer.is_none() && self.is_busy()))
    }

    fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Done)
    }

    pub fn holds(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. })
    }

    /// Advances time by `by`. A hold is dropped at the end of its validity, and nothing is sent.
    pub fn age(&mut self, script: Script, by: Duration) {
        match &mut self.phase {
            Phase::Acquiring { machine, .. } => machine.age(by),
            Phase::Holding { left, extension, .. } => {
                *left = left.saturating_sub(by);
                extension.iter_mut().for_each(|extension| extension.age(by));
                if left.is_zero() {
                    self.next_round(script);
                }
            }
            Phase::Idle | Phase::Queueing | Phase::Done => {}
        }
    }

    pub fn has_vote(&self, vote: &Vote) -> bool {
        matches!(&self.phase, Phase::Acquiring { machine, .. } if machine.votes().flatten().any(|v| v == vote))
    }

    /// Whether the client keeps its grants until it asks again, although another client has a grant too.
    pub fn keeps_partial_hold(&self) -> bool {
        let Phase::Acquiring { machine, paused: true, .. } = &self.phase else { return false };
        machine.votes().any(|vote| fence_of(vote).is_some()) && self.has_vote(&Vote::Refused(Refusal::Taken))
    }

    pub fn dropped_a_member_ahead(&self) -> bool {
        matches!(&self.phase, Phase::Acquiring { machine, .. } if machine.ahead().next().is_some())
    }

    pub fn next_round(&mut self, script: Script) {
        self.round += 1;
        self.greatest_before = 0;
        self.ahead.clear();
        self.phase = if self.round < script.acquisitions { Phase::Idle } else { Phase::Done };
    }
}

impl State {
    pub fn token(&self, world: &World, client: usize) -> Token {
        let round = if world.is(Broken::TokenUsedAgain) { 0 } else { self.clients[client].round };
        Token { client: client as u8, round }
    }

    pub fn begin(&mut self, world: &World, client: usize) {
        self.clients[client].greatest_before = self.history.greatest();
        let all = || world.quorum().members().collect();
        let (start, order): (Start, Vec<Member>) = match world.clients[client].waits {
            false if world.clients[client].looks => {
                self.clients[client].ahead = self.masters[0].queue.clone();
                (Start::AtOnce, vec![Member(0)])
            }
            false if world.clients[client].in_order || world.is(Broken::KeepsPartialHold) => {
                (Start::InOrder, all())
            }
            false => (Start::AtOnce, Vec::new()),
            true if world.is(Broken::ValidFromReceipt) => {
                self.clients[client].phase = Phase::Queueing;
                return self.post(world, client, 0, [Outgoing { to: Member(0), what: Request::Wait }]);
            }
            true => (Start::Queued, all()),
        };
        let (machine, sends) = Round::begin(world.plan(client), start, &order, world.now());
        self.clients[client].phase =
            Phase::Acquiring { machine: Box::new(machine), asked: [None; MASTERS], paused: false };
        self.send(world, client, sends);
    }

    /// Sends requests, and records the requests that may time out.
    fn send(&mut self, world: &World, client: usize, sends: impl IntoIterator<Item = Outgoing> + Clone) {
        if let Phase::Acquiring { asked, .. } = &mut self.clients[client].phase
            && world.clients[client].timeouts
        {
            for Outgoing { to, what } in sends.clone() {
                let is_answered = !matches!(what, Request::Leave | Request::Release);
                asked[usize::from(to.0)] = is_answered.then_some(Ask::new(what, 0));
            }
        }
        self.post(world, client, 0, sends);
    }

    pub fn post(
        &mut self,
        world: &World,
        client: usize,
        extension: u8,
        sends: impl IntoIterator<Item = Outgoing>,
    ) {
        let (token, round) = (self.token(world, client), self.clients[client].round);
        let mut sends: Vec<Outgoing> = sends.into_iter().collect();
        if let Some(&Outgoing { what: confirm @ Request::Confirm { .. }, .. }) = sends.first()
            && world.is(Broken::UncountedAnswers)
        {
            sends = world.quorum().members().map(|to| Outgoing { to, what: confirm }).collect();
        }
        for Outgoing { to, what } in sends {
            if what != Request::Release || world.clients[client].releases {
                let message = Message { token, round, what: Ask::new(what, extension), answer: None };
                self.masters[usize::from(to.0)].post(message);
            }
        }
    }

    /// Passes an answer to the client. `Vote::Unknown` means that the client stops waiting for it.
    pub fn receive(&mut self, world: &World, master: usize, message: Message, mut vote: Vote) {
        if message.what == Ask::Look && world.is(Broken::NoLook) {
            vote = Vote::Refused(Refusal::NotHeld);
        }
        let client = usize::from(message.token.client);
        let member = Member(master as u8);
        match &mut self.clients[client].phase {
            Phase::Queueing => self.stop_queueing(world, client, vote),
            Phase::Acquiring { machine, asked, .. } => {
                if asked[master] == Some(message.what) {
                    asked[master] = None;
                }
                let confirmed = matches!((message.what, &vote), (Ask::Confirm { .. }, Vote::Granted(_)));
                if confirmed && world.is(Broken::UncountedAnswers) {
                    machine.answered(member, Request::Acquire, Vote::Granted(as_fence(1)), world.now());
                }
                let progress = match message.what {
                    Ask::Wait => machine.waited(member, vote.map(|_| ()), world.now()),
                    what => machine.answered(member, what.into(), vote, world.now()),
                };
                self.carry_out(world, client, progress);
            }
            Phase::Holding { .. } => self.extension_answered(world, member, message, vote),
            Phase::Idle | Phase::Done => {}
        }
    }

    fn carry_out(&mut self, world: &World, client: usize, progress: Progress) {
        let Phase::Acquiring { machine, paused, .. } = &mut self.clients[client].phase else { return };
        *paused = progress.verdict == Verdict::TryAgain;
        let greatest = machine.votes().filter_map(fence_of).max();
        self.send(world, client, progress.sends);
        match progress.verdict {
            Verdict::Open | Verdict::TryAgain => {}
            Verdict::Failed(_) => self.clients[client].next_round(world.clients[client]),
            Verdict::Acquired(acquired) => {
                let waits = |token: &Token| self.masters[0].queue.contains(token);
                self.history.overtaken |= self.clients[client].ahead.iter().any(waits);
                self.clients[client].ahead.clear();
                let fence = if world.is(Broken::NoConfirmPhase) { greatest } else { acquired.fence };
                if let Some(fence) = fence {
                    let before = self.clients[client].greatest_before;
                    self.history.completed(fence.get() as u8, before);
                }
                self.hold(world, client, acquired.valid_until);
            }
        }
    }

    pub fn ask_again(&mut self, world: &World, client: usize) {
        let Phase::Acquiring { machine, paused, .. } = &mut self.clients[client].phase else { return };
        *paused = false;
        let sends = machine.ask_again();
        if world.is(Broken::ValidFromRetry) {
            **machine = Round::begin(world.plan(client), Start::AtOnce, &[], world.now()).0;
        }
        self.send(world, client, sends);
    }

    /// Gives up the acquisition, or releases the hold. The masters get the same requests in both cases.
    pub fn release(&mut self, world: &World, client: usize) {
        let sends = match &mut self.clients[client].phase {
            Phase::Acquiring { machine, .. } => machine.give_up(),
            _ => world.quorum().members().map(|to| Outgoing { to, what: Request::Release }).collect(),
        };
        self.post(world, client, 0, sends);
        self.clients[client].next_round(world.clients[client]);
    }

    /// Only under [`Broken::ValidFromReceipt`]: counts the grant of a waiter as a vote.
    fn stop_queueing(&mut self, world: &World, client: usize, vote: Vote) {
        let (mut machine, sends) = Round::begin(world.plan(client), Start::AtOnce, &[], world.now());
        let progress = machine.answered(Member(0), Request::Acquire, vote, world.now());
        self.clients[client].phase =
            Phase::Acquiring { machine: Box::new(machine), asked: [None; MASTERS], paused: false };
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
            Answer::Done => Vote::Granted(as_fence(1)),
            Answer::Taken => Vote::Refused(Refusal::Taken),
            Answer::Grace => Vote::Refused(Refusal::Grace(Duration::ZERO)),
            Answer::NotHeld => Vote::Refused(Refusal::NotHeld),
            Answer::FenceAhead => Vote::Refused(Refusal::FenceAhead),
        }
    }
}
