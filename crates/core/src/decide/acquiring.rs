//! ACQUIRE: by a token that holds nothing yet, and by one that holds the lock already.

use dlock_protocol::{ClientId, Fence, LockRequestRef, Mode, Reentry, Token};

use super::Turn;
use crate::lock::Fit;
use crate::queue::{Rank, WaiterId};
use crate::step::Refusal;

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

impl Turn<'_> {
    /// `client`: the connection that asks.
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
                Acquired::Refused(Refusal::TooManyHolders(self.terms.most_holders))
            }
            _ => Acquired::NotNow(Rank::Newcomer),
        }
    }

    /// Where the token holds it already.
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
        // To read inside a write section does not end the section: an exclusive hold that is entered once
        // more stays one.
        let reads_inside = held_as == Mode::Exclusive && request.reentry != Reentry::Keep;
        match (held_as, request.mode) {
            (Mode::Permits(n), Mode::Permits(asked)) if n != asked => {
                return Acquired::Refused(Refusal::OtherPermits(n.get()));
            }
            (Mode::Permits(_), Mode::Exclusive | Mode::Shared)
            | (Mode::Exclusive | Mode::Shared, Mode::Permits(_)) => {
                return Acquired::Refused(Refusal::OtherMode);
            }
            // To be alone is new: another sharer may have been forgotten.
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
        // The token is here, so whatever it holds it knows of.
        // The answer to a queued waiter's question counts no second time.
        let mut request = *request;
        if self.heard_of(request.token) && request.reentry == Reentry::OneMore {
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
}
