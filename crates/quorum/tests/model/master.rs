//! A master with one lock: its hold, its wait queue, its greatest fence, and the messages to and from it. It
//! carries out the commands as `docs/commands.md` specifies them, in as little code as possible.

use super::world::{Mutation, Time, World};
use dlock_quorum::{Fence, Request};
use smallvec::SmallVec;

/// A token. Real tokens are 20 random bytes. Here, the client and the number of its acquisition make a token
/// unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub client: u8,
    pub acquisition: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Master {
    pub hold: Option<Hold>,
    /// The greatest fence that the master has issued.
    pub greatest_fence: u8,
    /// The rest of the grace period, in ticks. The master grants no new holds meanwhile.
    pub grace_left: u8,
    /// The rest of the delay after a RELEASE. The master grants no new holds meanwhile.
    pub delay_left: u8,
    /// Whether the master has crashed. Recorded only in a world with `first_client_holds`: the properties
    /// about restored holds read it, and elsewhere it would add states.
    pub crashed: bool,
    pub queue: SmallVec<[Token; 2]>,
    /// The messages to and from the master, sorted and without duplicates. They arrive in any order. A
    /// message that never arrives stays here.
    pub wire: SmallVec<[Message; 8]>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub token: Token,
    pub fence: u8,
    /// The remaining ticks of the lease.
    pub ticks_left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub token: Token,
    /// The number of the client's acquisition. Equal to that in `token`, except under
    /// [`Mutation::TokenUsedAgain`].
    pub acquisition: u8,
    pub kind: Kind,
    /// The answer, on its way to the client. `None` means a request, on its way to the master.
    pub answer: Option<Answer>,
}

/// The kind of a message: a [`Request`] in fewer bytes. EXTEND also has the number of the extension, because
/// the answers to two extensions must not be confused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Acquire,
    Wait,
    HasWaiters,
    Leave,
    Confirm {
        fence: u8,
        phase: u8,
    },
    Extend(u8),
    Restore,
    /// RELEASE with its DELAY.
    Release(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The fence of the hold: the answer to ACQUIRE and CONFIRM.
    Fence(u8),
    /// Grants an EXTEND.
    Done,
    Taken,
    Grace,
    NotHeld,
    FenceAhead,
}

impl Master {
    pub fn new(greatest_fence: u8) -> Self {
        Self { greatest_fence, ..Self::default() }
    }

    pub fn post(&mut self, message: Message) {
        if let Err(index) = self.wire.binary_search(&message) {
            self.wire.insert(index, message);
        }
    }

    /// Carries out a request. Returns whether this ended the hold of its token.
    pub fn carry_out(&mut self, world: &World, message: Message) -> bool {
        let Message { token, kind, .. } = message;
        let held = self.is_held_by(token);
        let answer = match kind {
            Kind::Acquire | Kind::Wait => self.acquire(world, token, kind),
            Kind::Confirm { fence, .. } => Some(self.confirm(world, token, fence)),
            Kind::Extend(_) => Some(self.extend(world, token)),
            // Clients ignore the answer, so there is none, except under the mutations that count it.
            Kind::Restore => self.acquire(world, token, kind).filter(|_| world.counts_restored()),
            Kind::Release(delay) => self.release(world, token, delay),
            // See `Request::HasWaiters` for the two answers.
            Kind::HasWaiters => Some(if self.queue.is_empty() { Answer::NotHeld } else { Answer::Taken }),
            Kind::Leave => self.leave(token),
        };
        if answer.is_some() {
            self.post(Message { answer, ..message });
        }
        held && !self.is_held_by(token)
    }

