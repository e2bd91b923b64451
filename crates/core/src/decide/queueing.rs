//! Waiting without a connection, and what comes of a grant that nobody is known to know of.

use dlock_protocol::{Deadline, Delay, LockRequestRef, Mode};

use super::{Acquired, Turn, serving};
use crate::deliveries::Lost;
use crate::queue::{Queued, WaiterId};
use crate::step::{End, Granted, Outcome, Refusal};

impl Turn<'_> {
    /// As [`Turn::acquire`], by a token that is to have a position of its own in the queue until then. The
    /// one it has it keeps, unless it asks for another mode.
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
        // Another number of permits is an error for those who come, and for a waiter when its turn comes.
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
                let ttl = serving::left(until, self.now);
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
