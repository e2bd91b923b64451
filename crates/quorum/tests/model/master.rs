//! A master as the protocol sees it: one resource, its hold, its wait queue, its fence, and the messages to
//! and from it. The contract of ACQUIRE, CONFIRM, EXTEND and RELEASE, in as little code as possible.

use super::world::{Broken, Time, World};
use dlock_quorum::{Fence, Request};
use smallvec::SmallVec;

/// Client and acquisition, standing for 20 random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub client: u8,
    pub round: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Master {
    pub hold: Option<Hold>,
    /// The greatest fence that the master has issued.
    pub last: u8,
    /// The remaining ticks without new grants.
    pub grace: u8,
    /// Whether the master has crashed, in a world where holds are restored.
    pub forgot: bool,
    pub queue: SmallVec<[Token; 2]>,
    /// Sorted and without duplicates. Messages are delivered in any order. A lost message is one that stays.
    pub wire: SmallVec<[Message; 8]>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub token: Token,
    pub fence: u8,
    /// The remaining ticks of the lease.
    pub left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub token: Token,
    /// The acquisition of the client. Tokens contain it too, except under [`Broken::TokenUsedAgain`].
    pub round: u8,
    pub what: Ask,
    /// `None` means a request, which is on the way to the master.
    pub answer: Option<Answer>,
}

/// A [`Request`] in few bytes, with the number of the extension: the answers of two extensions must not be
/// confused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    Acquire,
    Wait,
    Look,
    Leave,
    Confirm { fence: u8, phase: u8 },
    Extend(u8),
    Restore,
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Fence(u8),
    Done,
    Taken,
    Grace,
    NotHeld,
    FenceAhead,
}

impl Master {
    pub fn new(last: u8) -> Self {
        Self { hold: None, last, grace: 0, forgot: false, queue: SmallVec::new(), wire: SmallVec::new() }
    }

    pub fn post(&mut self, message: Message) {
        if let Err(index) = self.wire.binary_search(&message) {
            self.wire.insert(index, message);
        }
    }

    pub fn carry_out(&mut self, world: &World, message: Message) {
        let Message { token, what, .. } = message;
        let answer = match what {
            Ask::Acquire | Ask::Wait => self.acquire(world, token, what),
            Ask::Confirm { fence, .. } => Some(self.confirm(world, token, fence)),
            Ask::Extend(_) => Some(self.extend(world, token)),
            Ask::Restore => self.acquire(world, token, what).filter(|_| world.counts_restored()),
            Ask::Release => self.release(world, token),
            Ask::Look => Some(if self.queue.is_empty() { Answer::NotHeld } else { Answer::Taken }),
            Ask::Leave => self.leave(token),
        };
        if answer.is_some() {
            self.post(Message { answer, ..message });
        }
    }

