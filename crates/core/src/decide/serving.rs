//! How a queue is served: grants from its head for as long as the head fits, each waiter answered once.

use dlock_protocol::{Deadline, Delay, Fence, Instant, Mode, Ttl};

use super::Turn;
use crate::deliveries::{Delivery, Lost, Unclaimed};
use crate::lock::Fit;
use crate::outcome::{Granted, Outcome, Refusal};
use crate::queue::{Owner, Waiter, WaiterId};
use crate::step::End;

impl Turn<'_> {
    /// Grants to the queue from its head for as long as the head fits.
    #[inline]
    pub(super) fn serve(&mut self) {
        if !self.waiting.is_empty() {
            self.serve_queue();
        }
    }

    pub(super) fn serve_queue(&mut self) {
        while let Some(head) = self.waiting.head(self.name) {
            let id = head.id;
            if let Some(outcome) = self.waiting.is_over(head, self.now) {
                self.take_out(&[id], outcome);
                continue;
            }
            let holds = self.lock.at(self.now).hold_of(head.request.token.as_bytes()).is_some();
            let held_as = self.lock.mode().filter(|_| holds);
            let verdict = match held_as {
                Some(held_as) => self.fit_again(held_as, head.request.mode),
                None if self.in_grace() => None,
                None => match self.fit(head.request.mode) {
                    Fit::Fits => Some(Ok(Granted::New)),
                    Fit::OtherPermits(n) => Some(Err(Refusal::OtherPermits(n.get()))),
                    Fit::NotNow | Fit::Full => None,
                },
            };
            let Some(verdict) = verdict else { return };
            let token = head.request.token.clone();
            if !self.may_serve_another() {
                return;
            }
            if self.answer(id, verdict) {
                self.answer_others(token.as_bytes());
            }
        }
    }

    /// Whether this turn may answer one more of the queue; the next one has to, if not. While nobody holds
    /// the lock it has to be this one: a lock that is free where somebody waits is anybody's.
    fn may_serve_another(&mut self) -> bool {
        if self.served >= self.terms.most_served && self.lock.at(self.now).holders() > 0 {
            self.step.rest().unserved = true;
            return false;
        }
        self.served += 1;
        true
    }

    /// Answers a waiter and those who wait beside it. Whether it was granted.
    fn answer(&mut self, id: WaiterId, verdict: Result<Granted, Refusal>) -> bool {
        let answered = self.waiting.leave_all(id);
        let [waiter, beside @ ..] = &answered[..] else { return false };
        let now = self.now;
        let late = |waiter: &Waiter| waiter.until.is_some_and(|until| until.passed(now));
        let told = beside.iter().any(|waiter| !late(waiter));
        let outcome = verdict.and_then(|granted| self.hand_off(waiter, granted, told));
        let outcome = outcome.unwrap_or_else(Outcome::Refused);
        if let Outcome::Granted(fence, _) = outcome {
            let told = beside.iter().filter(|waiter| !late(waiter));
            told.for_each(|waiter| self.note(waiter, fence, Granted::Renewal, Delay::NONE));
        }
        self.step.rest().outcomes.extend(answered.into_iter().map(|waiter| {
            let outcome = if late(&waiter) { Outcome::TimedOut } else { outcome };
            (waiter, outcome)
        }));
        matches!(outcome, Outcome::Granted(..))
    }

    /// `told`: whether a connection waits for it. If not, whoever waits may be dead, and may cost the others
    /// no more than the position would have: neither a longer lease nor a lock-delay, until it is claimed.
    fn hand_off(&mut self, waiter: &Waiter, granted: Granted, told: bool) -> Result<Outcome, Refusal> {
        let mut request = waiter.request.borrowed();
        let token = request.token.as_bytes();
        let asked = request.ttl.millis().max(request.delay.millis());
        if asked > self.terms.longest_lease.millis() {
            return Err(Refusal::LeaseTooLong(self.terms.longest_lease));
        }
        let mut delay = Delay::NONE;
        if let (Owner::Token(_), Some(until), Granted::New, false) =
            (&waiter.owner, waiter.until, granted, told)
        {
            request.ttl = request.ttl.min(left(until, self.now));
            delay = std::mem::replace(&mut request.delay, Delay::NONE);
        }
        let fence = match granted {
            Granted::New => self.grant(&request, waiter.asked_by())?,
            Granted::Renewal | Granted::Upgrade => self.renew(&request, waiter.asked_by())?,
        };
        if granted == Granted::Upgrade {
            self.change_mode(token, Mode::Exclusive);
        }
        self.note(waiter, fence, granted, delay);
        Ok(Outcome::Granted(fence, granted))
    }

    /// Notes who is yet to be told of a grant, or to claim it, and by which `delay` it is followed then.
    fn note(&mut self, waiter: &Waiter, fence: Fence, granted: Granted, delay: Delay) {
        let (id, until) = (waiter.id, waiter.until);
        let unclaimed = until.filter(|_| matches!(waiter.owner, Owner::Token(_)));
        let unclaimed = unclaimed.map(|until| Unclaimed { id, until, delay });
        let (token, deliveries) = (&waiter.request.token, &mut self.waiting.deliveries);
        deliveries.granted(&waiter.name, token, fence, granted, id, unclaimed);
        if let Some(client) = waiter.client() {
            let (name, token) = (waiter.name.clone(), token.clone());
            deliveries.sent(id, Delivery { name, token, client });
        }
    }

    /// Whether a waiter whose token holds the lock already gets what it waits for. None: it goes on waiting.
    pub(super) fn fit_again(&self, held_as: Mode, asked: Mode) -> Option<Result<Granted, Refusal>> {
        match (held_as, asked) {
            (Mode::Shared, Mode::Exclusive) if self.lock.can_upgrade(self.now) && !self.in_grace() => {
                Some(Ok(Granted::Upgrade))
            }
            (Mode::Shared, Mode::Exclusive) => None,
            (Mode::Exclusive, Mode::Shared) => Some(Ok(Granted::Renewal)),
            (held_as, asked) if held_as == asked => Some(Ok(Granted::Renewal)),
            (Mode::Permits(n), Mode::Permits(_)) => Some(Err(Refusal::OtherPermits(n.get()))),
            _ => Some(Err(Refusal::OtherMode)),
        }
    }

    /// The token has just been granted the lock: every other ACQUIRE of it that waits here and asks for no
    /// more is answered too.
    pub(super) fn answer_others(&mut self, token: &[u8]) {
        for id in self.waiting.of_token_on(token, self.name) {
            let (Some(held_as), Some(waiter)) = (self.lock.mode(), self.waiting.get(id)) else { return };
            let over = self.waiting.is_over(waiter, self.now).is_some();
            if self.fit_again(held_as, waiter.request.mode) != Some(Ok(Granted::Renewal)) || over {
                continue;
            }
            self.answer(id, Ok(Granted::Renewal));
        }
    }

    /// The answer to a waiter reached nobody: what it was granted is taken back, and goes to the next waiter.
    /// But what another connection of the token has been told of meanwhile stays: that one relies on it. And
    /// so does what was granted to a queued waiter, to be claimed for as long as its position would have
    /// lasted.
    pub fn undelivered(&mut self, token: &[u8], waiter: WaiterId) {
        self.advance();
        let Some(hold) = self.lock.at(self.now).hold_of(token) else { return };
        let (fence, delay) = (hold.fence(), hold.delay());
        match self.waiting.deliveries.lost(self.name, token, fence, waiter, delay) {
            Some(Lost::Unclaimed(until)) if !until.passed(self.now) => {
                let ttl = left(until, self.now);
                let hold = self.change(token, |hold| {
                    hold.set_delay(Delay::NONE);
                    if until < hold.deadline() {
                        hold.set_lease(until, ttl);
                    }
                    hold.token().clone()
                });
                if let Some(token) = hold {
                    self.step.put(self.lock, token.borrowed());
                }
                return;
            }
            Some(Lost::Grant(Granted::New) | Lost::Unclaimed(_)) => self.end_one(token, End::Released),
            Some(Lost::Grant(Granted::Upgrade)) => self.change_mode(token, Mode::Shared),
            Some(Lost::Grant(Granted::Renewal)) => {}
            None => return,
        }
        self.serve();
    }
}

/// The lease that lasts until then.
pub(super) fn left(until: Deadline, now: Instant) -> Ttl {
    Ttl::from_millis(until.left(now).max(1)).unwrap_or(Ttl::MAX)
}
