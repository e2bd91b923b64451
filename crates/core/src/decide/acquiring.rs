//! ACQUIRE by a token without a hold, and by one that holds the lock already.

use dlock_protocol::error::Refusal;
use dlock_protocol::{ClientId, Deadline, LockRequestRef, Mode, Reentry};

use super::{Acquired, Turn};
use crate::lock::Fit;
use crate::queue::{Outcome, Queued, Rank};

impl Turn<'_> {
    /// `client` is the connection that sent the command.
    pub fn acquire(&mut self, request: &LockRequestRef<'_>, client: ClientId) -> Acquired {
        self.advance();
        if !self.lock.is_free()
            && let Some(acquired) = self.acquire_again(request, client)
        {
            return acquired;
        }
        if self.in_grace() {
            return Acquired::Grace;
        }
        match self.fit(request.mode) {
            Fit::OtherPermits(n) => Acquired::Refused(Refusal::OtherPermits(n.get())),
            Fit::Fits if self.waiting.len_of(self.name) == 0 => match self.grant(request, client) {
                Ok(fence) => Acquired::Held(fence),
                Err(refusal) => Acquired::Refused(refusal),
            },
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
        // A shared re-entry into an exclusive hold does not downgrade it.
        let reads_inside = held_as == Mode::Exclusive && request.reentry != Reentry::Keep;
        match (held_as, request.mode) {
            (Mode::Permits(n), Mode::Permits(asked)) if n != asked => {
                return Acquired::Refused(Refusal::OtherPermits(n.get()));
            }
            (Mode::Permits(_), Mode::Exclusive | Mode::Shared)
            | (Mode::Exclusive | Mode::Shared, Mode::Permits(_)) => {
                return Acquired::Refused(Refusal::OtherMode);
            }
            // An upgrade needs the end of the grace period: another sharer may have been forgotten.
            (Mode::Shared, Mode::Exclusive) if self.in_grace() => return Acquired::Grace,
            (Mode::Exclusive, Mode::Shared) if !reads_inside && count > 1 => {
                return Acquired::Refused(Refusal::EnteredOften(count));
            }
            (Mode::Shared, Mode::Exclusive) if !self.lock.can_upgrade(self.now) => {
                let other = self.waiting.upgrader(self.name).filter(|w| w.request.token != *token);
                return match other {
                    Some(waiter) => Acquired::Upgrading(waiter.party().shown().clone()),
                    None => Acquired::NotNow(Rank::Upgrade),
                };
            }
            _ => {}
        }
        // The client sent this token itself, so it already knows of any hold under it. The claim of a queued
        // grant adds no count.
        let mut request = *request;
        if self.claim_grant(request.token) && request.reentry == Reentry::OneMore {
            request.reentry = Reentry::Keep;
        }
        let renewed = self.renew(&request, client);
        if renewed.is_ok() && held_as != request.mode && !reads_inside {
            self.change_mode(token, request.mode);
            self.answer_others(token);
            self.serve();
        }
        match renewed {
            Ok(fence) => Acquired::Held(fence),
            Err(refusal) => Acquired::Refused(refusal),
        }
    }

    /// Like [`Turn::acquire`], for a token that gets a queue position of its own until then. A position that
    /// it has already is kept, unless the request has another mode.
    pub fn queue(&mut self, request: &LockRequestRef<'_>, queued: Queued, until: Deadline) -> Acquired {
        let token = request.token.as_bytes();
        let position = self.waiting.position_of(token, self.name);
        let id = position.map(|position| position.id);
        if let (Some(position), Some(id)) = (position, id) {
            let other = position.request.mode != request.mode;
            let over = self.waiting.is_over(position, self.now);
            if let Some(outcome) = over.or(other.then_some(Outcome::Left)) {
                self.take_out(&[id], outcome);
            }
        }
        let acquired = self.acquire(request, queued.client);
        // Another number of permits is an error for a new request; a waiter gets it at its turn.
        let not_yet = matches!(
            acquired,
            Acquired::NotNow(_) | Acquired::Grace | Acquired::Refused(Refusal::OtherPermits(_))
        );
        if not_yet && let Some(id) = id.filter(|id| self.waiting.get(*id).is_some()) {
            self.waiting.keep(id, request, queued, until);
            return Acquired::Queued(id);
        }
        acquired
    }
}
