//! The operations on one lock and its queue. Each returns its effects as a [`Step`].
//!
//! Every operation first advances the lock to now: expired holds end, and the queue is served. (Only waits
//! that the operation itself ends leave the queue before that.) The operation then does its own work, and
//! serves the queue again if that may let a waiter in. So no reply depends on whether the background job has
//! run.
//!
//! `serving` grants locks to waiters; `holds` begins, changes and ends holds.

use std::num::NonZeroU32;

use dlock_protocol::command::CancelTarget;
use dlock_protocol::error::Refusal;
use dlock_protocol::{
    ClientId, Delay, Fence, Instant, LockRequestRef, Mode, Reentry, ReleaseCount, Token, TokenRef, Ttl,
};
use smallvec::{SmallVec, smallvec};

use crate::admission::Skew;
use crate::fences::Fences;
use crate::lock::{Ephemeral, Fit, Hold, Holding, Lock};
use crate::queue::{Kept, Name, NewPosition, Outcome, Party, Rank, WaitKind, Waiter, WaiterId, Waiting};
use crate::step::{Change, End, Event, Step};

mod holds;
mod serving;

/// Outcome of ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The lock was granted to the token now, or the token held it already.
    Held(Fence),
    /// Not granted. A request with BLOCK or QUEUE joins the queue at this rank.
    NotNow(Rank),
    /// Not granted. The token had a queue position already, and keeps it.
    Kept(Kept),
    /// Not granted. Another sharer waits for an upgrade already, so both would wait for ever. Contains the
    /// cycle, as [`CannotJoin::Deadlock`](crate::joining::CannotJoin) does.
    Deadlock(Vec<Token>),
    /// Not granted, because the grace period has not ended.
    Grace,
    Refused(Refusal),
}

/// Outcome of CONFIRM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The fence of the hold afterwards. If it is greater than the requested one, nothing was changed.
    Fence(Fence),
    NotHeld,
    /// The fence is too far ahead of the clock: it exceeds the greatest acceptable fence by this many ms.
    Ahead(u64),
}

/// When new holds may begin. Existing holds can be renewed at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grants {
    /// From this time on. Before, the grace period runs.
    From(Instant),
    /// Not now, as the key holds a string: the lock of a client that uses `SET key token NX PX`. Requests can
    /// wait.
    HeldByString,
}

/// Limits that apply to new grants.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub grants: Grants,
    /// Maximum of a lease and of a lock-delay (option DELAY of ACQUIRE). New requests are checked before they
    /// reach a [`Turn`]. A waiter is checked again before its grant, as the maximum may have been lowered.
    pub longest_lease: Ttl,
    /// Maximum number of sharers or permit holders. Beyond it, new requests are refused; existing waiters
    /// keep waiting.
    pub max_holders: u32,
    /// Maximum number of waiters that one operation answers while the lock is held. If more could be
    /// answered, they keep their positions, and [`RareEffects::unserved`] asks for another turn. Waiters that
    /// have timed out do not count.
    ///
    /// [`RareEffects::unserved`]: crate::step::RareEffects::unserved
    pub max_grants_per_turn: usize,
}

