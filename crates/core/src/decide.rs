//! The operations: what each does to one lock and its queue, and what it asks of the world ([`Step`]).
//!
//! Every one first advances the lock to now (expired holds end, the queue is served), then does its own work,
//! then serves the queue again. So no answer depends on whether the background has looked at the lock yet.
//!
//! Here are the operations; of these ACQUIRE is in `acquiring`, positions that belong to tokens, and grants
//! that reach nobody, are in `queueing`, whom CANCEL dismisses is in `cancel`. How a queue is served is in
//! `serving`, how holds begin, change and end in `holds`.

use std::num::NonZeroU32;

use dlock_protocol::command::CancelTarget;
use dlock_protocol::{ClientId, Fence, Instant, ReleaseCount, Token, TokenRef, Ttl};
use smallvec::{SmallVec, smallvec};

use crate::bounds::Skew;
use crate::fences::Fences;
use crate::lock::{Ephemeral, Hold, Holding, Lock};
use crate::outcome::{Outcome, Refusal};
use crate::queue::{Name, Owner, Rank, Waiter, WaiterId, Waiting};
use crate::step::{End, Event, Step};

mod acquiring;
mod holds;
mod serving;

/// What one try to take the lock came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The token holds it: since now, or since before.
    Held(Fence),
    /// Not now. With BLOCK or QUEUE it waits in the queue, at this rank.
    NotNow(Rank),
    /// Not now. Its token has a position in the queue, which it keeps.
    Queued(WaiterId),
    /// Another sharer, this party, waits to be the exclusive holder already: both would wait for ever.
    Upgrading(Token),
    /// The server may have forgotten holds and grants nothing new yet.
    Grace,
    Refused(Refusal),
}

/// What CONFIRM came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The hold's fence afterwards: the one asked for, or a greater one, and then nothing was changed.
    Fence(Fence),
    NotHeld,
    /// The fence lies this many ms further ahead of the clock than the skew bound allows.
    Ahead(u64),
}

/// On which terms a server grants.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Nothing new is granted before this moment. What a token holds already it goes on holding.
    pub grants_from: Instant,
    /// No lease and no lock-delay is longer. What is asked for has been looked at; who has waited since asked
    /// when it may have been another, and is refused.
    pub longest_lease: Ttl,
    /// So many may share it, or hold permits. Who comes when it is full is refused; who waits already waits
    /// on.
    pub most_holders: u32,
    /// So many from the head of the queue are granted the lock in a turn, besides the first one. Where more
    /// could be, [`Rest::unserved`] asks for another one; meanwhile they stand where they stood, and nobody
    /// overtakes them. Those whose time is over do not count.
    ///
    /// [`Rest::unserved`]: crate::step::Rest::unserved
    pub most_served: usize,
}

impl Terms {
    /// While somebody else has what is asked for.
    pub fn with_no_grants(self) -> Terms {
        Terms { grants_from: Instant::from_micros(u64::MAX), ..self }
    }
}

/// One operation at one moment on one resource.
pub struct Turn<'a> {
    pub now: Instant,
    terms: Terms,
    pub name: &'a Name<'a>,
    pub fences: &'a mut Fences,
    pub waiting: &'a mut Waiting,
    pub lock: &'a mut Lock,
    /// What the world has to do, written down in the caller's place: it is too large to be moved about.
    step: &'a mut Step,
    was_gone: bool,
    served: usize,
}

impl<'a> Turn<'a> {
    #[inline]
    pub fn new(
        now: Instant,
        terms: Terms,
        name: &'a Name<'a>,
        fences: &'a mut Fences,
        waiting: &'a mut Waiting,
        lock: &'a mut Lock,
        step: &'a mut Step,
    ) -> Self {
        let was_gone = lock.is_gone();
        Turn { now, terms, name, fences, waiting, lock, step, was_gone, served: 0 }
    }

    /// Ends the turn; its step can be carried out.
    #[inline]
    pub fn finish(self) {
        if !self.was_gone && self.lock.is_gone() {
            self.step.events.push(Event::Freed);
        }
    }

    /// Advances the lock to now: expired holds end, the head of the queue is granted. Of many expired holds
    /// not all end in this turn; none of them is seen any more, and the lock is due again at once.
    pub fn advance(&mut self) {
        match self.lock.holding() {
            Holding::Free { delay_until: None, .. } => {}
            Holding::Exclusive(hold) if !hold.deadline().passed(self.now) => {}
            _ => self.expire(),
        }
        self.serve();
    }

    #[inline]
    fn in_grace(&self) -> bool {
        self.now < self.terms.grants_from
    }

