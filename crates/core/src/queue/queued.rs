//! Positions that belong to their tokens, and whose wait is over.

use dlock_protocol::{ClientId, Deadline, Instant, LockRequestRef, OwnerId};

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
        if waiter.request.owner.as_ref().map(OwnerId::borrowed) != request.owner {
            self.change_owner(id, request.owner);
        }
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let before = waiter.bound_to();
        let earlier = waiter.until.is_some_and(|was| until < was);
        (waiter.request, waiter.until) = (request.to_owned(), Some(until));
        if let Owner::Token(kept) = &mut waiter.owner {
            let beside = std::mem::take(&mut kept.beside);
            *kept = Queued { beside, ..queued };
        }
        if let Some(slot) = waiter.timeout.filter(|_| earlier) {
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
    pub fn next_over(&mut self, now: Instant) -> Option<(&Waiter, Outcome)> {
        let id = self.bound.first_over().or_else(|| self.timed_out(now))?;
        let waiter = self.get(id)?;
        Some((waiter, self.is_over(waiter, now)?))
    }

    /// When there will be one.
    pub fn next_due(&self) -> Option<Deadline> {
        self.bound.first_over().map(|_| Deadline::at_millis(0)).or_else(|| self.next_timeout())
    }

    /// The head of the oldest queue.
    pub fn any_head(&self) -> Option<&Waiter> {
        self.begun.values().next().and_then(|name| self.head(name))
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::{TokenRef, Ttl};

    use super::*;
    use crate::queue::{Newcomer, Rank};

    /// A wait that is made longer stays where it is scheduled; one that is made shorter does not.
    #[test]
    fn a_position_that_is_kept_is_over_at_its_last_deadline() {
        let at = Instant::from_millis;
        let request = LockRequestRef::new(TokenRef::new(b"t").unwrap(), Ttl::MAX);
        let queued = || Queued::new(ClientId(1), None, None, false);
        let mut waiting = Waiting::default();
        let (name, owner, until) =
            (Name::new(0, b"k"), Owner::Token(queued()), Some(at(0).after_millis(100)));
        let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: at(0), until };
        let id = waiting.join(newcomer).unwrap();
        waiting.keep(id, &request, queued(), at(0).after_millis(500));
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(100)), "it is looked at");
        assert_eq!(waiting.next_over(at(499)), None);
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(500)), "and put off");
        waiting.keep(id, &request, queued(), at(0).after_millis(50));
        assert_eq!(waiting.next_due(), Some(at(0).after_millis(50)));
        assert_eq!(waiting.next_over(at(49)), None);
        let over = waiting.next_over(at(50)).map(|(waiter, outcome)| (waiter.id, outcome));
        assert_eq!(over, Some((id, Outcome::TimedOut)));
    }
}