    fn acquire(&mut self, world: &World, token: Token, what: Ask) -> Option<Answer> {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                hold.left = world.ttl();
                Some(Answer::Fence(hold.fence))
            }
            Some(_) if what == Ask::Acquire => Some(Answer::Taken),
            Some(_) if self.queue.contains(&token) => None,
            Some(_) => {
                self.queue.push(token);
                None
            }
            None if self.grace > 0 => Some(Answer::Grace),
            None => Some(self.grant(world, token)),
        }
    }

    fn grant(&mut self, world: &World, token: Token) -> Answer {
        self.last = if world.rising_fences { self.last + 1 } else { 1 };
        self.hold = Some(Hold { token, fence: self.last, left: world.ttl() });
        Answer::Fence(self.last)
    }

    fn confirm(&mut self, world: &World, token: Token, fence: u8) -> Answer {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                let unchecked = world.is(Broken::FenceUnchecked) || world.is(Broken::UncountedAnswers);
                if hold.fence > fence && !unchecked {
                    return Answer::Fence(hold.fence);
                }
                self.last = self.last.max(fence);
                *hold = Hold { token, fence, left: world.ttl() };
                Answer::Fence(fence)
            }
            _ if world.is(Broken::RaiseWithoutHold) => {
                self.last = self.last.max(fence);
                Answer::Fence(fence)
            }
            _ => Answer::NotHeld,
        }
    }

    fn extend(&mut self, world: &World, token: Token) -> Answer {
        match &mut self.hold {
            Some(hold) if hold.token == token => {
                hold.left = world.ttl();
                Answer::Done
            }
            _ => Answer::NotHeld,
        }
    }

    fn release(&mut self, world: &World, token: Token) -> Option<Answer> {
        if self.hold.as_ref().is_some_and(|hold| hold.token == token) {
            self.end_hold(world);
        }
        self.leave(token)
    }

    fn leave(&mut self, token: Token) -> Option<Answer> {
        self.queue.retain(|waiter| *waiter != token);
        None
    }

    /// Ends the hold, and grants the lock to the head of the queue in the same step. Until the head claims
    /// it, the lease is as short as possible.
    pub fn end_hold(&mut self, world: &World) {
        self.hold = None;
        if self.grace == 0 && !self.queue.is_empty() {
            let token = self.queue.remove(0);
            let answer = Some(self.grant(world, token));
            self.hold.iter_mut().for_each(|hold| hold.left = 1);
            let (round, what) = (token.round, Ask::Wait);
            self.post(Message { token, round, what, answer });
        }
    }

    pub fn tick(&mut self, world: &World) {
        self.grace = self.grace.saturating_sub(1);
        if let Some(hold) = &mut self.hold {
            hold.left -= 1;
            if hold.left == 0 {
                self.end_hold(world);
            }
        }
    }

    /// The master is killed and started again at once. It forgets its hold, but not its fence, which has a
    /// mark on disk.
    pub fn crash(&mut self, world: &World) {
        self.hold = None;
        self.queue.clear();
        self.grace = world.grace;
        self.forgot = world.held;
        if world.is(Broken::FenceForgotten) {
            self.last = 0;
        }
    }

    /// Removes messages without effect: answers that no client reads, and requests for a token that neither
    /// holds nor waits here and never will again.
    pub fn sweep(&mut self, is_current: impl Fn(&Message) -> bool) {
        let mut active: SmallVec<[Token; 4]> =
            self.hold.iter().map(|hold| hold.token).chain(self.queue.iter().copied()).collect();
        let acquires = |message: &&Message| {
            message.answer.is_none() && matches!(message.what, Ask::Acquire | Ask::Wait | Ask::Restore)
        };
        active.extend(self.wire.iter().filter(acquires).map(|message| message.token));
        self.wire.retain(|message| {
            is_current(message) || (message.answer.is_none() && active.contains(&message.token))
        });
    }
}

impl World {
    /// The ticks of a lease. Without a clock, the number has no meaning: a hold may end at any time.
    pub fn ttl(&self) -> u8 {
        match self.time {
            Time::Ticks { ttl } => ttl,
            Time::None { .. } => 1,
        }
    }
}

impl From<Ask> for Request {
    fn from(ask: Ask) -> Self {
        match ask {
            Ask::Acquire => Request::Acquire,
            Ask::Wait => Request::Wait,
            Ask::Look => Request::Look,
            Ask::Leave => Request::Leave,
            Ask::Confirm { fence, phase } => Request::Confirm { fence: as_fence(fence), phase },
            Ask::Extend(_) => Request::Extend,
            Ask::Restore => Request::Restore,
            Ask::Release => Request::Release,
        }
    }
}

impl Ask {
    pub fn new(request: Request, extension: u8) -> Self {
        match request {
            Request::Acquire => Ask::Acquire,
            Request::Wait => Ask::Wait,
            Request::Look => Ask::Look,
            Request::Leave => Ask::Leave,
            Request::Confirm { fence, phase } => Ask::Confirm { fence: fence.get() as u8, phase },
            Request::Extend => Ask::Extend(extension),
            Request::Restore => Ask::Restore,
            Request::Release => Ask::Release,
        }
    }
}

pub fn as_fence(fence: u8) -> Fence {
    Fence::from_outside(u64::from(fence)).unwrap()
}