    /// Answers the number of counts ended.
    pub fn release(&mut self, token: TokenRef<'_>, count: ReleaseCount) -> u32 {
        if !self.waiting.is_empty() {
            self.leave_queue(token);
        }
        self.advance();
        let Some(had) = self.lock.at(self.now).hold_of(token.as_bytes()).map(Hold::count) else { return 0 };
        let left = match count {
            ReleaseCount::One => had - 1,
            ReleaseCount::All => 0,
            ReleaseCount::Above(n) => n.min(had),
        };
        match NonZeroU32::new(left) {
            None => self.end_one(token.as_bytes(), End::Released),
            Some(left) => self.leave_counts(token, had, left),
        }
        self.serve();
        had - left
    }

    #[inline(never)]
    fn leave_queue(&mut self, token: TokenRef<'_>) {
        let waits = self.waiting.of_token_on(token.as_bytes(), self.name);
        self.take_out(&waits, Outcome::Left);
    }

    #[inline(never)]
    fn leave_counts(&mut self, token: TokenRef<'_>, had: u32, left: NonZeroU32) {
        if left.get() < had {
            self.heard_of(token);
            self.change(token.as_bytes(), |hold| hold.set_count(left));
            self.step.put(self.lock, token);
        }
    }

    /// The lease becomes `ttl` from now, longer or shorter. False where the token holds nothing.
    pub fn extend(&mut self, token: TokenRef<'_>, ttl: Ttl) -> bool {
        self.advance();
        let deadline = self.now + ttl;
        let extended = self.change(token.as_bytes(), |hold| hold.set_lease(deadline, ttl));
        if extended.is_none() {
            return false;
        }
        self.heard_of(token);
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        self.step.renewed = true;
        true
    }

    /// The second phase of a fenced quorum.
    pub fn confirm(&mut self, token: TokenRef<'_>, fence: Fence, ttl: Ttl, skew: Skew) -> Confirmed {
        self.advance();
        let Some(has) = self.lock.at(self.now).hold_of(token.as_bytes()).map(Hold::fence) else {
            return Confirmed::NotHeld;
        };
        if has > fence {
            return Confirmed::Fence(has);
        }
        let bound = skew.greatest_fence(self.now);
        if fence > has && fence.get() > bound {
            return Confirmed::Ahead((fence.get() - bound).div_ceil(1000));
        }
        let deadline = self.now + ttl;
        self.change(token.as_bytes(), |hold| {
            hold.set_fence(fence);
            hold.set_lease(deadline, ttl);
        });
        self.heard_of(token);
        self.fences.raise(fence.get());
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        self.step.renewed = true;
        Confirmed::Fence(fence)
    }

    /// Ends every hold, and a lock-delay too. Answers how many holds.
    pub fn break_all(&mut self) -> usize {
        self.advance();
        let holds = self.lock.at(self.now).holders();
        self.end_crowd(End::Broken);
        if let Holding::Exclusive(hold) = self.lock.holding() {
            let token = hold.token().clone();
            self.end_one(token.as_bytes(), End::Broken);
        }
        if self.lock.delay_until().is_some() {
            self.lock.set_delay_until(None);
            self.step.changed(self.lock);
        }
        self.serve();
        holds
    }

    /// A connection has closed: of the holds of these tokens those end that are bound to it. The caller names
    /// no more of them than one turn may end.
    pub fn disconnect<'t>(&mut self, tokens: impl IntoIterator<Item = &'t [u8]>, client: ClientId) {
        self.advance();
        let bound = Ephemeral::Bound(client);
        for token in tokens {
            if self.lock.at(self.now).hold_of(token).is_some_and(|hold| hold.ephemeral() == bound) {
                self.end_one(token, End::Disconnected);
            }
        }
        self.serve();
    }

    /// The key of the lock was taken away while it was held: the queue is served, or nobody holds it any
    /// more.
    pub fn vanished(&mut self) {
        self.was_gone = false;
        self.advance();
    }

    /// The lock came by RESTORE, which is what the append only file has of it: a start would read the times
    /// of another clock there, by the wall clock. So they are told once more, by this server's.
    pub fn restored(&mut self) {
        self.advance();
        if !self.lock.is_gone() {
            self.step.whole();
        }
    }

    /// Takes waiters out of this queue, with the answer they get.
    pub fn dismiss(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        self.take_out(waiters, outcome);
        self.advance();
    }

    /// Takes those out of this queue who wait with this token, or on this connection. Answers how many.
    pub fn cancel(&mut self, whom: CancelTarget<'_>) -> usize {
        let waiters: SmallVec<[WaiterId; 2]> = match whom {
            CancelTarget::Token(token) => self.waiting.of_token_on(token.as_bytes(), self.name),
            CancelTarget::Client(id) => match self.waiting.of_client(ClientId(id)) {
                // Who waits beside a position is out of the queue with it.
                Some(Waiter { name, owner: Owner::Beside(_, position), .. }) if *name == *self.name => {
                    smallvec![*position]
                }
                Some(waiter) if waiter.name == *self.name => smallvec![waiter.id],
                _ => SmallVec::new(),
            },
        };
        self.dismiss(&waiters, Outcome::Cancelled);
        waiters.len()
    }
}

#[cfg(test)]
mod tests;
