//! ACQUIRE of [`System`], which drives the core as the module does: an attempt, and a wait if the lock is not
//! free.

use super::*;

impl System {
    pub(super) fn acquire(&mut self, asked: &Request, block: Option<u64>, queue: Option<u64>) -> Answer {
        let (who, text) = (token(asked.token), label(asked.label));
        let client = ClientId(asked.client);
        let request = LockRequest {
            mode: asked.mode,
            reentry: asked.reentry,
            ephemeral: asked.ephemeral,
            delay: Delay::from_millis(asked.delay).expect("a possible delay"),
            label: LabelRef::new(&text).expect("a possible label"),
            owner: OwnerIdRef::new(OWNERS[usize::from(asked.owner)].as_bytes()),
            ..LockRequest::new(checked(&who), ttl(asked.ttl))
        };
        let held = self.locks.get(&asked.key).is_some_and(|l| l.at(self.instant()).hold_of(&who).is_some());
        let before = self.outcomes.len();
        let position = queue.map(|ms| NewPosition { queued: Queued::new(client, None, None), ms: ttl(ms) });
        // An ACQUIRE without options may be replicated verbatim, instead of the changed holds.
        let has_no_options = request == LockRequest::new(checked(&who), request.ttl);
        let plain = (has_no_options && block.is_none() && queue.is_none())
            .then(|| Plain::Acquire(checked(&who), request.ttl));
        let acquired = self.turn_of(plain, asked.key, |turn| match &position {
            Some(position) => turn.queue(&request, position),
            None => turn.acquire(&request, client),
        });
        let place = match acquired {
            Acquired::Held(fence) => {
                // If this turn has served the token as a waiter, `carry_out` has recorded the grant already.
                let is_grant = |(_, outcome): &_| matches!(outcome, WaitOutcome::Granted(..));
                if !held && !self.outcomes[before..].iter().any(is_grant) {
                    assert_eq!(self.waiting.len_of(&name(asked.key)), 0, "no newcomer overtakes the queue");
                    self.record_grant(asked.key, asked.token, fence);
                }
                // The answer reaches the client at once.
                self.record_receipt(asked.key, asked.token, asked.client, asked.mode);
                return Answer::Fence(fence.get());
            }
            Acquired::Deadlock(cycle) => return self.refuse(CannotJoin::Deadlock(cycle)),
            Acquired::Refused(refusal) => return Answer::Refused(refusal),
            Acquired::Grace => return Answer::Grace,
            Acquired::NotNow(_) if block.is_none() && queue.is_none() => return Answer::Null,
            Acquired::NotNow(rank) => Ok(rank),
            Acquired::Kept(kept) => Err(kept),
        };
        let (name, since, block) = (name(asked.key), self.instant(), block.and_then(Wait::from_millis));
        let wait = NewWait { name, request, client, position, block, since };
        match self.begin_wait(wait, place) {
            Err(why) => self.refuse(why),
            Ok(_) if block.is_some() => Answer::Waits,
            Ok(_) => Answer::Queued,
        }
    }

    /// Begins a wait at a rank, or at the position that the token keeps.
    fn begin_wait(&mut self, wait: NewWait<'_>, place: Result<Rank, Kept>) -> Result<(), CannotJoin> {
        let (name, request) = (wait.name.clone(), wait.request);
        let limits =
            Limits { on_the_server: MAX_CONNECTIONS, on_a_key: MAX_WAITERS.1, queued: MAX_WAITERS.0 };
        let joined = match place {
            Err(kept) => self.waiting.keep(kept, &wait, limits)?,
            Ok(rank) => {
                let mut joining = Joining::new(wait, rank, &self.waiting, limits)?;
                while let Some(name) = joining.asks_for(&self.waiting) {
                    joining.learn(&name, self.locks.get(&key_of(&name)), &self.waiting);
                }
                joining.join(&mut self.waiting)?
            }
        };
        let position = self.waiting.queued_waiter_of(request.token.as_bytes(), &name).map(|waiter| waiter.id);
        self.unanswered.extend(joined.connection.into_iter().chain(position));
        Ok(())
    }

    fn refuse(&mut self, why: CannotJoin) -> Answer {
        match why {
            CannotJoin::QueueFull => Answer::QueueFull,
            CannotJoin::Deadlock(cycle) => {
                self.cycle = cycle.iter().map(party_of).collect();
                Answer::Deadlock
            }
        }
    }
}
