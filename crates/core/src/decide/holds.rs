//! The begin, change and end of holds. A crowd is all holds of a shared lock or a semaphore.

use std::num::NonZeroU32;

use dlock_protocol::error::Refusal;
use dlock_protocol::{ClientId, Deadline, Fence, LockRequestRef, Mode, OwnerId, TokenRef};

use super::Turn;
use crate::lock::{Ephemeral, Extras, Fit, Hold, Holding};
use crate::queue::{Outcome, WaiterId};
use crate::step::{Binding, Change, End, EndedHolds, Event};

const SLICE: usize = EndedHolds::SLICE;

impl Turn<'_> {
    #[inline]
    pub(super) fn fit(&self, mode: Mode) -> Fit {
        self.lock.fit(mode, self.terms.max_holders as usize, self.now)
    }

    /// Changes the hold of a token. `None` if it has none.
    #[inline]
    pub(super) fn change<R>(&mut self, token: &[u8], change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        self.lock.change(token, self.now, change)
    }

    /// Records that the client of a token knows of its grant, because the token has sent a command. Returns
    /// true if the grant was unclaimed: it was made to a queued waiter (QUEUE), and this is the first command
    /// of the token since. If the hold does not have the lock-delay (DELAY) of the waiter's ACQUIRE yet,
    /// sets it.
    #[inline]
    pub(super) fn claim_grant(&mut self, token: TokenRef<'_>) -> bool {
        let Some(unclaimed) = self.waiting.deliveries.confirm_grant(self.name, token.as_bytes()) else {
            return false;
        };
        if !unclaimed.delay_after_claim.is_none() {
            self.change(token.as_bytes(), |hold| hold.set_delay(unclaimed.delay_after_claim));
            self.step.put(self.lock, token);
        }
        true
    }

    /// Begins a hold. [`Turn::fit`] must have allowed it.
    pub(super) fn grant(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Result<Fence, Refusal> {
        let (token, now) = (request.token, self.now);
        let fence = self.fences.issue(now).ok_or(Refusal::FencesUsedUp)?;
        let count = request.reentry.count(None).ok_or(Refusal::CountFull)?;
        // If many holds expired together, some of them are stored for a while longer. One may be an old hold
        // of this token, bound (EPHEMERAL) to the same connection as the new hold. The end of the old hold
        // removes the binding, so it comes before the binding of the new hold.
        if self.lock.stored_len() > 1 {
            self.end_one(token.as_bytes(), End::Expired);
        }
        if request.ephemeral {
            self.step.record_binding(Binding::Begins(client, token.to_owned()));
        }
        let mut hold = Hold::new(token.to_owned(), fence, now, now + request.ttl, request.ttl);
        hold.set_client(client);
        if has_extras(request) || count > NonZeroU32::MIN {
            hold.set_extras(extras_of(request, count, client));
        }
        if self.lock.add(hold, request.mode) {
            self.step.record_limit_change(self.lock, request.token);
        }
        self.step.put(self.lock, request.token);
        self.step.events.push(Event::Acquired);
        Ok(fence)
    }

    /// Renews a hold: the later deadline applies, and the count changes as requested.
    pub(super) fn renew(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Result<Fence, Refusal> {
        let deadline = self.now + request.ttl;
        let step = &mut *self.step;
        let renewed = self.lock.change(request.token.as_bytes(), self.now, |hold| {
            let before = (hold.nonzero_count(), hold.deadline());
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
                        step.record_binding(Binding::Ends(old, hold.token().clone()));
                    }
                    step.record_binding(Binding::Begins(client, hold.token().clone()));
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
            Ok((hold.fence(), extended, changed || before != (hold.nonzero_count(), hold.deadline())))
        });
        // `None`: the token has no hold. The callers have checked that it has one.
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

    /// Changes the mode of the only holder.
    pub(super) fn change_mode(&mut self, token: &[u8], mode: Mode) {
        let Some(hold) = self.lock.remove(token) else { return };
        // All other holds that are still stored have expired.
        self.end_crowd_at_once(End::Expired);
        if mode == Mode::Shared {
            self.step.events.push(Event::Downgraded);
        }
        self.lock.add(hold, mode);
        self.step.change = Change::Whole;
    }

    /// Ends expired holds, or a lock-delay that has passed.
    #[inline(never)]
    pub(super) fn expire(&mut self) {
        let now = self.now;
        // An exclusive hold, the most frequent case, ends without a list of expired holds.
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
                self.end_crowd_at_once(End::Expired);
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

    /// Ends all shared holds or permits.
    pub(super) fn end_crowd(&mut self, why: End) {
        if self.lock.stored_len() > SLICE {
            return self.end_crowd_at_once(why);
        }
        for hold in self.lock.take_crowd().into_iter().flat_map(|mut crowd| crowd.take_some(SLICE)) {
            self.end(&hold, why);
        }
    }

    /// Removes all shared holds or permits in one step, however many. The background job adds them to the
    /// statistics and unbinds them from their connections later.
    fn end_crowd_at_once(&mut self, why: End) {
        if let Some(holds) = self.lock.take_crowd() {
            let unconfirmed = self.waiting.deliveries.forget(self.name);
            self.step.events.push(Event::AllEnded(why));
            let ended = EndedHolds { why: Some(why), at: self.now, holds, unconfirmed };
            self.step.rare_effects().ended_holds.push(ended);
            self.step.changed(self.lock);
        }
    }

    pub(super) fn end_one(&mut self, token: &[u8], why: End) {
        if let Some(hold) = self.lock.remove(token) {
            self.end(&hold, why);
        }
    }

    /// Records the end of a hold that has been removed from the lock.
    pub(super) fn end(&mut self, hold: &Hold, why: End) {
        if !hold.delay().is_none() {
            self.begin_delay_after(hold, why);
        }
        // The grant of an ended hold needs no confirmation.
        self.waiting.deliveries.confirm_grant(self.name, hold.token().as_bytes());
        self.step.ended(self.lock, hold, why, self.now);
    }

    #[inline(never)]
    fn begin_delay_after(&mut self, hold: &Hold, why: End) {
        let delay = hold.delay().millis();
        let until = match why {
            End::Expired => hold.deadline().plus_millis(delay),
            End::Disconnected => self.now.after_millis(delay),
            End::Released | End::Broken => return,
        };
        self.begin_delay(until);
    }

    /// Begins a lock-delay, unless a longer one runs. No hold may be exclusive.
    #[inline(never)]
    pub(super) fn begin_delay(&mut self, until: Deadline) {
        self.lock.set_delay_until(self.lock.delay_until().max(Some(until)));
    }

    /// Removes waiters from their queue. With a queued waiter (QUEUE), removes the connections that wait for
    /// its answer ([`WaitKind::Beside`](crate::WaitKind)). All of them get this outcome.
    pub(super) fn take_out(&mut self, waiters: &[WaiterId], outcome: Outcome) {
        for id in waiters {
            let gone = self.waiting.leave_all(*id);
            self.step.rare_effects().outcomes.extend(gone.into_iter().map(|waiter| (waiter, outcome)));
        }
    }
}

/// Whether a request has options that few holds have.
fn has_extras(request: &LockRequestRef<'_>) -> bool {
    // Destructured without `..`: a new option must not compile until it is handled here and in `renew`.
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
