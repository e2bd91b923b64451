//! The operations: what each does to one lock and its line, and what it asks of the world ([`Step`]).
//!
//! Every one first lets the present in (leases that are over end, the line is served), then does its own work, then
//! serves the line again. So no answer depends on whether the background has looked at the lock yet.

use std::collections::HashSet;
use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::lock::{
    Count, Doubt, Ephemeral, Extras, Fit, Hold, Holders, Holding, Lock, MAX_COUNT, Mode, Request,
};
use crate::queue::{Name, Rank, Waiter, WaiterId, Waiting};
use crate::step::{End, Event, Granted, Outcome, Refusal, Step};
use crate::units::{ClientId, Fence, Fences, Instant, Token, Ttl};

/// What one try to take the lock came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The token holds it: since now, or since before.
    Held(Fence),
    /// Not now. With BLOCK it waits in line, at this rank.
    NotNow(Rank),
    /// Another sharer, this one, waits to be the exclusive holder already: both would wait for ever.
    Upgrading(Token),
    Refused(Refusal),
}

/// How many counts RELEASE ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    One,
    All,
    /// DEPTH n: those above n.
    Above(u32),
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

/// Who holds a lock, while its line is served. Looking up each waiter among the holders is fine for the few that are
/// mostly served at once; ten thousand sharers that are let in together would take a second of it.
#[derive(Default)]
struct Crowd {
    joined: usize,
    tokens: HashSet<Token>,
}

impl Crowd {
    const MANY: usize = 32;

    fn holds(&self, lock: &mut Lock, token: &Token) -> bool {
        if self.joined < Self::MANY {
            lock.find(token.as_bytes()).is_some()
        } else {
            self.tokens.contains(token)
        }
    }

    fn joined(&mut self, lock: &Lock, token: Token) {
        self.joined += 1;
        if self.joined == Self::MANY {
            self.tokens.extend(lock.stored().iter().map(|hold| hold.token.clone()));
        } else if self.joined > Self::MANY {
            self.tokens.insert(token);
        }
    }
}

/// One operation at one moment on one resource.
pub struct Turn<'a> {
    pub now: Instant,
    pub name: &'a Name<'a>,
    pub fences: &'a mut Fences,
    pub waiting: &'a mut Waiting,
    pub lock: &'a mut Lock,
    /// What the world has to do, written down in the caller's place: it is too large to be moved about.
    step: &'a mut Step,
    was_gone: bool,
}

impl<'a> Turn<'a> {
    #[inline]
    pub fn new(
        now: Instant,
        name: &'a Name<'a>,
        fences: &'a mut Fences,
        waiting: &'a mut Waiting,
        lock: &'a mut Lock,
        step: &'a mut Step,
    ) -> Self {
        let was_gone = lock.is_gone();
        Turn { now, name, fences, waiting, lock, step, was_gone }
    }

    /// Ends the turn; its step can be carried out.
    #[inline]
    pub fn finish(self) {
        if !self.was_gone && self.lock.is_gone() {
            self.step.events.push(Event::Freed);
        }
    }

    /// Lets the present in: what is over ends, who is next is granted.
    pub fn settle(&mut self) {
        let now = self.now;
        self.end_all(End::Expired, |hold| hold.deadline.passed(now));
        if self.lock.delay_until.is_some_and(|until| until.passed(now)) {
            self.lock.delay_until = None;
            self.step.changed(self.lock);
        }
        self.serve();
    }

    pub fn acquire(&mut self, request: &Request<'_>) -> Acquired {
        self.settle();
        let held_as = self.lock.mode();
        if let (Some(mode), Some(_)) = (held_as, self.lock.find(request.token)) {
            return self.acquire_again(mode, request);
        }
        match self.lock.fit(request.mode) {
            Fit::OtherPermits(n) => Acquired::Refused(Refusal::OtherPermits(n.get())),
            Fit::Fits if self.waiting.len_of(self.name) == 0 => match self.grant(request) {
                Ok(fence) => Acquired::Held(fence),
                Err(refusal) => Acquired::Refused(refusal),
            },
            _ => Acquired::NotNow(Rank::Newcomer),
        }
    }

