//! Positions that belong to their tokens, and whose wait is over.

use dlock_protocol::{ClientId, Deadline, Instant, LockRequestRef};

use super::{Name, Owner, Queued, Waiter, WaiterId, Waiting};
use crate::step::Outcome;

impl Waiting {
    /// The position of a token of its own, if it has one here.
    pub fn position_of(&self, token: &[u8], name: &Name<'_>) -> Option<&Waiter> {
        let own = |waiter: &&Waiter| matches!(waiter.owner, Owner::Token(_));
        self.of_token_on(token, name).iter().filter_map(|id| self.get(*id)).find(own)
    }

    /// Keeps a position, on the terms of the call that asks for it again.
    pub(crate) fn keep(
        &mut self,
        id: WaiterId,
        request: &LockRequestRef<'_>,
        queued: Queued,
        until: Deadline,
    ) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let before = waiter.bound_to();
        (waiter.request, waiter.until) = (request.to_owned(), Some(until));
        if let Owner::Token(kept) = &mut waiter.owner {
            let beside = std::mem::take(&mut kept.beside);
            **kept = Queued { beside, ..queued };
        }
        if let Some(slot) = waiter.timeout {
            self.timeouts.reschedule(slot, until);
        }
        let after = waiter.bound_to();
        if before != after {
            self.bound.end(id, before);
            self.bound.begin(id, after);
        }
    }

    /// A connection has closed. Whether any position was bound to it.
    pub fn client_gone(&mut self, client: ClientId) -> bool {
        self.bound.close(client)
    }

    /// Why a wait is over that has not been answered yet.
    pub fn is_over(&self, waiter: &Waiter, now: Instant) -> Option<Outcome> {
        if waiter.bound_to().is_some_and(|client| self.bound.is_closed(client)) {
            return Some(Outcome::Cancelled);
        }
        waiter.until.is_some_and(|until| until.passed(now)).then_some(Outcome::TimedOut)
    }

    /// A wait that is over, and why.
    pub fn next_over(&self, now: Instant) -> Option<(&Waiter, Outcome)> {
        let waiter = self.get(self.bound.first_over().or_else(|| self.timed_out(now))?)?;
        Some((waiter, self.is_over(waiter, now)?))
    }

    /// When there will be one.
    pub fn next_due(&self) -> Option<Deadline> {
        self.bound.first_over().map(|_| Deadline::at_millis(0)).or_else(|| self.next_timeout())
    }

    /// Any position that belongs to its token.
    pub fn any_queued(&self) -> Option<&Waiter> {
        self.get(*self.queued.first()?)
    }
}
