//! Serving of a wait queue: grants the lock to the head, until a head has to wait. A waiter gets one outcome.

use dlock_protocol::error::Refusal;
use dlock_protocol::{Deadline, Delay, Fence, Instant, Mode, Ttl};

use super::Turn;
use crate::deliveries::{Delivery, Lost, Unclaimed};
use crate::lock::Fit;
use crate::queue::{Granted, Outcome, WaitKind, Waiter, WaiterId};
use crate::step::End;

impl Turn<'_> {
    /// Grants the lock to the head of the queue, until a head has to wait.
    #[inline]
    pub(super) fn serve(&mut self) {
        if !self.waiting.is_empty() {
            self.serve_queue();
        }
    }

    pub(super) fn serve_queue(&mut self) {
        while let Some(head) = self.waiting.head(self.name) {
            let id = head.id;
            if let Some(outcome) = self.waiting.outcome_if_over(head, self.now) {
                self.take_out(&[id], outcome);
                continue;
            }
            let is_holder = self.lock.at(self.now).hold_of(head.request.token.as_bytes()).is_some();
            let held_as = self.lock.mode().filter(|_| is_holder);
            let verdict = match held_as {
                Some(held_as) => self.verdict_for_holder(held_as, head.request.mode),
                None if !self.may_grant() => None,
                None => match self.fit(head.request.mode) {
                    Fit::Fits => Some(Ok(Granted::New)),
                    Fit::NotNow | Fit::Full => None,
                },
            };
            let Some(verdict) = verdict else { return };
            let token = head.request.token.clone();
            if !self.count_another_answer() {
                return;
            }
            if self.answer(id, verdict) {
                self.answer_others(token.as_bytes());
            }
        }
    }

    /// Counts another answer of this operation. Returns false if the operation has given
    /// `max_grants_per_turn` answers: the background job then continues. A free lock is granted beyond this
    /// limit, because otherwise a newcomer could acquire it before the waiters.
    fn count_another_answer(&mut self) -> bool {
        if self.answers >= self.terms.max_grants_per_turn && self.lock.at(self.now).holders() > 0 {
            self.step.rare_effects().unserved = true;
            return false;
        }
        self.answers += 1;
        true
    }

    /// Answers a waiter and the connections that wait beside it ([`WaitKind::Beside`]). Returns whether the
    /// lock was granted.
    fn answer(&mut self, id: WaiterId, verdict: Result<Granted, Refusal>) -> bool {
        let answered = self.waiting.leave_all(id);
        let [waiter, beside @ ..] = &answered[..] else { return false };
        let now = self.now;
        let has_timed_out = |waiter: &Waiter| waiter.until.is_some_and(|until| until.passed(now));
        let has_recipient = beside.iter().any(|waiter| !has_timed_out(waiter));
        let outcome = verdict.and_then(|granted| self.hand_off(waiter, granted, has_recipient));
        let outcome = outcome.unwrap_or_else(Outcome::Refused);
        if let Outcome::Granted(fence, _) = outcome {
            for waiter in beside.iter().filter(|waiter| !has_timed_out(waiter)) {
                self.record_unconfirmed(waiter, fence, Granted::Renewal, Delay::NONE);
            }
        }
        self.step.rare_effects().outcomes.extend(answered.into_iter().map(|waiter| {
            let outcome = if has_timed_out(&waiter) { Outcome::TimedOut } else { outcome };
            (waiter, outcome)
        }));
        matches!(outcome, Outcome::Granted(..))
    }

    /// Grants the lock to a waiter. `has_recipient` tells whether a connection beside a queued waiter
    /// receives the reply. If none does, the client may be dead. A new hold then delays other waiters no
    /// longer than the queue position would have: the lease ends with the position, and there is no
    /// lock-delay until the next command of the token claims the grant.
    fn hand_off(
        &mut self,
        waiter: &Waiter,
        granted: Granted,
        has_recipient: bool,
    ) -> Result<Outcome, Refusal> {
        let mut request = waiter.request.borrowed();
        let token = request.token.as_bytes();
        let longest = request.ttl.millis().max(request.delay.millis());
        if longest > self.terms.longest_lease.millis() {
            return Err(Refusal::LeaseTooLong(self.terms.longest_lease));
        }
        let mut delay_after_claim = Delay::NONE;
        if let (WaitKind::Queued(_), Some(until), Granted::New, false) =
            (&waiter.kind, waiter.until, granted, has_recipient)
        {
            request.ttl = request.ttl.min(remaining_lease(until, self.now));
            delay_after_claim = std::mem::replace(&mut request.delay, Delay::NONE);
        }
        let fence = match granted {
            Granted::New => self.grant(&request, waiter.asked_by())?,
            Granted::Renewal | Granted::Upgrade => self.renew(&request, waiter.asked_by())?,
        };
        if granted == Granted::Upgrade {
            self.change_mode(token, Mode::Exclusive);
        }
        self.record_unconfirmed(waiter, fence, granted, delay_after_claim);
        Ok(Outcome::Granted(fence, granted))
    }

    /// Records a grant as unconfirmed: its reply is on its way, or its token has to claim it. `delay` is the
    /// lock-delay that a claim sets.
    fn record_unconfirmed(&mut self, waiter: &Waiter, fence: Fence, granted: Granted, delay: Delay) {
        let (id, until) = (waiter.id, waiter.until);
        let unclaimed = until.filter(|_| matches!(waiter.kind, WaitKind::Queued(_)));
        let unclaimed = unclaimed.map(|until| Unclaimed { id, until, delay_after_claim: delay });
        let (token, deliveries) = (&waiter.request.token, &mut self.waiting.deliveries);
        deliveries.granted(&waiter.name, token, fence, granted, id, unclaimed);
        if let Some(client) = waiter.client() {
            let (name, token) = (waiter.name.clone(), token.clone());
            deliveries.await_delivery(id, Delivery { name, token, client });
        }
    }

    /// The outcome for a waiter if its token holds the lock already. `None` if it keeps waiting.
    pub(super) fn verdict_for_holder(&self, held_as: Mode, asked: Mode) -> Option<Result<Granted, Refusal>> {
        match (held_as, asked) {
            (Mode::Shared, Mode::Exclusive) if self.lock.can_upgrade(self.now) && self.may_grant() => {
                Some(Ok(Granted::Upgrade))
            }
            (Mode::Shared, Mode::Exclusive) => None,
            (Mode::Exclusive, Mode::Shared) => Some(Ok(Granted::Renewal)),
            (held_as, asked) if held_as.is_like(asked) => Some(Ok(Granted::Renewal)),
            _ => Some(Err(Refusal::OtherMode)),
        }
    }

    /// Answers the other waiters of a token that was granted the lock, if the new hold satisfies their
    /// requests.
    pub(super) fn answer_others(&mut self, token: &[u8]) {
        for id in self.waiting.of_token_on(token, self.name) {
            let (Some(held_as), Some(waiter)) = (self.lock.mode(), self.waiting.get(id)) else { return };
            let over = self.waiting.outcome_if_over(waiter, self.now).is_some();
            if self.verdict_for_holder(held_as, waiter.request.mode) != Some(Ok(Granted::Renewal)) || over {
                continue;
            }
            self.answer(id, Ok(Granted::Renewal));
        }
    }

    /// Takes a grant back because the reply to the waiter was not delivered, and serves the queue. The grant
    /// stays if another connection of the token receives a reply. A queued waiter can still claim the
    /// grant, until the queue position would have ended.
    pub fn undelivered(&mut self, token: &[u8], waiter: WaiterId) {
        self.advance();
        let Some(hold) = self.lock.at(self.now).hold_of(token) else { return };
        let (fence, delay) = (hold.fence(), hold.delay());
        match self.waiting.deliveries.lost(self.name, token, fence, waiter, delay) {
            Some(Lost::Unclaimed(until)) if !until.passed(self.now) => {
                let ttl = remaining_lease(until, self.now);
                let changed = self.change(token, |hold| {
                    hold.set_delay(Delay::NONE);
                    if until < hold.deadline() {
                        hold.set_lease(until, ttl);
                    }
                    hold.token().clone()
                });
                if let Some(token) = changed {
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

/// The time from now to `until` as a lease, which is at least 1 ms.
pub(super) fn remaining_lease(until: Deadline, now: Instant) -> Ttl {
    Ttl::from_millis(until.left(now).max(1)).unwrap_or(Ttl::MAX)
}
