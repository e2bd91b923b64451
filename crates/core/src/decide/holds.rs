//! How holds begin, change and end.

use std::num::NonZeroU32;

use super::Turn;
use crate::lock::{Count, Ephemeral, Extras, Hold, Holders, Holding, MAX_COUNT, Mode, Request};
use crate::queue::{Waiter, WaiterId};
use crate::step::{Binding, End, Event, Outcome, Refusal};
use crate::units::{Fence, Token};

impl Turn<'_> {
    /// Begins a hold that fits.
    pub(super) fn grant(&mut self, request: &Request<'_>) -> Result<Fence, Refusal> {
        let token = Token::new(request.token).ok_or(Refusal::OtherMode)?;
        let fence = self.fences.issue(self.now).ok_or(Refusal::FencesUsedUp)?;
        let count = match request.count {
            Count::Keep | Count::OneMore => NonZeroU32::MIN,
            Count::AtLeast(n) => n,
        };
        let extras = request.has_extras().then(|| {
            Box::new(Extras {
                ephemeral: request.bound_to.map_or(Ephemeral::No, Ephemeral::Bound),
                delay: request.delay,
                label: request.label.into(),
                in_doubt: None,
            })
        });
        if let Some(client) = request.bound_to {
            self.step.rest().bindings.push(Binding::Begins(client, token.clone()));
        }
        let deadline = self.now + request.ttl;
        let hold = Hold { token, fence, deadline, ttl: request.ttl, count, extras };
        self.lock.add(hold, request.mode);
        self.step.put(self.lock, request.token);
        self.step.events.push(Event::Acquired);
        Ok(fence)
    }

    /// The token holds the lock and asks again: the lease becomes the longer one, the count as asked.
    pub(super) fn renew(&mut self, request: &Request<'_>) -> Result<Fence, Refusal> {
        let deadline = self.now + request.ttl;
        let Some(hold) = self.lock.find(request.token) else { return Err(Refusal::OtherMode) };
        let before = (hold.count, hold.deadline);
        let mut changed = false;
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
        if request.has_extras() {
            let mut extras = hold.extras.take().map_or(Extras::NONE, |extras| *extras);
            let before = (extras.ephemeral, extras.delay, extras.label.clone());
            if let Some(client) = request.bound_to {
                if let Ephemeral::Bound(old) = extras.ephemeral {
                    self.step.rest().bindings.push(Binding::Ends(old, hold.token.clone()));
                }
                self.step.rest().bindings.push(Binding::Begins(client, hold.token.clone()));
                extras.ephemeral = Ephemeral::Bound(client);
            }
            extras.delay = if request.delay > 0 { request.delay } else { extras.delay };
            if !request.label.is_empty() {
                extras.label = request.label.into();
            }
            changed = (before.0, before.1, &before.2) != (extras.ephemeral, extras.delay, &extras.label);
            hold.extras = extras.boxed();
        }
        let fence = hold.fence;
        self.step.renewed = true;
        if changed || before != (hold.count, hold.deadline) {
            self.step.put(self.lock, request.token);
        }
        if extended {
            self.step.events.push(Event::Extended);
        }
        Ok(fence)
    }

    /// The only holder, exclusive or sharing, holds in the other mode from now on.
    pub(super) fn change_mode(&mut self, mode: Mode) {
        self.lock.holding = match (std::mem::take(&mut self.lock.holding), mode) {
            (Holding::Exclusive(hold), Mode::Shared) => Holding::Shared(Holders::one(hold)),
            (Holding::Shared(holders), Mode::Exclusive) => holders.into_exclusive(),
            (other, _) => other,
        };
        self.step.whole();
    }

    pub(super) fn end_all(&mut self, why: End, mut gone: impl FnMut(&Hold) -> bool) {
        match &self.lock.holding {
            Holding::Free => {}
            // By far the most frequent, and done without a list.
            Holding::Exclusive(hold) => {
                if gone(hold)
                    && let Holding::Exclusive(hold) = &std::mem::take(&mut self.lock.holding)
                {
                    self.end(hold, why);
                }
            }
            Holding::Shared(_) | Holding::Permits(..) => {
                for hold in self.lock.remove(gone) {
                    self.end(&hold, why);
                }
            }
        }
    }

    /// The hold is out of the lock already.
    pub(super) fn end(&mut self, hold: &Hold, why: End) {
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

    pub(super) fn take_out(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        let gone = waiters.iter().filter_map(|id| self.waiting.leave(*id));
        self.step.rest().outcomes.extend(gone.map(|waiter: Waiter| (waiter, outcome)));
    }
}