    /// The token holds it already.
    fn acquire_again(&mut self, held_as: Mode, request: &Request<'_>) -> Acquired {
        match (held_as, request.mode) {
            (Mode::Permits(n), Mode::Permits(asked)) if n != asked => {
                return Acquired::Refused(Refusal::OtherPermits(n.get()));
            }
            (Mode::Permits(_), Mode::Exclusive | Mode::Shared)
            | (Mode::Exclusive | Mode::Shared, Mode::Permits(_)) => {
                return Acquired::Refused(Refusal::OtherMode);
            }
            (Mode::Shared, Mode::Exclusive) if !self.lock.can_upgrade() => {
                let other = self.waiting.upgrader(self.name).filter(|w| w.token != *request.token);
                return match other {
                    Some(waiter) => Acquired::Upgrading(waiter.token.clone()),
                    None => Acquired::NotNow(Rank::Upgrade),
                };
            }
            _ => {}
        }
        if let Some(hold) = self.lock.find(request.token) {
            // The token is here, so whatever it holds it knows of.
            hold.set_in_doubt(None);
        }
        let renewed = self.renew(request);
        if renewed.is_ok() && held_as != request.mode {
            self.change_mode(request.mode);
            self.answer_others(request.token);
            self.serve();
        }
        match renewed {
            Ok(fence) => Acquired::Held(fence),
            Err(refusal) => Acquired::Refused(refusal),
        }
    }

    /// Answers the number of counts ended.
    pub fn release(&mut self, token: &[u8], counts: Counts) -> u32 {
        let waits = self.waiting.of_token_on(token, self.name);
        self.take_out(&waits, Outcome::Cancelled);
        self.settle();
        let Some(hold) = self.lock.find(token) else { return 0 };
        let had = hold.count.get();
        let left = match counts {
            Counts::One => had - 1,
            Counts::All => 0,
            Counts::Above(n) => n.min(had),
        };
        match NonZeroU32::new(left) {
            None => self.end_all(End::Released, |hold| hold.token == *token),
            Some(left) if left.get() < had => {
                hold.count = left;
                hold.set_in_doubt(None);
                self.step.put(self.lock, token);
            }
            Some(_) => {}
        }
        self.serve();
        had - left
    }

    /// The lease becomes `ttl` from now, longer or shorter. False where the token holds nothing.
    pub fn extend(&mut self, token: &[u8], ttl: Ttl) -> bool {
        self.settle();
        let Some(hold) = self.lock.find(token) else { return false };
        hold.deadline = self.now + ttl;
        hold.ttl = ttl;
        hold.set_in_doubt(None);
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        true
    }

    /// The second phase of a fenced quorum. `skew_bound`: ms a fence from outside may lie ahead of the clock.
    pub fn confirm(&mut self, token: &[u8], fence: Fence, ttl: Ttl, skew_bound: u64) -> Confirmed {
        self.settle();
        let Some(hold) = self.lock.find(token) else { return Confirmed::NotHeld };
        if hold.fence > fence {
            return Confirmed::Fence(hold.fence);
        }
        let bound = self.now.micros().saturating_add(skew_bound.saturating_mul(1000));
        if fence > hold.fence && fence.get() > bound {
            return Confirmed::Ahead((fence.get() - bound).div_ceil(1000));
        }
        hold.fence = fence;
        hold.deadline = self.now + ttl;
        hold.ttl = ttl;
        hold.set_in_doubt(None);
        self.fences.raise(fence.get());
        self.step.put(self.lock, token);
        self.step.events.push(Event::Extended);
        Confirmed::Fence(fence)
    }

    /// Ends every hold, and a lock-delay too. Answers how many holds.
    pub fn break_all(&mut self) -> usize {
        self.settle();
        let holds = self.lock.stored().len();
        self.end_all(End::Broken, |_| true);
        if self.lock.delay_until.take().is_some() {
            self.step.changed(self.lock);
        }
        self.serve();
        holds
    }

    /// A connection has closed: the hold of `token` ends if it is bound to it.
    pub fn disconnect(&mut self, token: &[u8], client: ClientId) {
        self.settle();
        let bound = Ephemeral::Bound(client);
        self.end_all(End::Disconnected, |hold| hold.token == *token && hold.ephemeral() == bound);
        self.serve();
    }

    /// The key of the lock was taken away while it was held: the line is served, or nobody holds it any more.
    pub fn vanished(&mut self) {
        self.was_gone = false;
        self.settle();
    }

    /// Takes waiters out of this line, with the answer they get.
    pub fn dismiss(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        self.take_out(waiters, outcome);
        self.settle();
    }

    /// The answer to a waiter reached nobody: what it was granted is taken back, and goes to the next in line. But a
    /// hold that another connection of the token has been told of meanwhile stays: that one relies on it.
    pub fn undelivered(&mut self, token: &[u8], fence: Fence, granted: Granted) {
        self.settle();
        let Some(hold) = self.lock.find(token).filter(|hold| hold.fence == fence) else { return };
        let Some(doubt) = hold.in_doubt().filter(|doubt| doubt.granted == granted) else { return };
        if doubt.answers > 1 {
            return hold.set_in_doubt(Some(Doubt { answers: doubt.answers - 1, ..doubt }));
        }
        hold.set_in_doubt(None);
        match granted {
            Granted::New => self.end_all(End::Released, |hold| hold.token == *token),
            Granted::Upgrade => self.change_mode(Mode::Shared),
            Granted::Renewal => {}
        }
        self.serve();
    }

