//! How holds begin, change and end.

use std::num::NonZeroU32;

use dlock_protocol::{ClientId, Fence, LockRequestRef, Mode, OwnerId, TokenRef};

use super::Turn;
use crate::lock::{Ephemeral, Extras, Fit, Hold, Holding};
use crate::outcome::{Outcome, Refusal};
use crate::queue::WaiterId;
use crate::step::{Binding, Departed, End, Event};

const SLICE: usize = Departed::SLICE;

impl Turn<'_> {
    #[inline]
    pub(super) fn fit(&self, mode: Mode) -> Fit {
        self.lock.fit(mode, self.terms.most_holders as usize, self.now)
    }

    /// Has the hold of a token changed, if it has one.
    #[inline]
    pub(super) fn change<R>(&mut self, token: &[u8], change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        self.lock.change(token, self.now, change)
    }

    /// The owner knows what it holds. Whether it had been granted to a queued waiter, who claims it now: it
    /// will be followed by the lock-delay that was asked for.
    #[inline]
    pub(super) fn heard_of(&mut self, token: TokenRef<'_>) -> bool {
        let Some(unclaimed) = self.waiting.deliveries.heard_of(self.name, token.as_bytes()) else {
            return false;
        };
        if !unclaimed.delay.is_none() {
            self.change(token.as_bytes(), |hold| hold.set_delay(unclaimed.delay));
            self.step.put(self.lock, token);
        }
        true
    }

    /// Begins a hold that fits.
    pub(super) fn grant(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Result<Fence, Refusal> {
        let (token, now) = (request.token, self.now);
        let fence = self.fences.issue(now).ok_or(Refusal::FencesUsedUp)?;
        let count = request.reentry.count(None).ok_or(Refusal::CountFull)?;
        // An old hold of the token may have expired with so many others that it has not ended yet. It ends
        // first: it may be bound to the same connection.
        if self.lock.stored_len() > 1 {
            self.end_one(token.as_bytes(), End::Expired);
        }
        if request.ephemeral {
            self.step.bound(Binding::Begins(client, token.to_owned()));
        }
        let mut hold = Hold::new(token.to_owned(), fence, now, now + request.ttl, request.ttl);
        hold.set_client(client);
        if has_extras(request) || count > NonZeroU32::MIN {
            hold.set_extras(extras_of(request, count, client));
        }
        self.lock.add(hold, request.mode);
        self.step.put(self.lock, request.token);
        self.step.events.push(Event::Acquired);
        Ok(fence)
    }

    /// The token holds the lock and asks again: the lease becomes the longer one, the count as asked.
    pub(super) fn renew(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Result<Fence, Refusal> {
        let deadline = self.now + request.ttl;
        let step = &mut *self.step;
        let renewed = self.lock.change(request.token.as_bytes(), self.now, |hold| {
            let before = (hold.times(), hold.deadline());
            hold.set_count(request.reentry.count(Some(before.0)).ok_or(Refusal::CountFull)?);
            let extended = deadline > hold.deadline();
            if extended {
                hold.set_lease(deadline, request.ttl);
            }
            let mut changed = false;
            if has_extras(request) {
                let mut extras = hold.take_extras();
                let before = (extras.ephemeral, extras.delay, extras.label.clone());
                if request.ephemeral {
                    if let Ephemeral::Bound(old) = extras.ephemeral {
                        step.rest().bindings.push(Binding::Ends(old, hold.token().clone()));
                    }
                    step.rest().bindings.push(Binding::Begins(client, hold.token().clone()));
                    extras.ephemeral = Ephemeral::Bound(client);
                }
                if !request.delay.is_none() {
                    extras.delay = request.delay;
                }
                if !request.label.is_empty() {
                    extras.label = request.label.to_owned();
                }
                if request.owner.is_some() {
                    extras.owner = owner_of(request);
                }
                changed = (before.0, before.1, &before.2) != (extras.ephemeral, extras.delay, &extras.label);
                hold.set_extras(extras);
            }
            Ok((hold.fence(), extended, changed || before != (hold.times(), hold.deadline())))
        });
        let (fence, extended, changed) = renewed.unwrap_or(Err(Refusal::OtherMode))?;
        self.step.renewed = true;
        if changed {
            self.step.put(self.lock, request.token);
        }
        if extended {
            self.step.events.push(Event::Extended);
        }
        Ok(fence)
    }

    /// The only holder, exclusive or sharing, holds in the other mode from now on.
    pub(super) fn change_mode(&mut self, token: &[u8], mode: Mode) {
        let Some(hold) = self.lock.remove(token) else { return };
        // Beside it only expired ones can be left.
        self.depart(End::Expired);
        if mode == Mode::Shared {
            self.step.events.push(Event::Downgraded);
        }
        self.lock.add(hold, mode);
        self.step.whole();
    }

    /// Ends the expired holds, or a lock-delay that has passed.
    #[inline(never)]
    pub(super) fn expire(&mut self) {
        let now = self.now;
        // By far the most frequent, and done without a list.
        if let Holding::Exclusive(hold) = self.lock.holding()
            && hold.deadline().passed(now)
            && let Some(hold) = &self.lock.take_exclusive()
        {
            self.end(hold, End::Expired);
        }
        if let Some(crowd) = self.lock.crowd_mut()
            && crowd.holders.first_deadline().is_some_and(|first| first.passed(now))
        {
            crowd.delay_until = crowd.delay_until.max(crowd.holders.delay_of_expired(now));
            let all = crowd.holders.last_deadline().is_some_and(|last| last.passed(now));
            if all && crowd.holders.len() > SLICE {
                self.depart(End::Expired);
            } else {
                for hold in self.lock.take_expired(now, SLICE) {
                    self.end(&hold, End::Expired);
                }
            }
        }
        if self.lock.delay_until().is_some_and(|until| until.passed(now)) {
            self.lock.set_delay_until(None);
            self.step.changed(self.lock);
        }
    }

    /// Ends every hold of those who share it or hold permits.
    pub(super) fn end_crowd(&mut self, why: End) {
        if self.lock.stored_len() > SLICE {
            return self.depart(why);
        }
        for hold in self.lock.take_crowd().into_iter().flat_map(|mut crowd| crowd.take_some(SLICE)) {
            self.end(&hold, why);
        }
    }

    /// Takes all of them out together.
    fn depart(&mut self, why: End) {
        if let Some(holds) = self.lock.take_crowd() {
            let doubts = self.waiting.deliveries.forget(self.name);
            self.step.events.push(Event::AllEnded(why));
            self.step.rest().departed.push(Departed::new(Some(why), self.now, holds, doubts));
            self.step.changed(self.lock);
        }
    }

    pub(super) fn end_one(&mut self, token: &[u8], why: End) {
        if let Some(hold) = self.lock.remove(token) {
            self.end(&hold, why);
        }
    }

    /// The hold is out of the lock already.
    pub(super) fn end(&mut self, hold: &Hold, why: End) {
        if !hold.delay().is_none() {
            self.delay_after(hold, why);
        }
        self.waiting.deliveries.heard_of(self.name, hold.token().as_bytes());
        self.step.ended(self.lock, hold, why, self.now);
    }

    #[inline(never)]
    fn delay_after(&mut self, hold: &Hold, why: End) {
        let delay = hold.delay().millis();
        let until = match why {
            End::Expired => hold.deadline().plus_millis(delay),
            End::Disconnected => self.now.after_millis(delay),
            End::Released | End::Broken => return,
        };
        self.lock.set_delay_until(self.lock.delay_until().max(Some(until)));
    }

    pub(super) fn take_out(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        for id in waiters {
            let gone = self.waiting.leave_all(*id);
            self.step.rest().outcomes.extend(gone.into_iter().map(|waiter| (waiter, outcome)));
        }
    }
}

/// Whether it asks for what few holds have.
fn has_extras(request: &LockRequestRef<'_>) -> bool {
    // Whole, so that a new option is not forgotten: here, and where it is kept above.
    let LockRequestRef { token: _, ttl: _, mode: _, reentry: _, ephemeral, delay, label, owner } = request;
    *ephemeral || !delay.is_none() || !label.is_empty() || owner.is_some()
}

#[inline(never)]
fn extras_of(request: &LockRequestRef<'_>, count: NonZeroU32, client: ClientId) -> Extras {
    let ephemeral = if request.ephemeral { Ephemeral::Bound(client) } else { Ephemeral::No };
    let (delay, label) = (request.delay, request.label.to_owned());
    Extras { ephemeral, delay, label, count, owner: owner_of(request) }
}

fn owner_of(request: &LockRequestRef<'_>) -> Option<Box<OwnerId>> {
    request.owner.map(|owner| Box::new(owner.to_owned()))
}