    fn is_held_by(&self, token: Token) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.token == token)
    }

    fn acquire(&mut self, world: &World, token: Token, kind: Kind) -> Option<Answer> {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                hold.ticks_left = world.ttl();
                Some(Answer::Fence(hold.fence))
            }
            None if self.grace_left > 0 => Some(Answer::Grace),
            None if self.delay_left == 0 => Some(self.grant(world, token)),
            _ if kind == Kind::Acquire => Some(Answer::Taken),
            _ if self.queue.contains(&token) => None,
            _ => {
                self.queue.push(token);
                None
            }
        }
    }

    fn grant(&mut self, world: &World, token: Token) -> Answer {
        self.greatest_fence = if world.rising_fences { self.greatest_fence + 1 } else { 1 };
        self.hold = Some(Hold { token, fence: self.greatest_fence, ticks_left: world.ttl() });
        Answer::Fence(self.greatest_fence)
    }

    fn confirm(&mut self, world: &World, token: Token, fence: u8) -> Answer {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                // `UngrantedCounted` includes `FenceUnchecked`.
                let unchecked = world.has(Mutation::FenceUnchecked) || world.has(Mutation::UngrantedCounted);
                if hold.fence > fence && !unchecked {
                    return Answer::Fence(hold.fence);
                }
                self.greatest_fence = self.greatest_fence.max(fence);
                *hold = Hold { token, fence, ticks_left: world.ttl() };
                Answer::Fence(fence)
            }
            _ if world.has(Mutation::RaiseWithoutHold) => {
                self.greatest_fence = self.greatest_fence.max(fence);
                Answer::Fence(fence)
            }
            _ => Answer::NotHeld,
        }
    }

    fn extend(&mut self, world: &World, token: Token) -> Answer {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                hold.ticks_left = world.ttl();
                Answer::Done
            }
            _ => Answer::NotHeld,
        }
    }

    fn release(&mut self, world: &World, token: Token, delay: u8) -> Option<Answer> {
        if self.is_held_by(token) {
            self.delay_left = delay;
            self.end_hold(world);
        }
        self.leave(token)
    }

    fn leave(&mut self, token: Token) -> Option<Answer> {
        self.queue.retain(|waiter| *waiter != token);
        None
    }

    /// Ends the hold, and grants the lock to the head of the queue in the same step. Real leases after a
    /// handoff can be short. So the new lease ends with the next tick, unless an ACQUIRE renews it first.
    pub fn end_hold(&mut self, world: &World) {
        self.hold = None;
        self.serve(world);
    }

    fn serve(&mut self, world: &World) {
        if self.hold.is_none() && self.grace_left == 0 && self.delay_left == 0 && !self.queue.is_empty() {
            let token = self.queue.remove(0);
            let answer = Some(self.grant(world, token));
            self.hold.iter_mut().for_each(|hold| hold.ticks_left = 1);
            let (acquisition, kind) = (token.acquisition, Kind::Wait);
            self.post(Message { token, acquisition, kind, answer });
        }
    }

    pub fn tick(&mut self, world: &World) {
        self.grace_left = self.grace_left.saturating_sub(1);
        if self.delay_left > 0 {
            self.delay_left -= 1;
            self.serve(world);
        } else if let Some(hold) = &mut self.hold {
            hold.ticks_left -= 1;
            if hold.ticks_left == 0 {
                self.end_hold(world);
            }
        }
    }

    /// Kills the master and starts it again at once. It loses its hold and its queue, but not its greatest
    /// fence, which `dlock.fence-mark` keeps on disk.
    pub fn crash(&mut self, world: &World) {
        self.hold = None;
        self.queue.clear();
        self.grace_left = world.grace;
        self.delay_left = 0;
        self.crashed = world.first_client_holds;
        if world.has(Mutation::FenceForgotten) {
            self.greatest_fence = 0;
        }
    }

    /// Removes messages that can have no effect any more. A message stays if `may_be_read` returns true: the
    /// client may still read it, or the answer to it. A request also stays if its token has a hold or a
    /// position in the queue here, or may still get one.
    pub fn remove_messages_without_effect(&mut self, may_be_read: impl Fn(&Message) -> bool) {
        let mut active_tokens: SmallVec<[Token; 4]> =
            self.hold.iter().map(|hold| hold.token).chain(self.queue.iter().copied()).collect();
        let acquires = |message: &&Message| {
            message.answer.is_none() && matches!(message.kind, Kind::Acquire | Kind::Wait | Kind::Restore)
        };
        active_tokens.extend(self.wire.iter().filter(acquires).map(|message| message.token));
        self.wire.retain(|message| {
            may_be_read(message) || (message.answer.is_none() && active_tokens.contains(&message.token))
        });
    }
}

impl World {
    /// The length of a lease in ticks. Without a clock it is 1, which has no meaning: holds end at any
    /// moment.
    pub fn ttl(&self) -> u8 {
        match self.time {
            Time::Ticks { ttl } => ttl,
            Time::None { .. } => 1,
        }
    }
}

impl From<Kind> for Request {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Acquire => Request::Acquire,
            Kind::Wait => Request::Wait,
            Kind::HasWaiters => Request::HasWaiters,
            Kind::Leave => Request::Leave,
            Kind::Confirm { fence, phase } => Request::Confirm { fence: as_fence(fence), phase },
            Kind::Extend(_) => Request::Extend,
            Kind::Restore => Request::Restore,
            Kind::Release(_) => Request::Release,
        }
    }
}

impl Kind {
    /// `number` is that of the extension, for EXTEND, or the DELAY of RELEASE.
    pub fn new(request: Request, number: u8) -> Self {
        match request {
            Request::Acquire => Kind::Acquire,
            Request::Wait => Kind::Wait,
            Request::HasWaiters => Kind::HasWaiters,
            Request::Leave => Kind::Leave,
            Request::Confirm { fence, phase } => Kind::Confirm { fence: fence.get() as u8, phase },
            Request::Extend => Kind::Extend(number),
            Request::Restore => Kind::Restore,
            Request::Release => Kind::Release(number),
        }
    }
}

pub fn as_fence(fence: u8) -> Fence {
    Fence::from_outside(u64::from(fence)).unwrap()
}