    /// Grants to the line from its head for as long as the head fits.
    #[inline]
    fn serve(&mut self) {
        if !self.waiting.is_empty() {
            self.serve_line();
        }
    }

    fn serve_line(&mut self) {
        let mut crowd = Crowd::default();
        while let Some(head) = self.waiting.head(self.name) {
            let id = head.id;
            if head.until.is_some_and(|until| until.passed(self.now)) {
                self.take_out(&[id], Outcome::TimedOut);
                continue;
            }
            let held_as = self.lock.mode().filter(|_| crowd.holds(self.lock, &head.token));
            let verdict = match held_as {
                Some(held_as) => self.fit_again(held_as, head.mode),
                None => match self.lock.fit(head.mode) {
                    Fit::Fits => Some(Ok(Granted::New)),
                    Fit::OtherPermits(n) => Some(Err(Refusal::OtherPermits(n.get()))),
                    Fit::NotNow => None,
                },
            };
            let Some(verdict) = verdict else { return };
            let Some(waiter) = self.waiting.leave(id) else { return };
            let outcome = verdict.and_then(|granted| self.hand_over(&waiter, granted));
            let token = outcome.is_ok().then(|| waiter.token.clone());
            self.step.outcomes.push((waiter, outcome.unwrap_or_else(Outcome::Refused)));
            if let Some(token) = token {
                self.answer_others(token.as_bytes());
                crowd.joined(self.lock, token);
            }
        }
    }

    fn hand_over(&mut self, waiter: &Waiter, granted: Granted) -> Result<Outcome, Refusal> {
        let request = waiter.request();
        let fence = match granted {
            Granted::New => self.grant(&request)?,
            Granted::Renewal | Granted::Upgrade => self.renew(&request)?,
        };
        if granted == Granted::Upgrade {
            self.change_mode(Mode::Exclusive);
        }
        // A hold that has begun is the last one, and one that has been upgraded the only one.
        let hold = match granted {
            Granted::Renewal => self.lock.find(request.token),
            Granted::New | Granted::Upgrade => self.lock.stored_mut().last_mut(),
        };
        let Some(hold) = hold else { return Err(Refusal::OtherMode) };
        // Whoever is told of a grant while it is in doubt is one more who may turn out to be gone.
        let doubt = match (granted, hold.in_doubt()) {
            (Granted::Renewal, doubt) => doubt.map(|doubt| Doubt { answers: doubt.answers + 1, ..doubt }),
            _ => Some(Doubt { granted, answers: 1 }),
        };
        hold.set_in_doubt(doubt);
        let granted = doubt.map_or(Granted::Renewal, |doubt| doubt.granted);
        Ok(Outcome::Granted(fence, granted))
    }

    /// Whether a waiter whose token holds the lock already gets what it waits for. None: it goes on waiting.
    fn fit_again(&self, held_as: Mode, asked: Mode) -> Option<Result<Granted, Refusal>> {
        match (held_as, asked) {
            (Mode::Shared, Mode::Exclusive) if self.lock.can_upgrade() => Some(Ok(Granted::Upgrade)),
            (Mode::Shared, Mode::Exclusive) => None,
            (Mode::Exclusive, Mode::Shared) => Some(Ok(Granted::Renewal)),
            (held_as, asked) if held_as == asked => Some(Ok(Granted::Renewal)),
            (Mode::Permits(n), Mode::Permits(_)) => Some(Err(Refusal::OtherPermits(n.get()))),
            _ => Some(Err(Refusal::OtherMode)),
        }
    }

    /// The token has just been granted the lock: every other ACQUIRE of it that waits here and asks for no more is
    /// answered too.
    fn answer_others(&mut self, token: &[u8]) {
        for id in self.waiting.of_token_on(token, self.name) {
            let (Some(held_as), Some(waiter)) = (self.lock.mode(), self.waiting.get(id)) else { return };
            let late = waiter.until.is_some_and(|until| until.passed(self.now));
            if self.fit_again(held_as, waiter.mode) != Some(Ok(Granted::Renewal)) || late {
                continue;
            }
            if let Some(waiter) = self.waiting.leave(id) {
                let outcome = self.hand_over(&waiter, Granted::Renewal);
                self.step.outcomes.push((waiter, outcome.unwrap_or_else(Outcome::Refused)));
            }
        }
    }

