//! How a queue is served: grants from its head for as long as the head fits, each waiter answered once.

use dlock_protocol::Mode;

use super::Turn;
use crate::deliveries::Delivery;
use crate::lock::Fit;
use crate::queue::Waiter;
use crate::step::{Granted, Outcome, Refusal};

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
            if head.until.is_some_and(|until| until.passed(self.now)) {
                self.take_out(&[id], Outcome::TimedOut);
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
            let Some(waiter) = self.waiting.leave(id) else { return };
            let outcome = verdict.and_then(|granted| self.hand_off(&waiter, granted));
            let token = outcome.is_ok().then(|| waiter.request.token.clone());
            self.step.rest().outcomes.push((waiter, outcome.unwrap_or_else(Outcome::Refused)));
            if let Some(token) = token {
                self.answer_others(token.as_bytes());
            }
        }
    }

    pub(super) fn hand_off(&mut self, waiter: &Waiter, granted: Granted) -> Result<Outcome, Refusal> {
        let request = waiter.request.borrowed();
        let token = request.token.as_bytes();
        let asked = request.ttl.millis().max(request.delay.millis());
        if asked > self.terms.longest_lease.millis() {
            return Err(Refusal::LeaseTooLong(self.terms.longest_lease));
        }
        let fence = match granted {
            Granted::New => self.grant(&request, waiter.client)?,
            Granted::Renewal | Granted::Upgrade => self.renew(&request, waiter.client)?,
        };
        if granted == Granted::Upgrade {
            self.change_mode(token, Mode::Exclusive);
        }
        let delivery = Delivery {
            name: waiter.name.clone(),
            token: waiter.request.token.clone(),
            client: waiter.client,
        };
        self.waiting.deliveries.sent(waiter.id, delivery, fence, granted);
        Ok(Outcome::Granted(fence, granted))
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
            let late = waiter.until.is_some_and(|until| until.passed(self.now));
            if self.fit_again(held_as, waiter.request.mode) != Some(Ok(Granted::Renewal)) || late {
                continue;
            }
            if let Some(waiter) = self.waiting.leave(id) {
                let outcome = self.hand_off(&waiter, Granted::Renewal);
                self.step.rest().outcomes.push((waiter, outcome.unwrap_or_else(Outcome::Refused)));
            }
        }
    }
}