/// One operation on one lock at one moment.
pub struct Turn<'a> {
    pub now: Instant,
    terms: Terms,
    pub name: &'a Name<'a>,
    pub fences: &'a mut Fences,
    pub waiting: &'a mut Waiting,
    pub lock: &'a mut Lock,
    /// The effects. Borrowed from the caller, because a `Step` is too large to move.
    step: &'a mut Step,
    /// Whether the lock was gone before the operation.
    was_gone: bool,
    /// Number of waiters that this operation has answered.
    answers: usize,
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
        Turn { now, terms, name, fences, waiting, lock, step, was_gone, answers: 0 }
    }

    /// Ends the operation, and completes its step.
    #[inline]
    pub fn finish(self) {
        if !self.was_gone && self.lock.is_gone() {
            self.step.events.push(Event::Freed);
        }
    }

    /// Advances the lock to now: expired holds end, and the queue is served. If many holds have expired, the
    /// background job ends some of them later. No read shows an expired hold that has not ended yet.
    pub fn advance(&mut self) {
        match self.lock.holding() {
            Holding::Free { delay_until: None, .. } => {}
            Holding::Exclusive(hold) if !hold.deadline().passed(self.now) => {}
            _ => self.expire(),
        }
        self.serve();
    }

    #[inline]
    fn may_grant(&self) -> bool {
        matches!(self.terms.grants, Grants::From(at) if at <= self.now)
    }

    /// `client` is the connection that sent the command.
    pub fn acquire(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Acquired {
        self.advance();
        if !self.lock.is_free()
            && let Some(acquired) = self.acquire_again(request, client)
        {
            return acquired;
        }
        if !self.may_grant() {
            return match self.terms.grants {
                Grants::From(_) => Acquired::Grace,
                Grants::HeldByString => Acquired::NotNow(Rank::Newcomer),
            };
        }
        match self.fit(request.mode) {
            Fit::Fits if self.waiting.len_of(self.name) == 0 => {
                self.grant(request, client).map_or_else(Acquired::Refused, Acquired::Held)
            }
            Fit::Full if self.waiting.len_of(self.name) == 0 => {
                Acquired::Refused(Refusal::TooManyHolders(self.terms.max_holders))
            }
            _ => Acquired::NotNow(Rank::Newcomer),
        }
    }

    /// ACQUIRE by a token that may hold the lock. `None` if it does not.
    #[inline(never)]
    fn acquire_again(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Option<Acquired> {
        let held_as = self.lock.mode()?;
        let count = self.lock.at(self.now).hold_of(request.token.as_bytes())?.count();
        Some(self.acquire_held(held_as, count, request, client))
    }

    fn acquire_held(
        &mut self,
        held_as: Mode,
        count: u32,
        request: &LockRequestRef<'_>,
        client: ClientId,
    ) -> Acquired {
        let token = request.token.as_bytes();
        // A SHARED request with REENTRANT or DEPTH does not downgrade an exclusive hold.
        let stays_exclusive = held_as == Mode::Exclusive && request.reentry != Reentry::Keep;
        match (held_as, request.mode) {
            (Mode::Permits(_), Mode::Exclusive | Mode::Shared)
            | (Mode::Exclusive | Mode::Shared, Mode::Permits(_)) => {
                return Acquired::Refused(Refusal::OtherMode);
            }
            // No upgrade is granted in the grace period: the server may have lost the hold of another sharer.
            (Mode::Shared, Mode::Exclusive) if !self.may_grant() => return Acquired::Grace,
            (Mode::Exclusive, Mode::Shared) if !stays_exclusive && count > 1 => {
                return Acquired::Refused(Refusal::CountAboveOne(count));
            }
            (Mode::Shared, Mode::Exclusive) if !self.lock.can_upgrade(self.now) => {
                let other = self.waiting.upgrader(self.name).filter(|w| w.request.token != *token);
                return match other {
                    Some(waiter) => {
                        let asked = request.to_owned();
                        let own = Party::new(&asked.token, asked.owner.as_ref());
                        let [own, other] = [own, waiter.party()].map(|party| party.shown().clone());
                        Acquired::Deadlock(vec![own.clone(), other, own])
                    }
                    None => Acquired::NotNow(Rank::Upgrade),
                };
            }
            _ => {}
        }
        // This request shows that the client knows of the grant to its token, so the grant counts as
        // confirmed. A queued waiter claims its grant by repeating its request, so a request that claims a
        // grant does not raise the hold count.
        let mut request = *request;
        if self.claim_grant(request.token) && request.reentry == Reentry::OneMore {
            request.reentry = Reentry::Keep;
        }
        let renewed = self.renew(&request, client);
        if renewed.is_ok() && !held_as.is_like(request.mode) && !stays_exclusive {
            self.change_mode(token, request.mode);
            // The token may also have waiters, whose requests the new mode may satisfy.
            self.answer_others(token);
            self.serve();
        }
        renewed.map_or_else(Acquired::Refused, Acquired::Held)
    }

    /// Like [`Turn::acquire`], for a request with QUEUE: its token waits at a queue position. A position that
    /// the token has already is kept, unless the request has another mode.
    pub fn queue(&mut self, request: &LockRequestRef<'_>, new: &NewPosition) -> Acquired {
        let NewPosition { queued, ms } = new;
        let mut kept = None;
        if let Some(position) = self.waiting.queued_waiter_of(request.token.as_bytes(), self.name) {
            let id = position.id;
            let changes_mode = !position.request.mode.is_like(request.mode);
            let over = self.waiting.outcome_if_over(position, self.now);
            match over.or(changes_mode.then_some(Outcome::Left)) {
                Some(outcome) => self.take_out(&[id], outcome),
                // Before the queue is served, as another number of permits may let the position in.
                None => {
                    let until = Some(self.now + *ms);
                    kept = self.waiting.renew_position(id, request, queued.clone(), until);
                }
            }
        }
        let acquired = self.acquire(request, queued.client);
        match kept.filter(|kept| self.waiting.get(kept.position()).is_some()) {
            Some(kept) if matches!(acquired, Acquired::NotNow(_) | Acquired::Grace) => Acquired::Kept(kept),
            _ => acquired,
        }
    }

    /// Lowers the hold count of a token, or ends its hold. If the hold ends, the lock is not granted for
    /// `delay`. Returns by how much the count fell.
    pub fn release(&mut self, token: TokenRef<'_>, count: ReleaseCount, delay: Delay) -> u32 {
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
            None => {
                self.end_one(token.as_bytes(), End::Released);
                if !delay.is_none() {
                    self.begin_delay(self.now.after_millis(delay.millis()));
                    self.step.changed(self.lock);
                }
            }
            Some(left) => self.lower_count(token, had, left),
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
    fn lower_count(&mut self, token: TokenRef<'_>, had: u32, left: NonZeroU32) {
        if left.get() < had {
            self.claim_grant(token);
            self.change(token.as_bytes(), |hold| hold.set_count(left));
            self.step.put(self.lock, token);
        }
    }

    /// Sets the lease to `ttl` from now, longer or shorter. Returns false if the token has no hold.
    pub fn extend(&mut self, token: TokenRef<'_>, ttl: Ttl) -> bool {
        self.advance();
        let deadline = self.now + ttl;
        let extended = self.change(token.as_bytes(), |hold| hold.set_lease(deadline, ttl));
        if extended.is_none() {
            return false;
        }
        self.claim_grant(token);
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        self.step.renewed = true;
        true
    }

    /// CONFIRM, the second phase of a fenced quorum.
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
        self.claim_grant(token);
        self.fences.raise(fence.get());
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        self.step.renewed = true;
        Confirmed::Fence(fence)
    }

    /// Ends all holds and the lock-delay. Returns the number of holds.
    pub fn break_all(&mut self) -> usize {
        self.advance();
        let holds = self.lock.at(self.now).holders();
        // Shared holds or permits end here, an exclusive hold below.
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

    /// Ends those holds of these tokens that are bound to a closed connection. The caller passes at most
    /// [`EndedHolds::SLICE`](crate::EndedHolds::SLICE) tokens.
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

    /// Serves the queue after the key of a held lock was deleted. Reports the lock as freed, unless a waiter
    /// is granted it.
    pub fn vanished(&mut self) {
        self.was_gone = false;
        self.advance();
    }

    /// Rewrites a lock that RESTORE has created. The append only file contains the RESTORE, with times of
    /// another server's clock. A restart could convert these times only by the wall clock. So the whole lock
    /// is logged again, with times of this server's clock.
    pub fn restored(&mut self) {
        self.advance();
        if !self.lock.is_gone() {
            self.step.change = Change::Whole;
        }
    }

    /// Removes waiters from this queue, with this outcome.
    pub fn dismiss(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        self.take_out(waiters, outcome);
        self.advance();
    }

    /// Removes the waiters of a token or of a connection from this queue. Returns their number.
    pub fn cancel(&mut self, target: CancelTarget<'_>) -> usize {
        let waiters: SmallVec<[WaiterId; 2]> = match target {
            CancelTarget::Token(token) => self.waiting.of_token_on(token.as_bytes(), self.name),
            CancelTarget::Client(id) => match self.waiting.of_client(ClientId(id)) {
                // The connection waits with BLOCK and QUEUE. `position` is the queued wait of its token.
                // Removing the queued wait also ends the wait of the connection.
                Some(Waiter { name, kind: WaitKind::Beside(_, position), .. }) if *name == *self.name => {
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