    /// Begins a hold that fits.
    fn grant(&mut self, request: &Request<'_>) -> Result<Fence, Refusal> {
        let token = Token::new(request.token).ok_or(Refusal::OtherMode)?;
        let fence = self.fences.issue(self.now).ok_or(Refusal::FencesUsedUp)?;
        let count = match request.count {
            Count::Keep | Count::OneMore => NonZeroU32::MIN,
            Count::AtLeast(n) => n,
        };
        let extras = Extras {
            ephemeral: request.bound_to.map_or(Ephemeral::No, Ephemeral::Bound),
            delay: request.delay,
            label: SmallVec::from_slice(request.label),
            in_doubt: None,
        };
        if let Some(client) = request.bound_to {
            self.step.bound.push((client, token.clone()));
        }
        let deadline = self.now + request.ttl;
        let hold = Hold { token, fence, deadline, ttl: request.ttl, count, extras: extras.boxed() };
        self.lock.add(hold, request.mode);
        self.step.put(self.lock, request.token);
        self.step.events.push(Event::Acquired);
        Ok(fence)
    }

    /// The token holds the lock and asks again: the lease becomes the longer one, the count as asked.
    fn renew(&mut self, request: &Request<'_>) -> Result<Fence, Refusal> {
        let deadline = self.now + request.ttl;
        let Some(hold) = self.lock.find(request.token) else { return Err(Refusal::OtherMode) };
        let before = (hold.count, hold.deadline, hold.extras.clone());
        hold.count = match request.count {
            Count::Keep => hold.count,
            Count::OneMore if hold.count.get() >= MAX_COUNT => return Err(Refusal::CountFull),
            Count::OneMore => hold.count.saturating_add(1),
            Count::AtLeast(n) => hold.count.max(n),
        };
        let extended = deadline > hold.deadline;
        if extended {
            hold.deadline = deadline;
            hold.ttl = request.ttl;
        }
        if request.bound_to.is_some() || request.delay > 0 || !request.label.is_empty() {
            let mut extras = hold.extras.take().map_or(Extras::NONE, |extras| *extras);
            if let Some(client) = request.bound_to {
                if let Ephemeral::Bound(old) = extras.ephemeral {
                    self.step.unbound.push((old, hold.token.clone()));
                }
                self.step.bound.push((client, hold.token.clone()));
                extras.ephemeral = Ephemeral::Bound(client);
            }
            extras.delay = if request.delay > 0 { request.delay } else { extras.delay };
            if !request.label.is_empty() {
                extras.label = SmallVec::from_slice(request.label);
            }
            hold.extras = extras.boxed();
        }
        let fence = hold.fence;
        if before != (hold.count, hold.deadline, hold.extras.clone()) {
            self.step.put(self.lock, request.token);
        }
        if extended {
            self.step.events.push(Event::Extended);
        }
        Ok(fence)
    }

    /// The only holder, exclusive or sharing, holds in the other mode from now on.
    fn change_mode(&mut self, mode: Mode) {
        self.lock.holding = match (std::mem::take(&mut self.lock.holding), mode) {
            (Holding::Exclusive(hold), Mode::Shared) => Holding::Shared(Holders::one(hold)),
            (Holding::Shared(holders), Mode::Exclusive) => holders.into_exclusive(),
            (other, _) => other,
        };
        self.step.whole();
    }

    fn end_all(&mut self, why: End, mut gone: impl FnMut(&Hold) -> bool) {
        match &self.lock.holding {
            Holding::Free => {}
            // By far the most frequent, and done without a list.
            Holding::Exclusive(hold) => {
                if gone(hold)
                    && let Holding::Exclusive(hold) = std::mem::take(&mut self.lock.holding)
                {
                    self.end(hold, why);
                }
            }
            Holding::Shared(_) | Holding::Permits(..) => {
                for hold in self.lock.remove(gone) {
                    self.end(hold, why);
                }
            }
        }
    }

    /// The hold is out of the lock already.
    fn end(&mut self, hold: Hold, why: End) {
        let delay = u64::from(hold.delay());
        if delay > 0 && matches!(why, End::Expired | End::Disconnected) {
            let until = match why {
                End::Expired => hold.deadline.plus_millis(delay),
                _ => self.now.after_millis(delay),
            };
            self.lock.delay_until = self.lock.delay_until.max(Some(until));
        }
        self.step.ended(self.lock, hold, why, self.now);
    }

    fn take_out(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        let gone = waiters.iter().filter_map(|id| self.waiting.leave(*id));
        self.step.outcomes.extend(gone.map(|waiter: Waiter| (waiter, outcome)));
    }
}
